//! What the benchmarks share: contenders as processes on free loopback ports, and honest figures.
//!
//! A machine with few cores is noisy, so contenders take turns within one run and a result is the
//! median of the ratios of neighbouring turns, with the lowest and highest beside it.

pub mod plot;

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The product's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A server process that ends with this value.
pub struct Server {
    /// The name shown in tables.
    pub name: &'static str,
    /// Its RESP port on loopback.
    pub port: u16,
    /// Its data folder.
    pub folder: PathBuf,
    child: Child,
}

/// How a contender writes to disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// Nothing is written.
    Memory,
    /// A log, synced each second.
    EverySecond,
}

impl Server {
    /// Redis from the `PATH`.
    pub fn redis(disk: Disk) -> Result<Server> {
        Server::redis_in(disk, new_folder("redis")?)
    }

    /// As [`Server::redis`], on a folder that may hold data already.
    pub fn redis_in(disk: Disk, folder: PathBuf) -> Result<Server> {
        let append = if disk == Disk::Memory { "no" } else { "yes" };
        let port = free_port()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--save", "", "--appendonly", append]);
        command.args(["--appendfsync", "everysec", "--bind", "127.0.0.1", "--dir"]).arg(&folder);
        Server::start("redis", command, port, folder)
    }

    /// The built-in store: `tidegate store serve` of the binary named by `TIDEGATE`, else `served`,
    /// which is the same without the rest of the product.
    pub fn tidegate(disk: Disk) -> Result<Server> {
        Server::tidegate_in(disk, new_folder("tidegate")?)
    }

    /// As [`Server::tidegate`], on a folder that may hold data already.
    pub fn tidegate_in(disk: Disk, folder: PathBuf) -> Result<Server> {
        let port = free_port()?;
        let url = match disk {
            Disk::Memory => "embedded:".to_owned(),
            Disk::EverySecond => format!("embedded:{}", folder.display()),
        };
        let address = format!("127.0.0.1:{port}");
        let command = match std::env::var_os("TIDEGATE") {
            Some(binary) => {
                let mut command = Command::new(binary);
                command.args(["store", "serve", "--store", &url, "--listen", &address]);
                command
            }
            None => {
                let mut command = Command::new(std::env::current_exe()?.with_file_name("served"));
                command.args([&url, &address]);
                command
            }
        };
        Server::start("tidegate", command, port, folder)
    }

    fn start(
        name: &'static str,
        mut command: Command,
        port: u16,
        folder: PathBuf,
    ) -> Result<Server> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let server = Server { name, port, folder, child };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if start.elapsed() > Duration::from_secs(120) {
                bail!("{command:?} did not open port {port} within two minutes");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).context("no VmRSS line")?;
        let kib: u64 = line.split_whitespace().nth(1).context("VmRSS without a figure")?.parse()?;
        Ok(kib * 1024)
    }

    /// Processor time used so far, user and system.
    pub fn cpu(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let after = stat.rsplit(')').next().context("odd /proc stat line")?;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
        Ok(Duration::from_millis((ticks(11) + ticks(12)) * 10))
    }

    /// Ends the process the hard way and gives the folder back, kept.
    pub fn kill(mut self) -> PathBuf {
        let _ = self.child.kill();
        let _ = self.child.wait();
        std::mem::take(&mut self.folder)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !self.folder.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn new_folder(name: &str) -> Result<PathBuf> {
    let folder =
        std::env::temp_dir().join(format!("bench-{name}-{}-{}", std::process::id(), free_port()?));
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Median, lowest and highest of some figures.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The middle one.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Figures {
    /// Of a list that is not empty; all zero otherwise.
    pub fn of(mut list: Vec<f64>) -> Figures {
        list.sort_by(f64::total_cmp);
        let at = |n: usize| list.get(n).copied().unwrap_or(0.0);
        Figures { median: at(list.len() / 2), low: at(0), high: at(list.len().saturating_sub(1)) }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2}–{:.2})", self.median, self.low, self.high)
    }
}

/// A setting from the environment, or its default.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// The words after the program's name, or all of `every` if there are none: a run can be cut into
/// pieces.
pub fn chosen(every: &[&str]) -> Vec<String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() { every.iter().map(|word| (*word).to_owned()).collect() } else { words }
}
