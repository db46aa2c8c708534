//! The expiry index, the cap and the clear: work on many answers, in bounded batches.
//!
//! Invariant: no command names two answers' keys, because on a Cluster each lives where its name
//! puts it.

use std::{collections::VecDeque, time::Duration};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use store::{
    Key, Layout, Millis, Store,
    redis::{self, Cmd, FromRedisValue, Value},
};

use super::L1;
use crate::{
    Error,
    keys::{self, question_from_key},
    name::Question,
};

/// Time for which a count of keys is good enough.
const COUNT_MEMO: Duration = Duration::from_secs(30);

/// Keys that one step of SCAN looks at.
const SCAN_COUNT: usize = 1_000;

/// Commands in one pipeline, or in flight on a Cluster.
const BATCH: usize = 500;

/// Members of the index that one reconciliation looks at.
const RECONCILE_MAX: usize = 500;

/// Most answers one call evicts, and most candidates it compares.
const EVICT_MAX: usize = 5_000;

/// A count of keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyCount {
    at: Millis,
    keys: u64,
}

/// An answer that is about to expire, or has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueAnswer {
    /// The question.
    pub question: Question,
    /// Hits within the sweeper's window, or within the window of hits if it has none.
    pub hits: u64,
}

impl L1 {
    /// Returns the questions whose answers expire until then, soonest first; not those that expired before
    /// the earliest time, if one is given. Members that name no answer are removed from the index.
    pub async fn due(
        &self,
        earliest: Option<Millis>,
        latest: Millis,
        limit: usize,
    ) -> Result<Vec<DueAnswer>, Error> {
        let mut store = self.0.store.clone();
        let mut find = redis::cmd("ZRANGEBYSCORE");
        find.arg(&self.0.keys.expiry_index);
        match earliest {
            Some(earliest) => find.arg(earliest.as_secs()),
            None => find.arg("-inf"),
        };
        find.arg(latest.as_secs()).arg("LIMIT").arg(0).arg(limit);
        let members: Vec<Vec<u8>> = find.query_async(&mut store).await?;
        let (mut found, mut strange) = (Vec::new(), Vec::new());
        for member in members {
            self.note_spelling(&member);
            match (question_from_key(&member), self.0.keys.listed_answer(&member)) {
                (Some(question), Some(key)) => found.push((question, key)),
                _ => strange.push(member),
            }
        }
        self.remove_from_index(&strange).await?;
        let has_window = self.0.options.sweep_hit_window.is_some();
        let reads = found.iter().map(|(_, key)| {
            let keys = &self.0.keys;
            get(&if has_window { keys.sweep_hits(key) } else { keys.hits(key) })
        });
        let hits: Vec<Option<u64>> = self.each(reads.collect()).await?;
        let due = found
            .into_iter()
            .zip(hits)
            .map(|((question, _), hits)| DueAnswer { question, hits: hits.unwrap_or(0) });
        Ok(due.collect())
    }

    /// Removes members of the expiry index whose answers are gone: of the soonest 500. Returns how many.
    pub async fn reconcile(&self) -> Result<usize, Error> {
        let members = self.soonest(RECONCILE_MAX).await?;
        let exist = members.iter().map(|member| {
            let mut exists = redis::cmd("EXISTS");
            exists.arg(member);
            exists
        });
        let exist: Vec<Option<u64>> = self.each(exist.collect()).await?;
        let gone: Vec<_> = members
            .into_iter()
            .zip(exist)
            .filter(|(_, exists)| *exists == Some(0))
            .map(|(member, _)| member)
            .collect();
        self.remove_from_index(&gone).await?;
        Ok(gone.len())
    }

    /// Returns the number of answers, counted by SCAN at most every 30 s.
    pub async fn count_keys(&self, now: Millis) -> Result<u64, Error> {
        let memo = *self.0.count.lock();
        if let Some(KeyCount { at, keys }) = memo
            && now >= at
            && now.since(at) < COUNT_MEMO
        {
            return Ok(keys);
        }
        let mut keys = 0;
        let mut scan = self.scan(keys::ANSWER_PATTERN).await?;
        while let Some(found) = scan.next().await? {
            keys += found.len() as u64;
        }
        *self.0.count.lock() = Some(KeyCount { at: now, keys });
        Ok(keys)
    }

