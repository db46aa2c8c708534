//! Listing places and sessions for operators, a page at a time.

use futures_util::{StreamExt, TryStreamExt, stream};
use store::{Key, redis};

use crate::{Error, Place, PositionId, QueueId, Room, Session, SessionId};

/// The most entries of one page.
pub const PAGE: usize = 500;

/// Which places are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// Those who wait, in the order of the line.
    #[default]
    Waiting,
    /// Those who may come in and have not, the most urgent first.
    Admitted,
}

impl Room {
    /// Places of a queue from an index on, [`PAGE`] at most.
    pub async fn places(
        &self,
        queue: &QueueId,
        which: Which,
        from: usize,
        count: usize,
    ) -> Result<Vec<Place>, Error> {
        self.pulse(queue).await?;
        let keys = self.known(queue);
        let key = match which {
            Which::Waiting => &keys.positions,
            Which::Admitted => &keys.claims,
        };
        let ids = self.page(key, from, count).await?;
        let ids: Vec<PositionId> = ids.iter().filter_map(|id| PositionId::parse(id).ok()).collect();
        let places = stream::iter(ids)
            .map(|id| async move {
                match self.status(queue, &id).await {
                    Ok(place) => Ok(Some(place)),
                    // Gone between the list and the look.
                    Err(Error::UnknownPosition) => Ok(None),
                    Err(error) => Err(error),
                }
            })
            .buffered(32)
            .try_filter_map(|place| async move { Ok::<_, Error>(place) })
            .try_collect()
            .await?;
        Ok(places)
    }

    /// Running sessions of a queue from an index on, [`PAGE`] at most, the next to end first.
    pub async fn sessions(
        &self,
        queue: &QueueId,
        from: usize,
        count: usize,
    ) -> Result<Vec<Session>, Error> {
        self.pulse(queue).await?;
        let keys = self.known(queue);
        let ids = self.page(&keys.deadlines, from, count).await?;
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
        Ok(sessions)
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
