//! Sessions on the protected site: activity and end.

use std::collections::HashMap;

use store::{Millis, redis};

use crate::{
    EndReason, Error, PositionId, QueueId, Room, SessionId, VisitorPriority, hour,
    invite::check_user_id, reply::Reply, scripts,
};

/// Status of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// Active.
    Active,
    /// Expired.
    Expired,
    /// Ended by the visitor, an operator, or the protected site.
    Terminated,
}

impl SessionStatus {
    /// Returns the stored name, which is also the API's.
    pub fn as_str(self) -> &'static str {
        match self {
            SessionStatus::Active => "active",
            SessionStatus::Expired => "expired",
            SessionStatus::Terminated => "terminated",
        }
    }

    fn read(text: &str) -> Option<Self> {
        [SessionStatus::Active, SessionStatus::Expired, SessionStatus::Terminated]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

/// A session on the protected site.
#[derive(Clone, Debug, PartialEq)]
pub struct VisitorSession {
    /// Its id, which is also the id (`jti`) of its pass.
    pub id: SessionId,
    /// Its queue.
    pub queue: QueueId,
    /// Its position.
    pub position: PositionId,
    /// The visitor's id on the protected site; may be empty.
    pub user_id: String,
    /// Its status.
    pub status: SessionStatus,
    /// Reason for which it ended.
    pub reason: Option<EndReason>,
    /// Time of the start, in whole seconds.
    pub started: Millis,
    /// Time at which it ends without further activity.
    pub expires: Millis,
    /// Hard limit: time at which it ends regardless of activity.
    pub hard_until: Millis,
    /// Time of the last activity, in whole seconds.
    pub last_activity: Millis,
    /// Number of page views.
    pub page_views: u64,
    /// The visitor's priority.
    pub priority: VisitorPriority,
    /// SHA-256 of the pass signed when the session started, as `sha256:` and 64 hexadecimal digits. The
    /// pass itself is nowhere in the store.
    pub token: String,
}

/// Way to end a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The visitor completed it.
    Complete,
    /// An operator revokes it, and its pass.
    Revoke,
    /// The protected site revokes it, and its pass.
    OriginRevoke,
    /// The queue is reset; its pass is revoked.
    Reset,
}

impl Room {
    /// Returns a session.
    pub async fn session(&self, queue: &QueueId, id: &SessionId) -> Result<VisitorSession, Error> {
        let keys = self.queue_cache(queue);
        let (fields, runs, until): (HashMap<String, String>, bool, Option<f64>) = redis::pipe()
            .hgetall(keys.session(id))
            .sismember(&keys.active, id.to_string())
            .zscore(&keys.deadlines, id.to_string())
            .query_async(&mut self.0.store.clone())
            .await?;
        read_session(queue, id, &fields, runs, until).ok_or(Error::UnknownSession)
    }

    /// Returns the queue of a session. In the cluster layout each queue is asked.
    pub async fn queue_of_session(&self, id: &SessionId) -> Result<QueueId, Error> {
        let mut store = self.0.store.clone();
        for queue in self.queue_ids().await? {
            let keys = self.queue_cache(&queue);
            let found: Option<String> = redis::cmd("HGET")
                .arg(keys.session(id))
                .arg("queue_id")
                .query_async(&mut store)
                .await?;
            match found.as_deref().map(QueueId::parse) {
                Some(Ok(found)) => return Ok(found),
                _ if self.0.store.layout() == store::Layout::Standalone => break,
                _ => {}
            }
        }
        Err(Error::UnknownSession)
    }

    /// Records activity, which renews the session up to its hard limit, unless the queue does not renew
    /// sessions. `page_views` are added. A session that ended stays ended.
    pub async fn activity(
        &self,
        queue: &QueueId,
        id: &SessionId,
        page_views: u32,
    ) -> Result<VisitorSession, Error> {
        self.touch(queue, id, page_views, None).await?;
        self.session(queue, id).await
    }

    /// Completes a session for its visitor and frees the slot. Idempotent.
    pub async fn complete(&self, queue: &QueueId, id: &SessionId) -> Result<VisitorSession, Error> {
        self.end_session(queue, id, SessionEnd::Complete).await
    }

    /// Revokes a session and its pass.
    pub async fn terminate(
        &self,
        queue: &QueueId,
        id: &SessionId,
    ) -> Result<VisitorSession, Error> {
        self.terminate_for(queue, id, "").await
    }

    /// Like [`Room::terminate`], with the operator's own word for the reason, which is stored in the
    /// revocation and the event: up to 64 letters, digits and `_`; may be empty.
    pub async fn terminate_for(
        &self,
        queue: &QueueId,
        id: &SessionId,
        detail: &str,
    ) -> Result<VisitorSession, Error> {
        check_reason(detail)?;
        self.end_session_with(queue, id, SessionEnd::Revoke, detail).await
    }

