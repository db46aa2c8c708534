//! Deletes single answers, on every instance.

use super::Resolver;
use crate::{Error, name::Question};

impl Resolver {
    /// Deletes the answers of a question from the store and from the memory of every instance. Returns
    /// true if the store had any. An instance that misses the message keeps its copy until it expires.
    pub async fn delete_answer(&self, question: &Question) -> Result<bool, Error> {
        let known = self.0.l1.get(question, self.now()).await?;
        self.0.l1.delete(question).await?;
        self.drop_from_memory(question);
        self.0.l1.announce_delete(question).await?;
        Ok(known.plain.is_some() || known.signed.is_some())
    }
}
