//! Lists of positions and sessions for operators, one page at a time.

use futures_util::{StreamExt, TryStreamExt, stream};
use store::{Key, redis};

use crate::{Error, Position, PositionId, QueueId, Room, SessionId, VisitorSession};

/// The most entries of one page.
pub const PAGE: usize = 1_000;

/// The list of positions to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PositionList {
    /// Waiting positions, in the order of the queue.
    #[default]
    Waiting,
    /// Admitted positions whose session has not started, the next to expire first.
    Admitted,
}

impl Room {
    /// Returns positions of a queue from an index on, at most [`PAGE`].
    pub async fn positions(
        &self,
        queue: &QueueId,
        list: PositionList,
        from: usize,
        count: usize,
    ) -> Result<Vec<Position>, Error> {
        Ok(self.positions_page(queue, list, from, count).await?.0)
    }

    /// Like [`Room::positions`]; also returns whether there may be more. A page can be shorter than
    /// `count` before the end: positions that end between two reads are left out.
    pub async fn positions_page(
        &self,
        queue: &QueueId,
        list: PositionList,
        from: usize,
        count: usize,
    ) -> Result<(Vec<Position>, bool), Error> {
        self.snapshot(queue).await?;
        let keys = self.queue_cache(queue);
        let key = match list {
            PositionList::Waiting => &keys.positions,
            PositionList::Admitted => &keys.admitted,
        };
        let ids = self.page(key, from, count).await?;
        let more = ids.len() >= count.clamp(1, PAGE);
        let ids: Vec<PositionId> = ids.iter().filter_map(|id| PositionId::parse(id).ok()).collect();
        let positions = stream::iter(ids)
            .map(|id| async move {
                match self.status(queue, &id).await {
                    Ok(position) => Ok(Some(position)),
                    // It ended between the two reads.
                    Err(Error::UnknownPosition) => Ok(None),
                    Err(error) => Err(error),
                }
            })
            .buffered(32)
            .try_filter_map(|position| async move { Ok::<_, Error>(position) })
            .try_collect()
            .await?;
        Ok((positions, more))
    }

    /// Returns active sessions of a queue from an index on, at most [`PAGE`], the next to end first.
    pub async fn sessions(
        &self,
        queue: &QueueId,
        from: usize,
        count: usize,
    ) -> Result<Vec<VisitorSession>, Error> {
        Ok(self.sessions_page(queue, from, count).await?.0)
    }

    /// Like [`Room::sessions`]; also returns whether there may be more.
    pub async fn sessions_page(
        &self,
        queue: &QueueId,
        from: usize,
        count: usize,
    ) -> Result<(Vec<VisitorSession>, bool), Error> {
        self.snapshot(queue).await?;
        let keys = self.queue_cache(queue);
        let ids = self.page(&keys.deadlines, from, count).await?;
        let more = ids.len() >= count.clamp(1, PAGE);
        let ids: Vec<SessionId> = ids.iter().filter_map(|id| SessionId::parse(id).ok()).collect();
        let sessions = stream::iter(ids)
            .map(|id| async move {
                match self.session(queue, &id).await {
                    Ok(session) => Ok(Some(session)),
                    Err(Error::UnknownSession) => Ok(None),
                    Err(error) => Err(error),
                }
            })
            .buffered(32)
            .try_filter_map(|session| async move { Ok::<_, Error>(session) })
            .try_collect()
            .await?;
        Ok((sessions, more))
    }

    async fn page(&self, key: &Key, from: usize, count: usize) -> Result<Vec<String>, Error> {
        let count = count.clamp(1, PAGE);
        Ok(redis::cmd("ZRANGE")
            .arg(key)
            .arg(from)
            .arg(from.saturating_add(count - 1))
            .query_async(&mut self.0.store.clone())
            .await?)
    }
}
