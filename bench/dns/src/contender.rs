//! The servers that are measured: processes on free ports, each with a folder of its own.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Names of the zone that are cached.
pub const NAMES: usize = 1_000;

/// A server process that ends with this value.
pub struct Contender {
    pub name: String,
    pub address: SocketAddr,
    pub folder: PathBuf,
    child: Child,
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn free_port() -> Result<u16> {
    loop {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
}

/// A query of type `qtype`, with an OPT record if wanted.
pub fn query(name: &str, qtype: u16, edns: bool) -> Vec<u8> {
    let mut wire = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns)];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        wire.push(label.len() as u8);
        wire.extend(label.as_bytes());
    }
    wire.push(0);
    wire.extend(qtype.to_be_bytes());
    wire.extend([0, 1]);
    if edns {
        wire.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    }
    wire
}

/// Asks once and returns the reply, if it comes in time.
pub fn ask(server: SocketAddr, packet: &[u8], timeout: Duration) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
    socket.connect(server).ok()?;
    socket.set_read_timeout(Some(timeout)).ok()?;
    socket.send(packet).ok()?;
    let mut buffer = vec![0; 4_096];
    let length = socket.recv(&mut buffer).ok()?;
    buffer.truncate(length);
    Some(buffer)
}

impl Contender {
    fn start(name: &str, mut command: Command, port: u16, folder: PathBuf) -> Result<Contender> {
        let log = std::fs::File::create(folder.join("log"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut contender = Contender { name: name.to_owned(), address, folder, child };
        let since = Instant::now();
        let probe = query("h0.bench.example", 1, false);
        while ask(address, &probe, Duration::from_millis(50)).is_none() {
            if let Some(status) = contender.child.try_wait()? {
                let log = std::fs::read_to_string(contender.folder.join("log"))?;
                bail!("{name} ended with {status}: {log}");
            }
            if since.elapsed() > Duration::from_secs(60) {
                bail!("{name} does not answer on {address}");
            }
        }
        Ok(contender)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Seconds of processor time so far, user and system.
    pub fn cpu(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let fields: Vec<&str> = stat.rsplit(')').next().context("stat")?.split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        Ok(ticks / 100.0)
    }

    /// A figure of /proc/PID/status in bytes, such as `VmRSS` or `VmHWM`.
    pub fn memory(&self, field: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find(|line| line.starts_with(field)).context("no such field")?;
        let kib: u64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
        Ok(kib * 1_024)
    }

    /// nsd with the zone of the benchmark: names, a wildcard for misses, and nothing else.
    pub fn nsd(folder: &Path) -> Result<Contender> {
        let (port, folder) = (free_port()?, new_folder(folder, "nsd")?);
        let dir = folder.display();
        let mut zone = String::from(
            "$ORIGIN bench.example.\n$TTL 86400\n@ SOA ns host 1 3600 600 86400 3600\n@ NS ns\nns A 127.0.0.1\n\
             *.miss A 192.0.2.99\n*.l1 A 192.0.2.98\n",
        );
        for number in 0..NAMES {
            zone.push_str(&format!("h{number} A 192.0.2.{}\n", number % 250 + 1));
            zone.push_str(&format!("h{number} AAAA 2001:db8::{number:x}\n"));
        }
        std::fs::write(folder.join("bench.zone"), zone)?;
        let config = format!(
            "server:\n ip-address: 127.0.0.1@{port}\n do-ip6: no\n username: \"\"\n chroot: \"\"\n zonesdir: \"{dir}\"\n \
             database: \"\"\n pidfile: \"{dir}/pid\"\n xfrdfile: \"{dir}/xfrd\"\n zonelistfile: \"{dir}/list\"\n \
             xfrdir: \"{dir}\"\n server-count: 1\n rrl-ratelimit: 0\nremote-control:\n control-enable: no\n\
             zone:\n name: \"bench.example\"\n zonefile: \"bench.zone\"\n"
        );
        std::fs::write(folder.join("nsd.conf"), config)?;
        let mut command = Command::new("nsd");
        command.args(["-d", "-c"]).arg(folder.join("nsd.conf"));
        Contender::start("nsd", command, port, folder)
    }

    /// Unbound with the same socket buffers as ours, DNS over TLS and HTTPS included.
    pub fn unbound(folder: &Path, upstream: SocketAddr, threads: usize) -> Result<Contender> {
        let (port, dot, doh) = (free_port()?, free_port()?, free_port()?);
        let folder = new_folder(folder, &format!("unbound{threads}"))?;
        make_certificate(&folder)?;
        let dir = folder.display();
        let config = format!(
            "server:\n interface: 127.0.0.1@{port}\n interface: 127.0.0.1@{dot}\n interface: 127.0.0.1@{doh}\n \
             tls-port: {dot}\n https-port: {doh}\n http-notls-downstream: no\n \
             tls-service-pem: \"{dir}/server.pem\"\n tls-service-key: \"{dir}/server.key\"\n \
             do-daemonize: no\n do-ip6: no\n username: \"\"\n chroot: \"\"\n directory: \"{dir}\"\n pidfile: \"\"\n \
             use-syslog: no\n logfile: \"\"\n do-not-query-localhost: no\n access-control: 127.0.0.0/8 allow\n \
             module-config: \"iterator\"\n num-threads: {threads}\n so-reuseport: yes\n so-rcvbuf: 4m\n so-sndbuf: 4m\n \
             incoming-num-tcp: 200\n outgoing-range: 4096\n num-queries-per-thread: 2048\n msg-cache-size: 64m\n \
             rrset-cache-size: 128m\nforward-zone:\n name: \".\"\n forward-addr: {}@{}\n\
             remote-control:\n control-enable: no\n",
            upstream.ip(),
            upstream.port(),
        );
        std::fs::write(folder.join("unbound.conf"), config)?;
        std::fs::write(folder.join("ports"), format!("{dot} {doh}"))?;
        let mut command = Command::new("unbound");
        command.args(["-d", "-c"]).arg(folder.join("unbound.conf"));
        Contender::start(&format!("Unbound, {threads} thread{}", if threads == 1 { "" } else { "s" }), command, port, folder)
    }

    pub fn pdns(folder: &Path, upstream: SocketAddr) -> Result<Contender> {
        let (port, folder) = (free_port()?, new_folder(folder, "pdns")?);
        let dir = folder.display();
        let mut command = Command::new("pdns_recursor");
        command.args([
            format!("--config-dir={dir}"),
            format!("--socket-dir={dir}"),
            "--local-address=127.0.0.1".to_owned(),
            format!("--local-port={port}"),
            format!("--forward-zones-recurse=.={upstream}"),
            "--daemon=no".to_owned(),
            "--threads=2".to_owned(),
            "--dnssec=off".to_owned(),
            "--disable-syslog".to_owned(),
            "--quiet".to_owned(),
            "--hint-file=no".to_owned(),
            "--dont-query=".to_owned(),
            "--setuid=".to_owned(),
            "--setgid=".to_owned(),
        ]);
        Contender::start("PowerDNS Recursor", command, port, folder)
    }

    pub fn dnsmasq(folder: &Path, upstream: SocketAddr) -> Result<Contender> {
        let (port, folder) = (free_port()?, new_folder(folder, "dnsmasq")?);
        let mut command = Command::new("dnsmasq");
        command.args([
            "--keep-in-foreground".to_owned(),
            "--conf-file=/dev/null".to_owned(),
            "--no-resolv".to_owned(),
            "--no-hosts".to_owned(),
            "--bind-interfaces".to_owned(),
            "--listen-address=127.0.0.1".to_owned(),
            format!("--port={port}"),
            format!("--server={}#{}", upstream.ip(), upstream.port()),
            "--cache-size=10000".to_owned(),
            "--dns-forward-max=5000".to_owned(),
            "--pid-file=".to_owned(),
            "--log-facility=-".to_owned(),
            "--user=root".to_owned(),
        ]);
        Contender::start("dnsmasq", command, port, folder)
    }

    /// This program, sending back what it gets.
    pub fn echo(folder: &Path) -> Result<Contender> {
        let (port, folder) = (free_port()?, new_folder(folder, "echo")?);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["echo", &port.to_string()]);
        Contender::start("bare UDP echo", command, port, folder)
    }

    pub fn redis(folder: &Path) -> Result<(Child, u16)> {
        let (port, folder) = (free_port()?, new_folder(folder, "redis")?);
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--dir"])
            .arg(&folder)
            .args(["--bind", "127.0.0.1"])
            .stdout(Stdio::null())
            .spawn()?;
        let since = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if since.elapsed() > Duration::from_secs(20) {
                bail!("redis-server does not answer");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok((child, port))
    }
}

/// A certificate for loopback.
fn make_certificate(folder: &Path) -> Result<()> {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-days", "2", "-keyout"])
        .arg(folder.join("server.key"))
        .arg("-out")
        .arg(folder.join("server.pem"))
        .stderr(Stdio::null())
        .status()?;
    if !made.success() {
        bail!("openssl made no certificate");
    }
    Ok(())
}

pub fn new_folder(parent: &Path, name: &str) -> Result<PathBuf> {
    for number in 0.. {
        let folder = parent.join(format!("{name}-{number}"));
        if std::fs::create_dir(&folder).is_ok() {
            return Ok(folder);
        }
        if number > 1_000 {
            bail!("{} cannot be made", folder.display());
        }
    }
    unreachable!()
}

/// What a Tidegate of the benchmark is started with.
#[derive(Clone, Debug)]
pub struct TidegateOptions<'a> {
    pub name: &'a str,
    pub binary: &'a Path,
    /// Store; the built-in one on disk without it.
    pub store: Option<String>,
    /// Policy document; none for the program's own.
    pub policy: Option<serde_json::Value>,
    pub settings: Vec<String>,
    /// Folder of a server that was here before.
    pub folder: Option<PathBuf>,
}

impl<'a> TidegateOptions<'a> {
    /// A server with its own policy and the built-in store.
    pub fn new(name: &'a str, binary: &'a Path) -> TidegateOptions<'a> {
        TidegateOptions { name, binary, store: None, policy: None, settings: Vec::new(), folder: None }
    }
}

/// A Tidegate, with its other ports.
pub struct TidegateServer {
    pub server: Contender,
    pub http: u16,
    pub dot: u16,
}

impl TidegateServer {
    pub fn start(parent: &Path, upstream: SocketAddr, options: &TidegateOptions<'_>) -> Result<TidegateServer> {
        let (port, http, dot) = (free_port()?, free_port()?, free_port()?);
        let folder = match &options.folder {
            Some(folder) => folder.clone(),
            None => new_folder(parent, "tidegate")?,
        };
        if !folder.join("server.pem").exists() {
            make_certificate(&folder)?;
        }
        let store = options.store.clone().unwrap_or_else(|| "embedded:store".to_owned());
        let mut command = Command::new(options.binary);
        command.current_dir(&folder).args(["serve", "--only", "dns", "--store", &store]);
        command.env("TIDEGATE_ROOM_SECRET", "5e".repeat(32));
        command.args(["--listen", &format!("127.0.0.1:{http}")]);
        let settings = [
            format!("dns.listen=127.0.0.1:{port}"),
            format!("dns.tls_listen=127.0.0.1:{dot}"),
            format!("dns.upstreams={upstream}"),
            "http.tls_cert=server.pem".to_owned(),
            "http.tls_key=server.key".to_owned(),
            "resp.listen=off".to_owned(),
            "dns.hosts_file=".to_owned(),
        ];
        for setting in settings.iter().chain(&options.settings) {
            command.args(["--set", setting]);
        }
        let server = Contender::start(options.name, command, port, folder)?;
        let started = TidegateServer { server, http, dot };
        // DNS is there first.
        let since = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", http)).is_err() {
            if since.elapsed() > Duration::from_secs(30) {
                bail!("{} does not open port {http}", options.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // Commands find the port there, which is written a moment later.
        let running = started.server.folder.join("tidegate-data/running.json");
        while !std::fs::read_to_string(&running).is_ok_and(|text| text.contains(&format!(":{http}"))) {
            if since.elapsed() > Duration::from_secs(30) {
                bail!("{} does not write {}", options.name, running.display());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        if let Some(policy) = &options.policy {
            let file = started.server.folder.join("policy.json");
            std::fs::File::create(&file)?.write_all(policy.to_string().as_bytes())?;
            started.run(options.binary, &["dns", "apply", "policy.json"])?;
        }
        Ok(started)
    }

    /// Runs a command of the program against this server.
    pub fn run(&self, binary: &Path, args: &[&str]) -> Result<String> {
        // In its folder the command line finds the server and its token.
        let output = Command::new(binary).current_dir(&self.server.folder).args(args).output()?;
        if !output.status.success() {
            bail!("{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}
