//! The process between `jobs exec` and the command of one job.
//!
//! `jobs exec` starts this program once more for every job ([`start`] on its side, [`run`] on the
//! other), with a socket pair as standard input. The supervisor starts the command in a process group
//! of its own, adopts whatever the command leaves behind (`PR_SET_CHILD_SUBREAPER`, so that `setsid`
//! and double forks do not escape), and reports how the command ended once nothing of it runs any
//! more. The end of the socket is the end of `jobs exec`, by SIGKILL too: then everything is stopped.
//!
//! ```text
//! jobs exec ──socket──▶ one line of JSON (Order), the payload, then `T` (stop) or `K` (kill)
//!           ◀──socket── lines of JSON (Report): started, then exited, killed or refused
//!           ◀──pipes─── standard output and standard error, straight from the command
//! ```

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group, wait,
};
use serde::{Deserialize, Serialize};

/// The one argument that makes this program a supervisor.
pub(crate) const ARGUMENT: &str = "supervise-command";
/// Asks the supervisor to stop the command: SIGTERM, and SIGKILL after a while.
pub(super) const STOP: u8 = b'T';
/// Asks the supervisor to kill the command and all it started.
pub(super) const KILL: u8 = b'K';
/// Time that processes a command left behind may go on after it has exited; they may
/// still be writing the end of its output.
const LINGER: Duration = Duration::from_secs(2);
/// Time a process may survive SIGKILL (it belongs to another user) before it is left alone.
const UNKILLABLE: Duration = Duration::from_secs(10);

/// A command to run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SupervisorOrder {
    /// The program and its arguments.
    pub(super) command: Vec<String>,
    /// Number of payload bytes that follow this line.
    pub(super) payload_bytes: u64,
    /// Time between SIGTERM and SIGKILL.
    pub(super) kill_after_ms: u64,
    /// The same when `jobs exec` is gone: short enough to be over before the lease is.
    pub(super) orphan_kill_after_ms: u64,
}

/// News of a command.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SupervisorReport {
    /// It runs, as this process and the leader of the group of the same number.
    Started(i32),
    /// It ended with this code.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
    /// It could not be started: number and text of the system's error.
    Refused(Option<i32>, String),
}

/// Makes the socket for a supervisor, and the command that starts one on it.
pub(super) fn start() -> io::Result<(UnixStream, Command)> {
    let (ours, theirs) = UnixStream::pair()?;
    // Linux finds the program there even after an upgrade has replaced the file.
    let program = match cfg!(target_os = "linux") {
        true => "/proc/self/exe".into(),
        false => std::env::current_exe()?,
    };
    let mut command = Command::new(program);
    // A group of its own: Ctrl-C in a terminal is for `jobs exec` alone.
    command.arg(ARGUMENT).stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0);
    Ok((ours, command))
}

/// Supervises one command, as ordered over standard input.
pub(crate) fn run() -> ExitCode {
    match supervise() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Shown and logged as the command's own words, because this is its standard error.
            let _ = writeln!(io::stderr(), "cannot supervise the command: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug)]
enum SupervisorEvent {
    /// Stop the command, and kill it after this long.
    Stop(Duration),
    Kill,
    /// A process has ended: the command itself, or one it left behind.
    Reaped(Pid, WaitStatus),
    /// No process is left.
    Empty,
}

fn supervise() -> io::Result<()> {
    let _signals = outlive_signals()?;
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;

    let mut orders = BufReader::new(control.try_clone()?);
    let mut line = String::new();
    orders.read_line(&mut line)?;
    let order: SupervisorOrder = serde_json::from_str(&line)?;
    let mut payload = Vec::new();
    (&mut orders).take(order.payload_bytes).read_to_end(&mut payload)?;

    let mut words = order.command.iter();
    let mut command = Command::new(words.next().map(String::as_str).unwrap_or_default());
    command.args(words).stdin(Stdio::piped()).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            return report(
                &control,
                &SupervisorReport::Refused(error.raw_os_error(), error.to_string()),
            );
        }
    };
    let main = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let main = main.ok_or_else(|| io::Error::other("a process without a number"))?;
    // Who gave the order may be gone already; the thread that reads orders finds out.
    let _ = report(&control, &SupervisorReport::Started(main.as_raw_nonzero().get()));

    if let Some(mut stdin) = child.stdin.take() {
        thread::Builder::new().spawn(move || {
            // A command that does not read its input is free not to.
            let _ = stdin.write_all(&payload).and_then(|()| stdin.write_all(b"\n"));
        })?;
    }
    let (events, inbox) = mpsc::channel();
    thread::Builder::new().spawn({
        let events = events.clone();
        let stop = Duration::from_millis(order.kill_after_ms);
        let orphan = Duration::from_millis(order.orphan_kill_after_ms);
        move || read_orders(orders, stop, orphan, &events)
    })?;
    thread::Builder::new().spawn(move || reap(&events))?;

    let status = watch(main, &inbox);
    let told = match status {
        Some(status) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => SupervisorReport::Exited(code),
            (None, signal) => SupervisorReport::Killed(signal.unwrap_or(0)),
        },
        None => SupervisorReport::Killed(Signal::KILL.as_raw()),
    };
    // Nobody is there to read it when `jobs exec` is gone.
    let _ = report(&control, &told);
    let _ = control.shutdown(Shutdown::Both);
    Ok(())
}