    /// Removes answers above the cap: those with the fewest hits, of these the oldest. At most 5,000 in
    /// one call. Returns their questions, so that they can be dropped from memory too.
    pub async fn evict(&self, now: Millis) -> Result<Vec<Question>, Error> {
        let max_keys = self.max_keys();
        let excess = self.count_keys(now).await?.saturating_sub(max_keys);
        if max_keys == 0 || excess == 0 {
            return Ok(Vec::new());
        }
        let excess = usize::try_from(excess).unwrap_or(EVICT_MAX).min(EVICT_MAX);
        let mut members = self.soonest(EVICT_MAX).await?;
        if members.len() < excess {
            // Answers of a writer that keeps no index are found by SCAN only.
            let mut scan = self.scan(keys::ANSWER_PATTERN).await?;
            while members.len() < EVICT_MAX
                && let Some(found) = scan.next().await?
            {
                members.extend(found);
            }
            members.sort();
            members.dedup();
        }
        let candidates: Vec<Key> =
            members.iter().filter_map(|member| self.0.keys.listed_answer(member)).collect();
        let created = candidates.iter().map(|key| {
            let mut created = redis::cmd("HGET");
            created.arg(key).arg(super::CREATED_AT);
            created
        });
        let created: Vec<Option<i64>> = self.each(created.collect()).await?;
        let hits = candidates.iter().map(|key| get(&self.0.keys.hits(key)));
        let hits: Vec<Option<i64>> = self.each(hits.collect()).await?;
        let mut order: Vec<_> = hits
            .into_iter()
            .zip(created)
            .zip(candidates)
            .map(|((hits, created), key)| (hits.unwrap_or(0), created.unwrap_or(0), key))
            .collect();
        order.sort();
        let evicted: Vec<Key> = order.into_iter().take(excess).map(|(_, _, key)| key).collect();
        self.remove(&evicted).await?;
        if let Some(count) = self.0.count.lock().as_mut() {
            count.keys = count.keys.saturating_sub(evicted.len() as u64);
        }
        Ok(evicted.iter().filter_map(|key| question_from_key(key.as_str().as_bytes())).collect())
    }

    /// Deletes every answer with its metadata, and tells all instances to drop what they hold in
    /// memory. Returns the number of answers deleted, their metadata not counted.
    pub async fn clear(&self) -> Result<u64, Error> {
        let mut deleted = 0;
        for pattern in [keys::ANSWER_PATTERN, self.0.keys.metadata_pattern()] {
            let mut scan = self.scan(pattern).await?;
            while let Some(found) = scan.next().await? {
                let deletes = found.iter().map(|key| {
                    let mut delete = redis::cmd("UNLINK");
                    delete.arg(key);
                    delete
                });
                let counts: Vec<Option<u64>> = self.each(deletes.collect()).await?;
                if pattern == keys::ANSWER_PATTERN {
                    deleted += counts.into_iter().flatten().sum::<u64>();
                }
            }
        }
        *self.0.count.lock() = None;
        let mut store = self.0.store.clone();
        let generation: u64 =
            redis::cmd("INCR").arg(&self.0.instance.generation).query_async(&mut store).await?;
        redis::cmd("PUBLISH")
            .arg(&self.0.instance.cleared)
            .arg(generation)
            .query_async::<()>(&mut store)
            .await?;
        Ok(deleted)
    }

    /// Tells all instances that the answers of a question were deleted.
    pub(crate) async fn announce_delete(&self, question: &Question) -> Result<(), Error> {
        let mut store = self.0.store.clone();
        redis::cmd("PUBLISH")
            .arg(&self.0.instance.cleared)
            .arg(self.0.keys.answer(question).as_str())
            .query_async::<()>(&mut store)
            .await?;
        Ok(())
    }

    /// Returns the number of clears so far.
    pub async fn generation(&self) -> Result<u64, Error> {
        let mut store = self.0.store.clone();
        let generation: Option<u64> =
            get(&self.0.instance.generation).query_async(&mut store).await?;
        Ok(generation.unwrap_or(0))
    }

    /// Listens to clears. After every message and gap the caller reads the generation.
    pub async fn subscribe_clears(&self) -> Result<store::Subscription, Error> {
        Ok(self.0.store.subscribe(&[self.0.instance.cleared.as_str()], &[]).await?)
    }

