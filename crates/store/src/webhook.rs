//! Webhooks: events on their way to HTTP receivers, kept until they are delivered or given up.
//!
//! An [`Outbox`] keeps targets, deliveries, their log and dead letters; who sends what, and how, is the
//! caller's. Deliveries of one target and one subject form a lane, in the order of their events. A
//! sender takes the first of a lane that is due, under a lease, and settles it.
//!
//! ```text
//! due (by time) ─▶ "wh_1 queue/sale"  ─▶ lane: d1 d2 d3      d1 is sent; d2 waits until d1 is
//!                  "wh_1 queue/spring" ─▶ lane: d4            delivered or given up
//! ```
//!
//! Invariants: an event is in line for a target once, however many instances emit it; within a lane
//! nothing is sent before what came before it was delivered or given up; at most one sender has a
//! lane. A sender that dies loses its lease, and the delivery is sent again under the same id.

use std::time::Duration;

use redis::AsyncCommands as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    Error, Key, Millis, Store,
    scripts::{webhook_emit, webhook_resend, webhook_settle, webhook_take},
};

/// Most targets.
pub const TARGETS_MAX: usize = 100;
/// Most deliveries in line for one target; further events are not sent to it.
pub const PENDING_MAX: usize = 1_000;
/// Attempts kept in the log, of all targets.
pub const LOG_MAX: usize = 2_000;
/// Dead letters kept, of all targets; the oldest go first.
pub const DEAD_MAX: usize = 1_000;
/// Events remembered, so that none is in line twice.
const SEEN_MAX: usize = 10_000;
/// Lanes that are due and looked at in one round.
const LANES_MAX: isize = 500;
/// Attempts before a delivery is given up.
pub const ATTEMPTS_MAX: u32 = 10;
/// Waits between attempts, in seconds: about two days in all.
const WAITS_S: [u64; 9] = [5, 30, 120, 600, 1_800, 3_600, 10_800, 28_800, 86_400];

/// The keys of an outbox. They share a hash tag, so that scripts can touch several.
#[derive(Clone, Debug)]
pub struct OutboxKeys {
    /// hash: target → its settings, the caller's text.
    pub targets: Key,
    /// hash: id → delivery as JSON.
    pub deliveries: Key,
    /// zset: lanes that hold deliveries; score = time of the next attempt, in ms.
    pub due: Key,
    /// zset: ids of dead letters; score = when, in ms.
    pub dead: Key,
    /// list: attempts as JSON, newest first.
    pub log: Key,
    /// hash: target → number of its deliveries in line.
    pub pending: Key,
    /// hash: alarm → time since which it is raised, in ms.
    pub alarms: Key,
    /// zset: ids of the latest events; score = when, in ms.
    pub seen: Key,
    /// hash: reader of events → its place, so that the next leader goes on there.
    pub cursors: Key,
    /// list: ids of deliveries of one lane, by its name.
    pub lane: fn(&str) -> Key,
}

/// An event to be sent.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// Id; of two events with one id, only the first is sent.
    pub id: String,
    /// Type, such as `jobs.dead_letter`.
    pub event: String,
    /// The thing it is about; events about one thing arrive in order.
    pub subject: String,
    /// The event as JSON.
    pub body: Box<RawValue>,
}

/// A change of an alarm that goes with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmChange<'a> {
    /// Raises the alarm of this name; without effect, and without an event, if it is raised.
    Raise(&'a str),
    /// Clears it; without effect, and without an event, if it is not raised.
    Clear(&'a str),
}

/// The outcome of [`Outbox::emit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmitOutcome {
    /// It is in line, except for these targets, which have too many in line.
    Emitted {
        /// The targets that are full.
        full: Vec<String>,
    },
    /// It was emitted before, or the alarm was as it should be.
    Nothing,
}

/// An event on its way to one target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Delivery {
    /// Id, the same in every attempt.
    pub id: String,
    /// The target.
    pub target: String,
    /// Type of the event.
    pub event: String,
    /// The thing it is about.
    pub subject: String,
    /// The event as JSON.
    pub body: Box<RawValue>,
    /// Time of the event, in milliseconds since 1970.
    pub created_ms: i64,
    /// Attempts so far.
    pub attempts: u32,
    /// The failure of the latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Delivery {
    /// Name of its lane.
    fn lane(&self) -> String {
        lane(&self.target, &self.subject)
    }
}