/// Catches the signals that end a process politely: they are for the command, and for `jobs exec`,
/// which says when it is time. Caught rather than ignored, because what is ignored stays ignored in
/// the command.
fn outlive_signals() -> io::Result<tokio::runtime::Runtime> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    for signal_kind in
        [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()]
    {
        // The handler stays; nobody needs to hear of the signal.
        drop(signal(signal_kind)?);
    }
    drop(entered);
    Ok(runtime)
}

fn report(mut control: &UnixStream, report: &SupervisorReport) -> io::Result<()> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    control.write_all(line.as_bytes())
}

/// Passes orders on until whoever gives them is gone.
fn read_orders(
    mut orders: impl Read,
    stop: Duration,
    orphan: Duration,
    events: &Sender<SupervisorEvent>,
) {
    let mut byte = [0];
    loop {
        let event = match orders.read(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(1) if byte == [STOP] => SupervisorEvent::Stop(stop),
            Ok(1) if byte == [KILL] => SupervisorEvent::Kill,
            Ok(1) => continue,
            _ => {
                // The receiver is gone when the command is.
                let _ = events.send(SupervisorEvent::Stop(orphan));
                return;
            }
        };
        if events.send(event).is_err() {
            return;
        }
    }
}

/// Waits for every process that is ours: the command, and what it left behind.
fn reap(events: &Sender<SupervisorEvent>) {
    loop {
        let event = match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => SupervisorEvent::Reaped(pid, status),
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(_) => SupervisorEvent::Empty,
        };
        let last = matches!(event, SupervisorEvent::Empty);
        if events.send(event).is_err() || last {
            return;
        }
    }
}

/// Stops the command when told to, and its leftovers in any case. Returns once no process is left,
/// with the status of the command.
fn watch(main: Pid, inbox: &mpsc::Receiver<SupervisorEvent>) -> Option<WaitStatus> {
    let mut status = None;
    let mut kill_at: Option<Instant> = None;
    let mut killing: Option<Instant> = None;
    let earliest = |a: Option<Instant>, b: Instant| Some(a.map_or(b, |a| a.min(b)));
    loop {
        let event = match kill_at {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match event {
            Ok(SupervisorEvent::Stop(grace)) => {
                signal_all(main, status.is_none(), Signal::TERM);
                kill_at = earliest(kill_at, Instant::now() + grace);
            }
            Ok(SupervisorEvent::Kill) => kill_at = Some(Instant::now()),
            Ok(SupervisorEvent::Reaped(pid, ended)) if pid == main => {
                status = Some(ended);
                kill_at = earliest(kill_at, Instant::now() + LINGER);
            }
            Ok(SupervisorEvent::Reaped(..)) => {}
            Ok(SupervisorEvent::Empty) | Err(RecvTimeoutError::Disconnected) => return status,
            Err(RecvTimeoutError::Timeout) => {
                let since = *killing.get_or_insert_with(Instant::now);
                if since.elapsed() > UNKILLABLE {
                    return status;
                }
                signal_all(main, status.is_none(), Signal::KILL);
                // Again, for what was forked in between.
                let pause = (since.elapsed() / 2).max(Duration::from_millis(10));
                kill_at = Some(Instant::now() + pause);
            }
        }
    }
}

/// Signals the command's group and every other process that descends from this one.
fn signal_all(main: Pid, main_runs: bool, signal: Signal) {
    let others = descendants();
    // Each may have ended by itself meanwhile. The number of a group without its leader could be
    // somebody else's, so the group is signalled only as long as the leader has not been reaped, or
    // where descendants cannot be listed.
    if main_runs || others.is_none() {
        let _ = kill_process_group(main, signal);
    }
    for (pid, group) in others.unwrap_or_default() {
        if !main_runs || group != main.as_raw_nonzero().get() {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Lists the processes that descend from this one, with their groups; `None` without /proc.
fn descendants() -> Option<Vec<(Pid, i32)>> {
    let mut children: HashMap<i32, Vec<(i32, i32)>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // It may have ended since the folder was read.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some((parent, group)) = parent_and_group(&stat) {
            children.entry(parent).or_default().push((pid, group));
        }
    }
    let mut found = Vec::new();
    let mut open = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = open.pop() {
        for (pid, group) in children.remove(&parent).unwrap_or_default() {
            open.push(pid);
            found.extend(Pid::from_raw(pid).map(|pid| (pid, group)));
        }
    }
    Some(found)
}

/// Reads parent and process group from `/proc/PID/stat`: `pid (name) state parent group …`, where the
/// name may hold anything, parentheses and spaces too.
fn parent_and_group(stat: &str) -> Option<(i32, i32)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_hold_anything() {
        assert_eq!(parent_and_group("17 (a) S 9) R 4 5 6 0"), Some((4, 5)));
        assert_eq!(parent_and_group("17 (sh) S 1 17 17 0 -1"), Some((1, 17)));
        assert_eq!(parent_and_group("17 (sh"), None);
    }
}
