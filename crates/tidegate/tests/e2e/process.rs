//! A tidegate of one's own: started on a free port in an empty folder, ended on drop.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{LazyLock, Mutex};

use crate::wait::{LONG, until};

/// The archive of the first instance on a shared store.
static ARCHIVES: LazyLock<Mutex<HashMap<String, PathBuf>>> = LazyLock::new(Mutex::default);

static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(named) = std::env::var_os("TIDEGATE_BINARY") {
        return named.into();
    }
    // Cargo's own binary for this test is of the test's profile: target/debug/tidegate.
    let target = Path::new(env!("CARGO_BIN_EXE_tidegate")).ancestors().nth(2).unwrap();
    let release = target.join("release/tidegate");
    assert!(
        release.exists(),
        "these tests start the program that ships: run `cargo build --release` first (./test does)"
    );
    release
});

/// Returns the program under test: the release build, the file a user gets. `TIDEGATE_BINARY`
/// names another one, for trying a change without waiting for a release build.
pub(crate) fn binary() -> &'static Path {
    &BINARY
}

pub(crate) struct Tidegate {
    child: Child,
    /// Folder it was started in.
    pub(crate) folder: tempfile::TempDir,
    /// What it printed until it was ready.
    pub(crate) banner: String,
    /// Base URL.
    pub(crate) base: String,
}

/// A command in a folder, with none of our own settings in its environment.
pub(crate) fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(args).current_dir(folder);
    set_environment(&mut command);
    command
}

/// Leaves nothing in the environment but the path, and settings of the resolver that let many run at
/// once and keep queries on this machine. Flags come before them.
pub(crate) fn set_environment(command: &mut Command) {
    command.env_clear().env("PATH", std::env::var("PATH").unwrap());
    command.env("TIDEGATE_DNS_LISTEN", "127.0.0.1:0");
    command.env("TIDEGATE_DNS_UPSTREAMS", "127.0.0.1:9");
}

/// A command in a mount namespace of its own, after `before` has run there.
pub(crate) fn in_namespace(before: &str, command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    inside.args(["--map-root-user", "--mount", "sh", "-c"]);
    inside.arg(format!("{before} && exec \"$0\" \"$@\""));
    inside.arg(command.get_program()).args(command.get_args());
    inside
}