    /// Removes answers with all of their metadata.
    pub(super) async fn remove(&self, answers: &[Key]) -> Result<(), Error> {
        for batch in answers.chunks(BATCH / 4) {
            let keys = &self.0.keys;
            let related = batch.iter().flat_map(|key| {
                [key.clone(), keys.hits(key), keys.sweep_hits(key), keys.refresh_lock(key)]
            });
            let deletes = related.map(|key| {
                let mut delete = redis::cmd("DEL");
                delete.arg(key);
                delete
            });
            self.each::<u64>(deletes.collect()).await?;
            let members: Vec<&[u8]> = batch.iter().map(|key| key.as_str().as_bytes()).collect();
            self.remove_from_index(&members).await?;
        }
        Ok(())
    }

    async fn soonest(&self, limit: usize) -> Result<Vec<Vec<u8>>, Error> {
        let mut store = self.0.store.clone();
        let mut find = redis::cmd("ZRANGE");
        find.arg(&self.0.keys.expiry_index).arg(0).arg(limit.saturating_sub(1));
        Ok(find.query_async(&mut store).await?)
    }

    async fn remove_from_index(&self, members: &[impl AsRef<[u8]>]) -> Result<(), Error> {
        let mut store = self.0.relaxed.clone();
        for batch in members.chunks(BATCH) {
            let mut remove = redis::cmd("ZREM");
            remove.arg(&self.0.keys.expiry_index);
            batch.iter().for_each(|member| _ = remove.arg(member.as_ref()));
            remove.query_async::<()>(&mut store).await?;
        }
        Ok(())
    }

    /// Runs commands on one key each: in pipelines, or a bounded number at a time on a Cluster. A
    /// command that is refused, or whose reply has another type, has no result.
    async fn each<T: FromRedisValue>(&self, commands: Vec<Cmd>) -> Result<Vec<Option<T>>, Error> {
        let mut store = self.0.store.clone();
        let mut results = Vec::with_capacity(commands.len());
        if store.layout() == Layout::Cluster {
            let sent = commands.into_iter().map(|command| {
                let mut store = store.clone();
                async move {
                    match command.query_async::<Value>(&mut store).await.map_err(store::Error::from)
                    {
                        Ok(value) => Ok(T::from_redis_value(value).ok()),
                        Err(error) if error.is_unavailable() => Err(error),
                        Err(_) => Ok(None),
                    }
                }
            });
            results = stream::iter(sent).buffered(BATCH).try_collect().await?;
        } else {
            for batch in commands.chunks(BATCH) {
                let mut pipe = redis::pipe();
                pipe.ignore_errors();
                batch.iter().for_each(|command| _ = pipe.add_command(command.clone()));
                let replies: Vec<redis::RedisResult<Value>> = pipe.query_async(&mut store).await?;
                let read = |reply: redis::RedisResult<Value>| T::from_redis_value(reply.ok()?).ok();
                results.extend(replies.into_iter().map(read));
            }
        }
        Ok(results)
    }

    /// Starts to visit the keys that match a pattern, on every server.
    async fn scan(&self, pattern: &'static str) -> Result<KeyScan, Error> {
        let store = self.0.store.clone();
        let nodes = store.on_every_node(&scan_step(pattern, 0)).await?.into();
        Ok(KeyScan { store, pattern, nodes, next: None })
    }
}

/// A scan of the keyspace, one step of SCAN at a time. A key may be visited twice.
struct KeyScan {
    store: Store,
    pattern: &'static str,
    /// First replies of the servers whose turn is still to come.
    nodes: VecDeque<(String, Value)>,
    /// The current server and its cursor.
    next: Option<(String, u64)>,
}

impl KeyScan {
    /// Returns the keys of the next step, which may be none yet; `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let (address, reply) = match self.next.take() {
            Some((address, cursor)) => {
                let reply = self.store.on_node(&address, &scan_step(self.pattern, cursor)).await?;
                (address, reply)
            }
            None => match self.nodes.pop_front() {
                Some(first) => first,
                None => return Ok(None),
            },
        };
        let (cursor, keys) = redis::from_redis_value(reply).map_err(store::Error::from)?;
        self.next = (cursor != 0).then_some((address, cursor));
        Ok(Some(keys))
    }
}

fn scan_step(pattern: &str, cursor: u64) -> Cmd {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
    scan
}

fn get(key: &Key) -> Cmd {
    let mut get = redis::cmd("GET");
    get.arg(key);
    get
}