/// One attempt, as the log keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoggedAttempt {
    /// The delivery.
    pub delivery: String,
    /// The target.
    pub target: String,
    /// Type of the event.
    pub event: String,
    /// The thing it is about.
    pub subject: String,
    /// Number of the attempt, starting at 1.
    pub attempt: u32,
    /// Time of the attempt, in milliseconds since 1970.
    pub at_ms: i64,
    /// Duration in milliseconds.
    pub took_ms: u64,
    /// `delivered`, `retry` or `dead`.
    pub outcome: String,
    /// HTTP status of the answer, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A delivery under a lease.
#[derive(Clone, Debug)]
pub struct TakenDelivery {
    /// The delivery.
    pub delivery: Delivery,
    until: Millis,
    lane: String,
}

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The receiver took it.
    Delivered {
        /// HTTP status.
        status: u16,
    },
    /// It failed, and is tried again unless it was tried too often.
    Failed {
        /// HTTP status, if there was an answer.
        status: Option<u16>,
        /// The failure.
        error: String,
        /// Wait that the receiver asked for.
        retry_after: Option<Duration>,
    },
    /// It failed, and trying again is of no use.
    Refused {
        /// HTTP status, if there was an answer.
        status: Option<u16>,
        /// The failure.
        error: String,
    },
}

/// Events on their way, in a store.
#[derive(Clone, Debug)]
pub struct Outbox {
    store: Store,
    keys: OutboxKeys,
}

impl Outbox {
    /// The outbox in these keys.
    pub fn new(store: &Store, keys: OutboxKeys) -> Self {
        Self { store: store.clone(), keys }
    }

    /// Returns all targets: id and settings.
    pub async fn targets(&self) -> Result<Vec<(String, String)>, Error> {
        Ok(self.store.clone().hgetall(&self.keys.targets).await?)
    }

    /// Returns the settings of a target.
    pub async fn target(&self, id: &str) -> Result<Option<String>, Error> {
        Ok(self.store.clone().hget(&self.keys.targets, id).await?)
    }

    /// Adds a target. `false` when there is one of that id, which stays as it is.
    ///
    /// # Errors
    /// Refuses more than [`TARGETS_MAX`]; two that are added at the same instant may exceed it by one.
    pub async fn add_target(&self, id: &str, settings: &str) -> Result<bool, Error> {
        let mut store = self.store.clone();
        let count: usize = store.hlen(&self.keys.targets).await?;
        let known: bool = store.hexists(&self.keys.targets, id).await?;
        if count >= TARGETS_MAX && !known {
            return Err(Error::invalid(format!("there are {TARGETS_MAX} targets already")));
        }
        Ok(store.hset_nx(&self.keys.targets, id, settings).await?)
    }

    /// Changes a target that exists.
    pub async fn change_target(&self, id: &str, settings: &str) -> Result<(), Error> {
        let () = self.store.clone().hset(&self.keys.targets, id, settings).await?;
        Ok(())
    }

    /// Removes a target and its dead letters. `false` when there was none. What is in line for it is
    /// dropped when it comes up.
    pub async fn remove_target(&self, id: &str) -> Result<bool, Error> {
        let mut store = self.store.clone();
        let removed: bool = store.hdel(&self.keys.targets, id).await?;
        for dead in self.dead().await?.iter().filter(|dead| dead.target == id) {
            let () = redis::pipe()
                .atomic()
                .zrem(&self.keys.dead, &dead.id)
                .ignore()
                .hdel(&self.keys.deliveries, &dead.id)
                .ignore()
                .query_async(&mut store)
                .await?;
        }
        Ok(removed)
    }

    /// Puts an event in line for targets, once.
    pub async fn emit(
        &self,
        event: &NewEvent,
        targets: &[String],
        alarm: Option<AlarmChange<'_>>,
    ) -> Result<EmitOutcome, Error> {
        let now = self.store.now();
        let (mut lanes, mut args) = (Vec::new(), Vec::new());
        for target in targets {
            let delivery = Delivery {
                id: format!("{}.{target}", event.id),
                target: target.clone(),
                event: event.event.clone(),
                subject: event.subject.clone(),
                body: event.body.clone(),
                created_ms: now.0,
                attempts: 0,
                error: None,
            };
            let lane = delivery.lane();
            lanes.push((self.keys.lane)(&lane));
            args.extend([target.clone(), delivery.id.clone(), lane, json(&delivery)?]);
        }
        let (alarm_mode, alarm) = match alarm {
            None => ("", ""),
            Some(AlarmChange::Raise(alarm)) => ("raise", alarm),
            Some(AlarmChange::Clear(alarm)) => ("clear", alarm),
        };
        let reply: Vec<String> = webhook_emit::run(
            &self.store,
            webhook_emit::Keys {
                due: &self.keys.due,
                deliveries: &self.keys.deliveries,
                pending: &self.keys.pending,
                seen: &self.keys.seen,
                alarms: &self.keys.alarms,
                lanes,
            },
            webhook_emit::Args {
                now_ms: now,
                event_id: &event.id,
                alarm_mode,
                alarm,
                pending_max: PENDING_MAX,
                seen_max: SEEN_MAX,
                targets: args,
            },
        )
        .await?;
        let mut words = reply.into_iter();
        Ok(match words.next().as_deref() {
            Some("emitted") => EmitOutcome::Emitted { full: words.collect() },
            _ => EmitOutcome::Nothing,
        })
    }

