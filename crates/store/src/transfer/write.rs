//! Writing commands to a store, many at a time.

use redis::{Cmd, Pipeline, Value, aio::ConnectionLike as _};

use super::{Argv, invalid};
use crate::{Error, Store};

/// Commands, and bytes of them, that are sent together.
const COMMANDS: usize = 512;
const BYTES: usize = 1 << 20;

/// Collects commands and sends them. What was added is written when [`KeyWriter::flush`] returned.
pub(crate) struct KeyWriter {
    store: Store,
    pipe: Pipeline,
    bytes: usize,
}

impl KeyWriter {
    pub(crate) fn new(store: &Store) -> Self {
        Self { store: store.clone(), pipe: Pipeline::new(), bytes: 0 }
    }

    pub(crate) async fn add(&mut self, argv: &Argv) -> Result<(), Error> {
        let mut cmd = Cmd::new();
        argv.iter().for_each(|word| _ = cmd.arg(word));
        self.bytes += argv.iter().map(|word| word.len() + 8).sum::<usize>();
        self.pipe.add_command(cmd);
        if self.pipe.len() >= COMMANDS || self.bytes >= BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Deletes keys, each by a command of its own: in a cluster they are on several servers.
    pub(crate) async fn delete(&mut self, keys: &[Vec<u8>]) -> Result<(), Error> {
        for key in keys {
            self.add(&vec![b"UNLINK".to_vec(), key.clone()]).await?;
        }
        Ok(())
    }

    pub(crate) async fn flush(&mut self) -> Result<(), Error> {
        if self.pipe.is_empty() {
            return Ok(());
        }
        let pipe = std::mem::take(&mut self.pipe);
        self.bytes = 0;
        let replies = self.store.req_packed_commands(&pipe, 0, pipe.len()).await?;
        for (cmd, reply) in pipe.cmd_iter().zip(replies) {
            if let Value::ServerError(error) = reply {
                let name = cmd.args_iter().next().map(|arg| match arg {
                    redis::Arg::Simple(name) => String::from_utf8_lossy(name).into_owned(),
                    _ => String::new(),
                });
                return Err(refusal(&name.unwrap_or_default(), error.into()));
            }
        }
        Ok(())
    }

    /// Forgets what was added and not written.
    pub(crate) fn clear(&mut self) {
        self.pipe = Pipeline::new();
        self.bytes = 0;
    }
}

fn refusal(name: &str, error: redis::RedisError) -> Error {
    match Error::from(error) {
        Error::Refused(error) if name == "HPEXPIREAT" => invalid(format!(
            "the target does not know fields of hashes that expire ({error}): Redis 7.4, Valkey 9 or \
             later is needed"
        )),
        Error::Refused(error) => invalid(format!("the target refused {name}: {error}")),
        other => other,
    }
}
