//! `tidegate store serve` of one's own: the built-in store of the shipped program, over RESP.

use std::process::{Child, Command, Stdio};

use crate::process::{command, text};

pub(crate) struct Served {
    child: Child,
    /// Its port on loopback.
    pub(crate) port: u16,
    /// Its working directory.
    _folder: tempfile::TempDir,
}

impl Served {
    /// Starts on a free port with an empty keyspace in memory, and waits until it listens.
    pub(crate) fn start() -> Served {
        Served::start_with(&[])
    }

    /// Starts with more arguments, such as `["--set", "store.max_memory=64mb"]`.
    pub(crate) fn start_with(args: &[&str]) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(
            folder.path(),
            &["store", "serve", "--store", "embedded:", "--listen", "127.0.0.1:0"],
        );
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let child = command.args(args).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        // It says on standard error where it listens.
        let port = testkit::until_blocking("the store tells its port", || {
            let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
            let line = log.lines().find(|line| line.contains("redis://"))?;
            line.trim().rsplit(':').next()?.trim_end_matches('/').parse().ok()
        });
        Served { child, port, _folder: folder }
    }

    /// Runs redis-cli with arguments and returns its output.
    #[track_caller]
    pub(crate) fn cli(&self, args: &[&str]) -> String {
        let output =
            Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(args).output();
        let output = output.unwrap_or_else(|error| {
            panic!("redis-cli cannot be started, install redis-tools: {error}")
        });
        text(&output.stdout)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