    /// Takes the first deliveries of at most `most` lanes that are due, each under a lease. `may_send`
    /// is asked for each target, and those it refuses are left for later.
    pub async fn take(
        &self,
        most: usize,
        lease: Duration,
        mut may_send: impl FnMut(&str) -> bool,
    ) -> Result<Vec<TakenDelivery>, Error> {
        let mut store = self.store.clone();
        let now = self.store.now();
        let due: Vec<String> =
            store.zrangebyscore_limit(&self.keys.due, "-inf", now.0, 0, LANES_MAX).await?;
        let mut taken = Vec::new();
        for lane in due {
            if taken.len() >= most {
                break;
            }
            let target = lane.split(' ').next().unwrap_or_default();
            if !may_send(target) {
                continue;
            }
            let until = self.store.now() + lease;
            let reply: Vec<String> = webhook_take::run(
                &self.store,
                webhook_take::Keys {
                    due: &self.keys.due,
                    lane: (self.keys.lane)(&lane),
                    deliveries: &self.keys.deliveries,
                },
                webhook_take::Args { now_ms: now, until_ms: until, member: &lane },
            )
            .await?;
            if let [_, _, delivery] = reply.as_slice() {
                let delivery = serde_json::from_str(delivery).map_err(unreadable)?;
                taken.push(TakenDelivery { delivery, until, lane });
            }
        }
        Ok(taken)
    }

    /// Writes what an attempt came to. `false` when the lease was lost meanwhile: then another sender
    /// has it. `chance`, from 0 to 1, spreads the wait before the next attempt.
    pub async fn settle(
        &self,
        taken: &TakenDelivery,
        outcome: &AttemptOutcome,
        took: Duration,
        chance: f64,
    ) -> Result<bool, Error> {
        let now = self.store.now();
        let mut delivery = taken.delivery.clone();
        delivery.attempts = delivery.attempts.saturating_add(1);
        let (word, status, error, next) = match outcome {
            AttemptOutcome::Delivered { status } => ("delivered", Some(*status), None, now),
            AttemptOutcome::Failed { status, error, retry_after }
                if delivery.attempts < ATTEMPTS_MAX =>
            {
                let wait = retry_wait(delivery.attempts, chance);
                let asked = retry_after.unwrap_or_default().min(Duration::from_secs(3_600));
                ("retry", *status, Some(error), now + wait.max(asked))
            }
            AttemptOutcome::Failed { status, error, .. }
            | AttemptOutcome::Refused { status, error } => ("dead", *status, Some(error), now),
        };
        delivery.error = error.cloned();
        let entry = LoggedAttempt {
            delivery: delivery.id.clone(),
            target: delivery.target.clone(),
            event: delivery.event.clone(),
            subject: delivery.subject.clone(),
            attempt: delivery.attempts,
            at_ms: now.0,
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            outcome: word.to_owned(),
            status,
            error: error.cloned(),
        };
        let (reply,): (String,) = webhook_settle::run(
            &self.store,
            webhook_settle::Keys {
                due: &self.keys.due,
                lane: (self.keys.lane)(&taken.lane),
                deliveries: &self.keys.deliveries,
                pending: &self.keys.pending,
                dead: &self.keys.dead,
                log: &self.keys.log,
            },
            webhook_settle::Args {
                now_ms: now,
                member: &taken.lane,
                target: &delivery.target,
                id: &delivery.id,
                until_ms: taken.until,
                outcome: word,
                next_ms: next,
                delivery: json(&delivery)?,
                entry: json(&entry)?,
                log_max: LOG_MAX,
                dead_max: DEAD_MAX,
            },
        )
        .await?;
        Ok(reply == "settled")
    }

    /// Returns the time at which the next lane is due.
    pub async fn next_due(&self) -> Result<Option<Millis>, Error> {
        let next: Vec<(String, f64)> =
            self.store.clone().zrange_withscores(&self.keys.due, 0, 0).await?;
        Ok(next.first().map(|(_, due)| Millis(*due as i64)))
    }