    /// Sets the id the visitor has on the protected site: up to 200 characters. Only for operators and
    /// programs they trust; a visitor could name anybody.
    pub async fn set_user(
        &self,
        queue: &QueueId,
        id: &SessionId,
        user_id: &str,
    ) -> Result<VisitorSession, Error> {
        check_user_id(user_id)?;
        let session = self.session(queue, id).await?;
        self.remember_user(queue, user_id, &session.position).await?;
        redis::cmd("HSET")
            .arg(self.queue_cache(queue).session(id))
            .arg("user_id")
            .arg(user_id)
            .query_async::<()>(&mut self.0.store.clone())
            .await?;
        self.session(queue, id).await
    }

    /// Ends a session. One that had ended before keeps its reason.
    pub async fn end_session(
        &self,
        queue: &QueueId,
        id: &SessionId,
        end: SessionEnd,
    ) -> Result<VisitorSession, Error> {
        self.end_session_with(queue, id, end, "").await
    }

    pub(crate) async fn end_session_with(
        &self,
        queue: &QueueId,
        id: &SessionId,
        end: SessionEnd,
        detail: &str,
    ) -> Result<VisitorSession, Error> {
        let keys = self.queue_cache(queue);
        let before = self.session(queue, id).await;
        let position = match &before {
            Ok(session) => keys.position(&session.position),
            // The record is gone: only the indexes are left to clean up.
            Err(Error::UnknownSession) => keys.session(id),
            Err(_) => return before,
        };
        let (position_status, reason, event, counter, void) = match end {
            SessionEnd::Complete => {
                ("completed", EndReason::Completed, "session.completed", "total_completed", false)
            }
            SessionEnd::Revoke => {
                ("expired", EndReason::AdminRevoked, "session.terminated", "total_terminated", true)
            }
            SessionEnd::OriginRevoke => (
                "expired",
                EndReason::OriginRevoked,
                "session.terminated",
                "total_terminated",
                true,
            ),
            SessionEnd::Reset => {
                ("expired", EndReason::QueueReset, "session.terminated", "total_terminated", true)
            }
        };
        let now = self.now();
        let reply = scripts::end_session::run(
            &self.0.store,
            scripts::end_session::Keys {
                meta: &keys.meta,
                state: &keys.state,
                active: &keys.active,
                deadlines: &keys.deadlines,
                stats: keys.stats(&hour(now)),
                events: &keys.events,
                session: keys.session(id),
                position,
                revocation: keys.revocation(&id.to_string()),
            },
            scripts::end_session::Args {
                now_ms: now,
                session_id: id.to_string(),
                session_status: SessionStatus::Terminated.as_str(),
                position_status,
                reason: reason.as_str(),
                event,
                counter,
                void: u8::from(void),
                detail,
            },
        )
        .await?;
        self.0.passes.session_ended(id);
        let reply = Reply::of(scripts::end_session::SCRIPT, reply)?;
        match reply.word() {
            "ended" | "over" => match self.session(queue, id).await {
                Err(Error::UnknownSession) if before.is_ok() => before,
                after => after,
            },
            "unknown" => Err(Error::UnknownSession),
            _ => Err(reply.unexpected()),
        }
    }
}

/// Rejects an operator's reason that is not one plain word.
pub(crate) fn check_reason(reason: &str) -> Result<(), Error> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if reason.len() > 64 || !reason.chars().all(good) {
        return Err(Error::invalid(
            "reason",
            "up to 64 letters, digits and _, such as abuse_detected",
        ));
    }
    Ok(())
}

fn read_session(
    queue: &QueueId,
    id: &SessionId,
    fields: &HashMap<String, String>,
    runs: bool,
    until: Option<f64>,
) -> Option<VisitorSession> {
    let number = |name: &str| fields.get(name)?.parse::<i64>().ok();
    let seconds = |name: &str| number(name).map(|s| Millis(s * 1000));
    if fields.get("queue_id")? != queue.as_str() {
        return None;
    }
    let stored = SessionStatus::read(fields.get("status")?)?;
    Some(VisitorSession {
        id: *id,
        queue: queue.clone(),
        position: PositionId::parse(fields.get("position_id")?).ok()?,
        user_id: fields.get("user_id").cloned().unwrap_or_default(),
        status: if runs || stored != SessionStatus::Active {
            stored
        } else {
            SessionStatus::Expired
        },
        reason: fields.get("reason").and_then(|reason| EndReason::read(reason)),
        started: seconds("started_at")?,
        expires: match until {
            Some(ms) => Millis(ms as i64),
            None => seconds("expires_at")?,
        },
        hard_until: Millis(number("hard_until_ms")?),
        last_activity: seconds("last_activity")?,
        page_views: number("page_views").and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
        priority: number("priority")
            .and_then(|n| VisitorPriority::parse(u8::try_from(n).ok()?).ok())
            .unwrap_or_default(),
        token: fields.get("token").cloned().unwrap_or_default(),
    })
}