/// Runs a command to its end.
pub(crate) fn run(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Tidegate {
    /// Starts on a store and waits for the banner.
    pub(crate) fn start(store: &str, args: &[&str]) -> Tidegate {
        Tidegate::start_in(tempfile::tempdir().unwrap(), store, args)
    }

    /// Starts the guard of a site, on a store of its own.
    pub(crate) fn guard(args: &[&str]) -> Tidegate {
        Tidegate::guard_in(tempfile::tempdir().unwrap(), args)
    }

    pub(crate) fn guard_in(folder: tempfile::TempDir, args: &[&str]) -> Tidegate {
        let mut command = command(folder.path(), &["room", "guard", "--listen", "127.0.0.1:0"]);
        command.args(["--dashboard", "127.0.0.1:0", "--set", "resp.listen=off"]).args(args);
        Tidegate::spawn(folder, command)
    }

    pub(crate) fn start_in(folder: tempfile::TempDir, store: &str, args: &[&str]) -> Tidegate {
        let mut command = Tidegate::serving(folder.path(), &["serve", "--store", store], args);
        if store.starts_with("redis") {
            // Instances on one store share the secret that seals its keys.
            command.env("TIDEGATE_ROOM_SECRET", "5e".repeat(32));
            // And the archive of the desk: that of the first of them.
            let mut archives = ARCHIVES.lock().unwrap();
            let own = folder.path().join("tidegate-data/desk.sqlite3");
            let first = archives.entry(store.to_owned()).or_insert(own.clone());
            if *first != own {
                command.env("TIDEGATE_DESK_ARCHIVE", first);
            }
        }
        Tidegate::spawn(folder, command)
    }

    /// Starts the demo, with the token where others have it.
    pub(crate) fn demo() -> Tidegate {
        let folder = tempfile::tempdir().unwrap();
        Tidegate::launch(folder, &["demo", "--data", "tidegate-data"], &[])
    }

    /// Starts with a limit of open files.
    pub(crate) fn start_with_files(limit: u32, args: &[&str]) -> Tidegate {
        Tidegate::start_after(&format!("ulimit -n {limit}"), args)
    }

    /// Starts with a limit of open files that the process may raise.
    pub(crate) fn start_with_soft_files(limit: u32, args: &[&str]) -> Tidegate {
        Tidegate::start_after(&format!("ulimit -Sn {limit}"), args)
    }

    /// Starts from a shell that runs a line first.
    fn start_after(line: &str, args: &[&str]) -> Tidegate {
        let folder = tempfile::tempdir().unwrap();
        let plain = command(folder.path(), &["serve", "--store", "embedded:"]);
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("{line} && exec \"$0\" \"$@\"")]);
        limited.arg(plain.get_program()).args(plain.get_args()).current_dir(folder.path());
        limited.args(["--listen", "127.0.0.1:0", "--set", "resp.listen=127.0.0.1:0"]).args(args);
        set_environment(&mut limited);
        Tidegate::spawn(folder, limited)
    }

    /// Starts with the built-in store on a disk of its own, of so many bytes, at `disk` in its folder.
    /// Nobody else sees that disk: it is in a mount namespace of the process.
    pub(crate) fn start_on_disk(bytes: u64) -> Tidegate {
        Tidegate::start_on_disk_with(bytes, &[])
    }

    /// The same, with more arguments; everything it keeps is on that disk.
    pub(crate) fn start_on_disk_with(bytes: u64, args: &[&str]) -> Tidegate {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        std::fs::create_dir(&disk).unwrap();
        let store = format!("embedded:{}", disk.join("store").display());
        let plain = Tidegate::serving(folder.path(), &["serve", "--store", &store], args);
        let mut command =
            in_namespace(&format!("mount -t tmpfs -o size={bytes} none disk"), &plain);
        command.current_dir(folder.path());
        set_environment(&mut command);
        Tidegate::spawn(folder, command)
    }

    /// The disk of [`Tidegate::start_on_disk`], as this process reaches it.
    pub(crate) fn disk(&self) -> PathBuf {
        let inside = self.path().join("disk");
        let inside = inside.strip_prefix("/").unwrap();
        Path::new("/proc").join(self.child.id().to_string()).join("root").join(inside)
    }

    /// Mounts the disk of [`Tidegate::start_on_disk`] again, with these options.
    pub(crate) fn remount(&self, options: &str) {
        let status = Command::new("nsenter")
            .args(["--user", "--mount", "--preserve-credentials", "--target"])
            .arg(self.child.id().to_string())
            .args(["mount", "-o", &format!("remount,{options}")])
            .arg(self.path().join("disk"))
            .status();
        assert!(status.unwrap().success());
    }

    fn launch(folder: tempfile::TempDir, verb: &[&str], args: &[&str]) -> Tidegate {
        let command = Tidegate::serving(folder.path(), verb, args);
        Tidegate::spawn(folder, command)
    }

    fn serving(folder: &Path, verb: &[&str], args: &[&str]) -> Command {
        let mut command = command(folder, verb);
        command.args(["--listen", "127.0.0.1:0", "--set", "resp.listen=127.0.0.1:0"]).args(args);
        command
    }

    fn spawn(folder: tempfile::TempDir, mut command: Command) -> Tidegate {
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("Admin token") && lines.read_line(&mut banner).unwrap() > 0 {}
        // The line after the token, when it was made now, says where it is kept.
        if banner.contains("tg_admin_") {
            lines.read_line(&mut banner).unwrap();
        }
        let base = banner
            .lines()
            .find_map(|line| line.trim().strip_prefix("Dashboard"))
            .unwrap_or_else(|| panic!("did not start: {banner}{}", log_of(&folder)))
            .trim()
            .trim_end_matches('/')
            .to_owned();
        // Keep reading, so that a later print never meets a closed pipe.
        std::thread::spawn(move || {
            let mut rest = Vec::new();
            let _ = lines.read_to_end(&mut rest);
        });
        Tidegate { child, folder, banner, base }
    }

    /// Base URL visitors of a guarded site come to.
    pub(crate) fn guarded(&self) -> String {
        let line = self.banner.lines().find_map(|line| line.trim().strip_prefix("Guard")).unwrap();
        line.trim().split('/').take(3).collect::<Vec<_>>().join("/")
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn token(&self) -> String {
        let path = self.path().join("tidegate-data/admin-token");
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }

    pub(crate) fn log(&self) -> String {
        log_of(&self.folder)
    }

    /// A command of the same binary, in the same folder.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        run(self.path(), args)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Waits for the end of the process, which must come by itself.
    pub(crate) fn wait(&mut self) -> i32 {
        let folder = &self.folder;
        let ask = || self.child.try_wait().unwrap().ok_or_else(|| log_of(folder));
        let ended = until("the end of the process", LONG, ask, Result::is_ok);
        ended.ok().and_then(|status| status.code()).unwrap_or(-1)
    }

    /// Waits until the log says something.
    pub(crate) fn wait_for_log(&self, word: &str) {
        until(word, LONG, || self.log(), |log| log.contains(word));
    }

    /// Stops in order; the folder is left, for another one to start in.
    pub(crate) fn stop(mut self) -> tempfile::TempDir {
        self.signal("-TERM");
        assert_eq!(self.wait(), 0, "{}", self.log());
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }

    /// Asks a path of the API until the answer is as wanted.
    #[track_caller]
    pub(crate) fn until_json(
        &self,
        path: &str,
        wanted: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        until(path, LONG, || self.json(path), wanted)
    }

    /// What a path of the API answers, which must be well.
    pub(crate) fn json(&self, path: &str) -> serde_json::Value {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut answer = agent
            .get(format!("{}{path}", self.base))
            .header("authorization", format!("Bearer {}", self.token()))
            .call()
            .unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    }
}

fn log_of(folder: &tempfile::TempDir) -> String {
    std::fs::read_to_string(folder.path().join("log")).unwrap_or_default()
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
