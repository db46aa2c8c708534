//! Requests to allow a blocked name, made on the block page and decided by an operator.
//!
//! A client asks for a name once: the id is made of both, so that a request that is repeated is the same
//! one. There are at most [`REQUESTS_MAX`]; decided ones make room first, and when all wait, further ones
//! are refused.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use store::{Millis, Store, redis};

use crate::{DomainName, Error, keys::PeopleKeys};

/// Most requests.
const REQUESTS_MAX: usize = 500;

/// Longest note, in characters.
const NOTE_MAX: usize = 300;

/// State of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllowRequestState {
    /// Nobody has decided.
    #[default]
    Waiting,
    /// The name was allowed.
    Allowed,
    /// The name stays blocked.
    Denied,
}

/// A request to allow a blocked name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowRequest {
    /// Id: made of name and client.
    pub id: String,
    /// Name that is blocked.
    pub name: String,
    /// Address of the client.
    pub client: String,
    /// Id of its entry; empty if it has none.
    #[serde(default)]
    pub client_id: String,
    /// List or rule that blocks the name.
    #[serde(default)]
    pub list: String,
    /// Words of the person who asks.
    #[serde(default)]
    pub note: String,
    /// Time of the request, Unix milliseconds.
    pub asked_ms: i64,
    /// State.
    #[serde(default)]
    pub state: AllowRequestState,
    /// Time of the decision, Unix milliseconds; 0 before it.
    #[serde(default)]
    pub decided_ms: i64,
}

/// The requests in the store. A cheap clone.
#[derive(Clone, Debug)]
pub struct AllowRequests {
    store: Store,
    keys: PeopleKeys,
}

impl AllowRequests {
    /// Opens the requests of a store.
    pub fn new(store: &Store) -> Self {
        Self { store: store.clone(), keys: PeopleKeys::new() }
    }

    /// Returns the id of a client's request for a name.
    pub fn id_of(name: &DomainName, client: &str) -> String {
        let digest = Sha256::digest(format!("{name} {client}"));
        digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns all requests: those that wait first, then the latest decisions.
    pub async fn list(&self) -> Result<Vec<AllowRequest>, Error> {
        let texts: Vec<String> = redis::cmd("HVALS")
            .arg(&self.keys.allow_requests)
            .query_async(&mut self.store.clone())
            .await?;
        // One that cannot be read was not written here.
        let mut found: Vec<AllowRequest> =
            texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
        found.sort_by_key(|one| {
            let decided = one.state != AllowRequestState::Waiting;
            (decided, -one.decided_ms, one.asked_ms, one.id.clone())
        });
        Ok(found)
    }

    /// Returns a request.
    pub async fn get(&self, id: &str) -> Result<Option<AllowRequest>, Error> {
        let text: Option<String> = redis::cmd("HGET")
            .arg(&self.keys.allow_requests)
            .arg(id)
            .query_async(&mut self.store.clone())
            .await?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Keeps a request; one that the client made before is made anew. Refuses it while too many wait.
    pub async fn add(&self, mut request: AllowRequest) -> Result<AllowRequest, Error> {
        request.note = request.note.chars().filter(|c| !c.is_control()).take(NOTE_MAX).collect();
        let known = self.list().await?;
        let is_known = known.iter().any(|one| one.id == request.id);
        if known.len() >= REQUESTS_MAX && !is_known {
            let decided = known.iter().rev().find(|one| one.state != AllowRequestState::Waiting);
            let Some(decided) = decided else {
                let message = format!("{REQUESTS_MAX} requests wait for a decision already");
                return Err(Error::Invalid { field: "name", message });
            };
            self.remove(&decided.id).await?;
        }
        self.put(&request).await?;
        Ok(request)
    }

    /// Notes the decision about a request; none if there is no such request.
    pub async fn decide(
        &self,
        id: &str,
        state: AllowRequestState,
        now: Millis,
    ) -> Result<Option<AllowRequest>, Error> {
        let Some(mut request) = self.get(id).await? else { return Ok(None) };
        (request.state, request.decided_ms) = (state, now.0);
        self.put(&request).await?;
        Ok(Some(request))
    }

    /// Removes a request; false if there was none.
    pub async fn remove(&self, id: &str) -> Result<bool, Error> {
        let removed: u64 = redis::cmd("HDEL")
            .arg(&self.keys.allow_requests)
            .arg(id)
            .query_async(&mut self.store.clone())
            .await?;
        Ok(removed > 0)
    }

    async fn put(&self, request: &AllowRequest) -> Result<(), Error> {
        let text = serde_json::to_string(request)
            .map_err(|error| Error::Invalid { field: "request", message: error.to_string() })?;
        let () = redis::cmd("HSET")
            .arg(&self.keys.allow_requests)
            .arg(&request.id)
            .arg(text)
            .query_async(&mut self.store.clone())
            .await?;
        Ok(())
    }
}
