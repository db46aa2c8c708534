//! Real DNS servers for one test: nsd as authority; Unbound, PowerDNS Recursor and dnsmasq as upstreams
//! and as peers. Each has a port and a folder of its own, is ready when it answers, and is killed on
//! drop. None of them sends a packet beyond this machine.

use std::{
    ffi::{OsStr, OsString},
    fs,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use crate::process::{self, Process};

/// How long a server may take to answer, on a machine that builds something at the same time.
const READY: Duration = Duration::from_secs(30);

/// A zone that a test serves: its name without the last dot (empty for the root) and its records, as
/// zone files have them. Records are relative to the name; `@` is the name itself.
#[derive(Clone, Debug)]
pub struct TestZone {
    name: String,
    text: String,
    is_signed: bool,
}

impl TestZone {
    /// Makes a zone of records. An SOA record with MINIMUM 300 and a name server are added.
    pub fn new(name: &str, records: &str) -> Self {
        let text = format!(
            "$ORIGIN {name}.\n$TTL 3600\n@ SOA ns.zone.example. host.zone.example. 1 3600 600 86400 300\n\
             @ NS ns.zone.example.\n{records}\n"
        );
        Self {
            name: name.to_owned(),
            text: text.replace("$ORIGIN ..", "$ORIGIN ."),
            is_signed: false,
        }
    }

    /// Signs the zone with a key of its own (`ldns-keygen`, `ldns-signzone`), with NSEC records.
    pub fn signed(mut self) -> Self {
        self.is_signed = true;
        self
    }

    fn file(&self) -> String {
        format!("{}.zone", if self.name.is_empty() { "root" } else { &self.name })
    }

    /// Writes the zone file, signed if it is to be, and returns its name.
    fn write(&self, folder: &Path) -> anyhow::Result<String> {
        let file = self.file();
        fs::write(folder.join(&file), &self.text)?;
        if !self.is_signed {
            return Ok(file);
        }
        let origin = if self.name.is_empty() { "." } else { self.name.as_str() };
        let key = run(folder, "ldns-keygen", &["-a", "ECDSAP256SHA256", "-k", origin])?;
        run(folder, "ldns-signzone", &["-o", origin, &file, key.trim()])?;
        Ok(format!("{file}.signed"))
    }
}

/// Runs a program to its end and returns its output.
fn run(folder: &Path, program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(find(program)?).args(args).current_dir(folder).output()?;
    ensure!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Finds a program in the `PATH` and where Debian puts servers.
fn find(program: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .with_context(|| format!("{program} is missing: ./test installs it, see its list"))
}

/// A DNS server on a free loopback port. Killed on drop.
///
/// ```no_run
/// use tidegate_testkit::{DnsServer, TestZone};
///
/// let authority = DnsServer::nsd(&[TestZone::new("shop.example", "www A 192.0.2.1")]);
/// let peer = DnsServer::unbound(authority.address());
/// ```
#[derive(Debug)]
pub struct DnsServer {
    process: Option<Process>,
    program: PathBuf,
    args: Vec<OsString>,
    address: SocketAddr,
    folder: TempDir,
    /// Name whose answer says that the server is ready.
    probe: String,
}

impl DnsServer {
    /// Starts nsd as authority for zones.
    pub fn nsd(zones: &[TestZone]) -> Self {
        let probe = zones.first().map(|zone| zone.name.clone()).unwrap_or_default();
        Self::start("nsd", &probe, |address, folder| {
            let mut config = format!(
                "server:\n ip-address: {ip}@{port}\n do-ip6: no\n username: \"\"\n chroot: \"\"\n \
                 zonesdir: \"{dir}\"\n database: \"\"\n pidfile: \"{dir}/nsd.pid\"\n \
                 xfrdfile: \"{dir}/xfrd.state\"\n zonelistfile: \"{dir}/zone.list\"\n \
                 xfrdir: \"{dir}\"\n server-count: 1\n rrl-ratelimit: 0\n tcp-count: 500\n\
                 remote-control:\n control-enable: no\n",
                ip = address.ip(),
                port = address.port(),
                dir = folder.display(),
            );
            for zone in zones {
                let file = zone.write(folder)?;
                let name = if zone.name.is_empty() { "." } else { &zone.name };
                config.push_str(&format!("zone:\n name: \"{name}\"\n zonefile: \"{file}\"\n"));
            }
            fs::write(folder.join("nsd.conf"), config)?;
            Ok(vec!["-d".into(), "-c".into(), folder.join("nsd.conf").into()])
        })
    }

    /// Starts Unbound as a cache before another server, without validation.
    pub fn unbound(upstream: SocketAddr) -> Self {
        Self::unbound_with(upstream, "")
    }

    /// The same, with more lines in its `server:` clause.
    pub fn unbound_with(upstream: SocketAddr, more: &str) -> Self {
        Self::start("unbound", "", |address, folder| {
            let config = format!(
                "server:\n interface: {ip}\n port: {port}\n do-daemonize: no\n do-ip6: no\n \
                 username: \"\"\n chroot: \"\"\n directory: \"{dir}\"\n pidfile: \"\"\n \
                 use-syslog: no\n logfile: \"\"\n do-not-query-localhost: no\n \
                 access-control: 127.0.0.0/8 allow\n module-config: \"iterator\"\n \
                 num-threads: 1\n{more}\n\
                 forward-zone:\n name: \".\"\n forward-addr: {up_ip}@{up_port}\n\
                 remote-control:\n control-enable: no\n",
                ip = address.ip(),
                port = address.port(),
                dir = folder.display(),
                up_ip = upstream.ip(),
                up_port = upstream.port(),
            );
            fs::write(folder.join("unbound.conf"), config)?;
            Ok(vec!["-d".into(), "-c".into(), folder.join("unbound.conf").into()])
        })
    }

    /// Starts PowerDNS Recursor as a cache before another server.
    pub fn pdns_recursor(upstream: SocketAddr) -> Self {
        Self::start("pdns_recursor", "", |address, folder| {
            let dir = folder.display();
            let args = [
                format!("--config-dir={dir}"),
                format!("--socket-dir={dir}"),
                format!("--local-address={}", address.ip()),
                format!("--local-port={}", address.port()),
                format!("--forward-zones-recurse=.={upstream}"),
                "--daemon=no".to_owned(),
                "--threads=1".to_owned(),
                "--dnssec=off".to_owned(),
                "--disable-syslog".to_owned(),
                "--hint-file=no".to_owned(),
                // It would not ask loopback otherwise.
                "--dont-query=".to_owned(),
                "--setuid=".to_owned(),
                "--setgid=".to_owned(),
            ];
            Ok(args.map(OsString::from).into())
        })
    }

    /// Starts dnsmasq as a cache before another server.
    pub fn dnsmasq(upstream: SocketAddr) -> Self {
        Self::start("dnsmasq", "", |address, _| {
            let args = [
                "--keep-in-foreground".to_owned(),
                "--conf-file=/dev/null".to_owned(),
                "--no-resolv".to_owned(),
                "--no-hosts".to_owned(),
                "--bind-interfaces".to_owned(),
                format!("--listen-address={}", address.ip()),
                format!("--port={}", address.port()),
                format!("--server={}#{}", upstream.ip(), upstream.port()),
                "--cache-size=10000".to_owned(),
                "--pid-file=".to_owned(),
                "--log-facility=-".to_owned(),
                "--user=root".to_owned(),
            ];
            Ok(args.map(OsString::from).into())
        })
    }

    fn start(
        program: &str,
        probe: &str,
        args: impl Fn(SocketAddr, &Path) -> anyhow::Result<Vec<OsString>>,
    ) -> Self {
        match Self::try_start(program, probe, args) {
            Ok(server) => server,
            Err(error) => panic!("{error:#}"),
        }
    }

    fn try_start(
        program: &str,
        probe: &str,
        args: impl Fn(SocketAddr, &Path) -> anyhow::Result<Vec<OsString>>,
    ) -> anyhow::Result<Self> {
        let program = find(program)?;
        let mut last = None;
        for _ in 0..10 {
            let folder = tempfile::tempdir()?;
            let address = crate::reserve_address();
            let args = args(address, folder.path())?;
            let (program, probe) = (program.clone(), probe.to_owned());
            let mut server = Self { process: None, program, args, address, folder, probe };
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no attempt was made")))
            .context("the server did not start in ten attempts")
    }

    fn launch(&mut self) -> anyhow::Result<()> {
        let log = self.folder.path().join("log");
        let process = Process::start(self.program.as_os_str(), &self.args, &log)?;
        let since = Instant::now();
        while !answers(self.address, &self.probe) {
            if !process.runs() {
                bail!("{} ended: {}", self.program.display(), process::tail(&log));
            }
            ensure!(
                since.elapsed() < READY,
                "{} does not answer: {}",
                self.program.display(),
                process::tail(&log)
            );
        }
        self.process = Some(process);
        Ok(())
    }

    /// Returns the address for UDP and TCP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the process id; 0 while it is stopped.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }

    /// Kills the server; its port stays its own as far as nobody takes it.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Starts it once more on the same port, empty.
    pub fn restart(&mut self) {
        self.stop();
        if let Err(error) = self.launch() {
            panic!("{error:#}");
        }
    }

    /// Sends a signal, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let process = self.process.as_ref().map(|process| process.signal(name));
        if let Some(Err(error)) = process {
            panic!("{error:#}");
        }
    }
}

/// Returns true if a server answers a query for the SOA record of a name with anything.
fn answers(server: SocketAddr, name: &str) -> bool {
    let ask = || {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
        socket.connect(server).ok()?;
        socket.set_read_timeout(Some(Duration::from_millis(50))).ok()?;
        let mut query = vec![0x70, 0x53, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            query.push(u8::try_from(label.len()).ok()?);
            query.extend_from_slice(label.as_bytes());
        }
        query.extend_from_slice(&[0, 0, 6, 0, 1]);
        socket.send(&query).ok()?;
        let mut reply = [0; 512];
        let length = socket.recv(&mut reply).ok()?;
        (length >= 12 && reply[..2] == query[..2]).then_some(())
    };
    let answered = ask().is_some();
    if !answered {
        std::thread::sleep(Duration::from_millis(10));
    }
    answered
}

/// Runs a DNS client such as `dig` or `kdig` and returns its output; panics if it is missing.
pub fn run_dns_client(program: &str, args: &[impl AsRef<OsStr>]) -> String {
    let output = find(program).and_then(|file| Ok(Command::new(file).args(args).output()?));
    match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => panic!("{error:#}"),
    }
}
