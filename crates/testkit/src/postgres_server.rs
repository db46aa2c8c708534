//! A real Postgres for one test, and archives for tests of the chat.
//!
//! Postgres refuses to run as root, so root hands it over to the user `postgres` or `nobody`.

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use crate::{
    process::{self, Process},
    wait::until_now,
};

/// A Postgres process on a free loopback port with an empty database. Killed on drop.
#[derive(Debug)]
pub struct PostgresServer {
    _process: Process,
    port: u16,
    _folder: TempDir,
}

impl PostgresServer {
    /// Starts a server. Panics with how to get one when there is none.
    pub fn start() -> Self {
        match Self::try_start() {
            Ok(server) => server,
            Err(error) => panic!("{error:#}"),
        }
    }

    fn try_start() -> anyhow::Result<Self> {
        let programs = programs()?;
        let user = other_user();
        let mut last = None;
        // Another process may take the port between choosing and using it.
        for _ in 0..5 {
            match Self::launch(&programs, user) {
                Ok(server) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no attempt was made")))
            .context("Postgres did not start in five attempts")
    }

    fn launch(programs: &Path, user: Option<&str>) -> anyhow::Result<Self> {
        let (folder, port) = (tempfile::tempdir()?, crate::reserve_port());
        if let Some(user) = user {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
            let status = Command::new("chown").arg(user).arg(folder.path()).status()?;
            ensure!(status.success(), "cannot hand a folder over to {user}");
        }
        let data = folder.path().join("data");
        let mut init = command(&programs.join("initdb"), user);
        init.args([
            "--auth=trust",
            "--username=tidegate",
            "--no-sync",
            "-E",
            "UTF8",
            "--no-locale",
            "-D",
        ]);
        let made = init.arg(&data).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
        if !made.status.success() {
            bail!("initdb failed: {}", String::from_utf8_lossy(&made.stderr));
        }
        let log = folder.path().join("log");
        let server = programs.join("postgres");
        let mut words: Vec<String> = Vec::new();
        if let Some(user) = user {
            words.extend(["-u".to_owned(), user.to_owned(), "--".to_owned()]);
            words.push(server.display().to_string());
        }
        words.extend([
            "-D".to_owned(),
            data.display().to_string(),
            "-p".to_owned(),
            port.to_string(),
        ]);
        words.extend(["-k".to_owned(), folder.path().display().to_string()]);
        for setting in ["listen_addresses=127.0.0.1", "fsync=off", "max_connections=100"] {
            words.extend(["-c".to_owned(), setting.to_owned()]);
        }
        let program = if user.is_some() { PathBuf::from("runuser") } else { server };
        let process = Process::start(program.as_os_str(), words, &log)?;
        until_now("Postgres listens", || {
            ensure!(process.runs(), "Postgres ended:\n{}", process::tail(&log));
            let is_ready = process::tail(&log).contains("ready to accept connections");
            Ok((is_ready && TcpStream::connect(("127.0.0.1", port)).is_ok()).then_some(()))
        })?;
        Ok(Self { _process: process, port, _folder: folder })
    }

    /// Returns the URL of its database.
    pub fn url(&self) -> String {
        format!("postgres://tidegate@127.0.0.1:{}/postgres", self.port)
    }
}

/// The folder of Postgres's programs: Debian keeps them out of the `PATH`.
fn programs() -> anyhow::Result<PathBuf> {
    for version in (13..=18).rev() {
        let folder = PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"));
        if folder.join("postgres").exists() {
            return Ok(folder);
        }
    }
    bail!("no Postgres: apt-get install postgresql, or leave it out with ARCHIVES=sqlite")
}

/// The user to run as, for root.
fn other_user() -> Option<&'static str> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt;
        own.uid() == 0
    });
    is_root.then(|| {
        let known = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let has_own = known.lines().any(|line| line.starts_with("postgres:"));
        if has_own { "postgres" } else { "nobody" }
    })
}

fn command(program: &Path, user: Option<&str>) -> Command {
    match user {
        None => Command::new(program),
        Some(user) => {
            let mut command = Command::new("runuser");
            command.args(["-u", user, "--"]).arg(program).current_dir("/");
            command
        }
    }
}

/// Place of an archive for one test.
#[derive(Debug)]
pub struct TestArchive {
    place: String,
    folder: TempDir,
    _server: Option<PostgresServer>,
}

impl TestArchive {
    /// A SQLite file.
    pub fn sqlite() -> Self {
        let folder = temp_folder();
        let place = folder.path().join("desk.sqlite3").display().to_string();
        Self { place, folder, _server: None }
    }

    /// A Postgres database.
    pub fn postgres() -> Self {
        let server = PostgresServer::start();
        Self { place: server.url(), folder: temp_folder(), _server: Some(server) }
    }

    /// Returns the place, as the setting `desk.archive` has it.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns a folder for files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn temp_folder() -> TempDir {
    match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => panic!("no folder: {error}"),
    }
}

/// Is this archive left out on purpose, by the variable `ARCHIVES`?
#[doc(hidden)]
pub fn is_left_out(archive: &str) -> bool {
    match std::env::var("ARCHIVES").as_deref() {
        Err(_) | Ok("") => false,
        Ok(named) => !named.split(',').any(|name| name.trim() == archive),
    }
}

/// Writes a test once and runs it on the built-in store in both layouts and on Redis with SQLite, and on
/// Redis with Postgres.
#[macro_export]
macro_rules! each_archive {
    ($($(#[$meta:meta])* async fn $name:ident($t:ident: TestStore, $a:ident: TestArchive) $body:block)*) => {
        $(
            $(#[$meta])*
            mod $name {
                #[allow(unused_imports)]
                use super::*;
                #[allow(unused_imports)]
                use $crate::{TestArchive, TestStore};

                #[test]
                fn on_embedded_and_sqlite() {
                    $crate::each_store::on_embedded(|t| test(t, TestArchive::sqlite()));
                }

                #[test]
                fn in_cluster_layout_and_sqlite() {
                    $crate::each_store::in_cluster_layout(|t| test(t, TestArchive::sqlite()));
                }

                #[test]
                fn on_redis_and_sqlite() {
                    $crate::each_store::on_redis(|t| test(t, TestArchive::sqlite()));
                }

                #[test]
                fn on_redis_and_postgres() {
                    if !$crate::is_left_out("postgres") {
                        $crate::each_store::on_redis(|t| test(t, TestArchive::postgres()));
                    }
                }

                async fn test($t: TestStore, $a: TestArchive) $body
            }
        )*
    };
}
