//! Speaking to other servers for MIGRATE. Under the lock: everybody waits, as in Redis.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    time::Duration,
};

use engine::{Engine, Migration, MigrationOutcome};

/// No answer is longer than this.
const LINE: u64 = 64 << 10;

/// Lets the engine speak to other servers.
pub(super) fn allow(engine: &mut Engine) {
    engine.on_migrate(|migration| {
        let stream = connect(migration.host, migration.port, migration.timeout);
        match stream {
            Ok(stream) => exchange(stream, migration),
            Err(error) => {
                tracing::warn!(%error, host = migration.host, "keys cannot be migrated");
                match error.kind() {
                    // In the words of Redis this is found out when it writes.
                    io::ErrorKind::ConnectionRefused => MigrationOutcome::Unsent,
                    _ => MigrationOutcome::Unreachable,
                }
            }
        }
    });
}

fn connect(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn exchange(mut stream: TcpStream, migration: &Migration<'_>) -> MigrationOutcome {
    // The answers are short, so none is in the way of what is sent.
    if stream.write_all(migration.commands).is_err() {
        return MigrationOutcome::Unsent;
    }
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    while lines.len() < migration.count {
        let mut line = Vec::new();
        match reader.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\r\n") => {
                line.truncate(line.len() - 2);
                lines.push(line);
            }
            _ => break,
        }
    }
    MigrationOutcome::Answered(lines)
}