    /// Returns the number of deliveries in line by target.
    pub async fn pending(&self) -> Result<Vec<(String, u64)>, Error> {
        Ok(self.store.clone().hgetall(&self.keys.pending).await?)
    }

    /// Returns the attempts in the log, newest first.
    pub async fn log(&self) -> Result<Vec<LoggedAttempt>, Error> {
        let entries: Vec<String> = self.store.clone().lrange(&self.keys.log, 0, -1).await?;
        Ok(entries.iter().filter_map(|entry| serde_json::from_str(entry).ok()).collect())
    }

    /// Returns the dead letters, newest first.
    pub async fn dead(&self) -> Result<Vec<Delivery>, Error> {
        let mut store = self.store.clone();
        let ids: Vec<String> = store.zrevrange(&self.keys.dead, 0, -1).await?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let found: Vec<Option<String>> = redis::cmd("HMGET")
            .arg(&self.keys.deliveries)
            .arg(&ids)
            .query_async(&mut store)
            .await?;
        Ok(found.iter().flatten().filter_map(|text| serde_json::from_str(text).ok()).collect())
    }

    /// Puts a dead letter back in line, with all its attempts before it. `false` when it is no dead
    /// letter, or not any more.
    pub async fn resend(&self, id: &str) -> Result<bool, Error> {
        let found: Option<String> = self.store.clone().hget(&self.keys.deliveries, id).await?;
        let Some(found) = found else { return Ok(false) };
        let mut delivery: Delivery = serde_json::from_str(&found).map_err(unreadable)?;
        delivery.attempts = 0;
        let lane = delivery.lane();
        let (reply,): (String,) = webhook_resend::run(
            &self.store,
            webhook_resend::Keys {
                due: &self.keys.due,
                lane: (self.keys.lane)(&lane),
                deliveries: &self.keys.deliveries,
                pending: &self.keys.pending,
                dead: &self.keys.dead,
            },
            webhook_resend::Args {
                now_ms: self.store.now(),
                member: &lane,
                target: &delivery.target,
                id,
                delivery: json(&delivery)?,
            },
        )
        .await?;
        Ok(reply == "queued")
    }

    /// Returns the place up to which a reader of events has told them.
    pub async fn cursor(&self, reader: &str) -> Result<Option<String>, Error> {
        Ok(self.store.clone().hget(&self.keys.cursors, reader).await?)
    }

    /// Keeps the place of a reader.
    pub async fn set_cursor(&self, reader: &str, place: &str) -> Result<(), Error> {
        let () = self.store.clone().hset(&self.keys.cursors, reader, place).await?;
        Ok(())
    }

    /// Returns the alarms that are raised, and since when.
    pub async fn alarms(&self) -> Result<Vec<(String, i64)>, Error> {
        Ok(self.store.clone().hgetall(&self.keys.alarms).await?)
    }
}

/// Names the lane of a target and a subject: a target's id holds no space, and of a subject everything
/// but letters, digits and a few signs is spelled as `%XX`.
fn lane(target: &str, subject: &str) -> String {
    let mut name = format!("{target} ");
    for byte in subject.bytes().take(200) {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => {
                name.push(char::from(byte));
            }
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}

/// Returns the wait after so many attempts, spread by a fifth in either direction.
fn retry_wait(attempts: u32, chance: f64) -> Duration {
    let at = usize::try_from(attempts.saturating_sub(1)).unwrap_or(usize::MAX);
    let wait = WAITS_S.get(at).or(WAITS_S.last()).copied().unwrap_or(60);
    Duration::from_secs(wait).mul_f64(0.8 + 0.4 * chance.clamp(0.0, 1.0))
}

fn json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(unreadable)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unreadable(error: serde_json::Error) -> Error {
    Error::Decode { message: format!("a delivery is not JSON: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_are_spread() {
        assert_eq!(retry_wait(1, 0.5), Duration::from_secs(5));
        assert_eq!(retry_wait(1, 0.0), Duration::from_secs(4));
        assert_eq!(retry_wait(9, 0.5), Duration::from_secs(86_400));
        assert_eq!(retry_wait(99, 1.0), Duration::from_secs_f64(86_400.0 * 1.2));
    }

    #[test]
    fn a_lane_is_named_by_target_and_subject() {
        assert_eq!(lane("wh_1", "queue/sale"), "wh_1 queue/sale");
        assert_eq!(lane("wh_1", "a b:{c}"), "wh_1 a%20b%3A%7Bc%7D");
    }
}
