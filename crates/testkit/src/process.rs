//! Child processes that cannot outlive the test.
//!
//! A server runs under a small shell that waits on a pipe from this process. When the pipe closes,
//! because the guard was dropped or because the test was killed outright, the shell kills the
//! server. So no crash of a test leaves a server behind.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context, bail};

/// Starts `$1` with the rest as arguments, tells its process id, and kills it when standard input
/// ends.
const WATCH: &str = r#""$@" >>"$LOG" 2>&1 </dev/null & pid=$!; echo "$pid"; exec 1>&-; cat >/dev/null; kill -9 "$pid"; wait "$pid" 2>/dev/null"#;

/// A running program. Dropping it kills the program and waits for its end.
#[derive(Debug)]
pub(crate) struct Process {
    shell: Child,
    pipe: Option<ChildStdin>,
    pid: u32,
}

impl Process {
    pub(crate) fn start<S: AsRef<OsStr>>(
        program: &OsStr,
        args: impl IntoIterator<Item = S>,
        log: &Path,
    ) -> anyhow::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", WATCH, "sh"])
            .arg(program)
            .args(args)
            .env("LOG", log)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start sh")?;
        let pipe = shell.stdin.take();
        let stdout = shell.stdout.take().context("the shell has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let pid = line.trim().parse().with_context(|| format!("not a process id: {line:?}"))?;
        Ok(Self { shell, pipe, pid })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Does the program still run?
    pub(crate) fn runs(&self) -> bool {
        // A process that ended but was not waited for is a zombie; its state says so.
        fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z"))
    }

    /// Sends a signal, such as `STOP` or `CONT`.
    pub(crate) fn signal(&self, name: &str) -> anyhow::Result<()> {
        let status =
            Command::new("kill").arg(format!("-{name}")).arg(self.pid.to_string()).status()?;
        if !status.success() {
            bail!("cannot send {name} to process {}", self.pid);
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // The shell ends once the pipe is closed; an error means that it already has.
        let _ = self.shell.wait();
    }
}

/// The last lines of a log, for a failure text.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
