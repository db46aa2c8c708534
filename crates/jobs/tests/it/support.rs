//! What the tests share: a queue on a test's store, and a look at the keys behind it.

use std::{collections::BTreeMap, time::Duration};

use jobs::{Claimer, Config, JobId, JobLease, Jobs, Labels, NewJob};
use store::{
    Store,
    redis::{self, FromRedisValue},
};
use testkit::TestStore;

pub const NO_TIME: Duration = Duration::ZERO;

/// A queue in the default namespace.
pub fn queue(t: &TestStore) -> Jobs {
    Jobs::new(t.store.clone(), Config::default()).unwrap()
}

/// A worker without labels that takes everything that asks for none.
pub fn worker(jobs: &Jobs, name: &str) -> Claimer {
    jobs.claimer(Labels::new(name).unwrap())
}

/// A job of a type with a small payload.
pub fn job(job_type: &str) -> NewJob {
    NewJob::new(job_type, &serde_json::json!({"a": 1})).unwrap()
}

/// Dispatches a job and gives its id.
pub async fn put(jobs: &Jobs, new: NewJob) -> JobId {
    let dispatched = jobs.dispatch(new).await.unwrap();
    assert!(dispatched.new);
    dispatched.id
}

/// Claims exactly one job.
pub async fn take(claimer: &mut Claimer) -> JobLease {
    let mut claimed = claimer.claim(1).await.unwrap();
    assert_eq!(claimed.leases.len(), 1, "a job was to be had");
    claimed.leases.remove(0)
}

/// The ids a claim gives.
pub async fn take_ids(claimer: &mut Claimer, most: usize) -> Vec<JobId> {
    let claimed = claimer.claim(most).await.unwrap();
    claimed.leases.iter().map(|lease| lease.id().clone()).collect()
}

/// A look at the raw keys, as a client that knows only Redis has it. Tests name keys as the
/// standalone layout spells them; how the store at hand spells them is known here only.
pub struct Raw(pub Store);

impl Raw {
    pub fn of(t: &TestStore) -> Self {
        Self(t.store.clone())
    }

    /// A key of a queue as this store spells it. What is none is left as it is.
    pub fn spell(&self, key: &str) -> String {
        match key.split_once(':') {
            Some((namespace @ ("bridge" | "mail"), rest)) => {
                format!("{}:{rest}", self.0.layout().tag(namespace))
            }
            _ => key.to_owned(),
        }
    }

    pub async fn call<T: FromRedisValue>(&self, line: &[&str]) -> T {
        let mut cmd = redis::cmd(line[0]);
        for word in &line[1..] {
            cmd.arg(self.spell(word));
        }
        cmd.query_async(&mut self.0.clone()).await.unwrap()
    }

    pub async fn get(&self, key: &str) -> Option<String> {
        self.call(&["GET", key]).await
    }

    pub async fn json(&self, key: &str) -> serde_json::Value {
        let text = self.get(key).await.unwrap_or_else(|| panic!("{key} is missing"));
        serde_json::from_str(&text).unwrap()
    }

    pub async fn list(&self, key: &str) -> Vec<String> {
        self.call(&["LRANGE", key, "0", "-1"]).await
    }

    pub async fn set(&self, key: &str) -> Vec<String> {
        let mut members: Vec<String> = self.call(&["SMEMBERS", key]).await;
        members.sort();
        members
    }

    pub async fn zset(&self, key: &str) -> Vec<(String, i64)> {
        self.call(&["ZRANGE", key, "0", "-1", "WITHSCORES"]).await
    }

    pub async fn hash(&self, key: &str) -> BTreeMap<String, String> {
        self.call(&["HGETALL", key]).await
    }

    pub async fn ttl(&self, key: &str) -> i64 {
        self.call(&["TTL", key]).await
    }

    pub async fn status(&self, id: &JobId) -> Option<String> {
        self.get(&format!("bridge:jobs:status:{id}")).await
    }
}

/// Checks that what the keys say is one truth: every job in one place, counts equal to reality.
pub async fn check_invariants(raw: &Raw) {
    let waiting = raw.list("bridge:jobs:waiting").await;
    let waiting: Vec<_> = waiting.into_iter().filter(|id| id != "-").collect();
    let active = raw.set("bridge:jobs:active").await;
    let delayed = raw.zset("bridge:jobs:delayed").await;
    let dead = raw.list("bridge:jobs:deadletter").await;
    let mut claims = raw.hash("bridge:jobs:claims").await;
    claims.remove("-");
    let leases = raw.zset("bridge:jobs:leases").await;
    let mut places = BTreeMap::<String, Vec<&str>>::new();
    for (place, ids) in [
        ("waiting", waiting),
        ("active", active.clone()),
        ("delayed", delayed.into_iter().map(|(id, _)| id).collect()),
        ("dead", dead),
    ] {
        for id in ids {
            places.entry(id).or_default().push(place);
        }
    }
    for (id, found) in &places {
        assert_eq!(found.len(), 1, "job {id} is in {found:?}");
        let status = raw.get(&format!("bridge:jobs:status:{id}")).await;
        assert_eq!(status.as_deref(), found.first().copied(), "status of {id}");
        let data = raw.get(&format!("bridge:jobs:data:{id}")).await;
        assert!(data.is_some(), "job {id} has no data");
    }
    let claimed: Vec<_> = claims.keys().cloned().collect();
    assert_eq!(claimed, active, "claims are what is active");
    let leased: Vec<_> = leases.into_iter().map(|(id, _)| id).collect();
    assert!(leased.iter().all(|id| claims.contains_key(id)), "what is leased is claimed");
    let mut held = BTreeMap::<String, String>::new();
    for (_, claim) in claims.iter().filter(|(id, _)| !leased.contains(id)) {
        let count = held.entry(claim.split(' ').next().unwrap().to_owned()).or_default();
        *count = (count.parse().unwrap_or(0) + 1).to_string();
    }
    assert_eq!(raw.hash("bridge:jobs:held").await, held, "what was not renewed is held");
    let mut terms: Vec<_> =
        raw.zset("bridge:jobs:terms").await.into_iter().map(|(token, _)| token).collect();
    terms.sort();
    assert_eq!(terms, held.into_keys().collect::<Vec<_>>(), "what is held has a term");
    let mut by_type = BTreeMap::<String, i64>::new();
    for (id, claim) in &claims {
        let job_type = claim.splitn(3, ' ').nth(2).unwrap();
        *by_type.entry(job_type.to_owned()).or_default() += 1;
        let lock = raw.get(&format!("bridge:jobs:lock:{id}")).await;
        // On a store whose TTLs follow the test's clock the lock may have run out.
        if let Some(lock) = lock {
            assert_eq!(Some(lock.as_str()), claim.split(' ').nth(1), "lock of {id}");
        }
    }
    let counters: Vec<String> = raw.call(&["KEYS", "bridge:ratelimit:concurrent:*"]).await;
    for key in counters {
        let job_type = key.strip_prefix(&raw.spell("bridge:ratelimit:concurrent:")).unwrap();
        let count: i64 = raw.get(&key).await.unwrap().parse().unwrap();
        assert_eq!(
            count,
            by_type.get(job_type).copied().unwrap_or(0),
            "running jobs of {job_type}"
        );
    }
}
