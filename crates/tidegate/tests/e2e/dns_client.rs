//! Clients of the resolver over UDP, TCP, TLS and HTTPS, and a server of one's own to ask.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use testkit::dns_message::{DnsMessage, DnsQuery};
use testkit::tls::Certificates;

use crate::process::Tidegate;

/// A way to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
    Tls,
    Https,
}

impl Transport {
    pub(crate) const ALL: [Transport; 4] =
        [Transport::Udp, Transport::Tcp, Transport::Tls, Transport::Https];
}

/// The resolver of a running program, with a certificate.
pub(crate) struct Resolver {
    pub(crate) gate: Tidegate,
    pub(crate) udp: SocketAddr,
    pub(crate) tls: SocketAddr,
    certificates: Certificates,
    client_config: Arc<rustls::ClientConfig>,
}

/// The address behind a word of the banner.
pub(crate) fn address_in_banner(gate: &Tidegate, word: &str) -> SocketAddr {
    let line = gate.banner.lines().find_map(|line| line.trim().strip_prefix(word));
    let line = line.unwrap_or_else(|| panic!("no {word} in {}", gate.banner));
    let address = line.split_whitespace().find_map(|word| word.trim_end_matches(',').parse().ok());
    address.unwrap_or_else(|| panic!("no address in {line}"))
}

impl Resolver {
    /// Starts with upstreams, DNS over TLS and HTTPS, and more arguments.
    pub(crate) fn start(upstreams: &str, args: &[&str]) -> Resolver {
        Resolver::start_on("embedded:", upstreams, args)
    }

    pub(crate) fn start_on(store: &str, upstreams: &str, args: &[&str]) -> Resolver {
        let certificates = Certificates::make().unwrap();
        let file = |name: &str| certificates.folder().join(name).display().to_string();
        let tls = testkit::reserve_address();
        let settings = [
            format!("dns.upstreams={upstreams}"),
            format!("http.tls_cert={}", file("server.pem")),
            format!("http.tls_key={}", file("server.key")),
            format!("dns.tls_listen={tls}"),
        ];
        let mut all: Vec<&str> = settings.iter().flat_map(|one| ["--set", one]).collect();
        all.extend(["--only", "dns"]);
        all.extend(args);
        let gate = Tidegate::start(store, &all);
        let udp = address_in_banner(&gate, "DNS ");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&certificates.ca().unwrap()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client_config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Resolver { gate, udp, tls, certificates, client_config: Arc::new(client_config) }
    }

    /// The certificate that curl is to trust, as a file. To OpenSSL an authority and a certificate of the
    /// same name are one; so it is told the latter.
    pub(crate) fn ca(&self) -> String {
        self.certificates.folder().join("server.pem").display().to_string()
    }

    pub(crate) fn open(&self, transport: Transport) -> Client {
        let timeout = Some(Duration::from_secs(20));
        let connect = |address| {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(timeout).unwrap();
            stream.set_nodelay(true).unwrap();
            stream
        };
        match transport {
            Transport::Udp => {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.connect(self.udp).unwrap();
                socket.set_read_timeout(timeout).unwrap();
                Client::Udp(socket)
            }
            Transport::Tcp => Client::Tcp(connect(self.udp)),
            Transport::Tls => {
                let name = ServerName::try_from("localhost").unwrap();
                let config = Arc::clone(&self.client_config);
                let connection = rustls::ClientConnection::new(config, name).unwrap();
                let stream = rustls::StreamOwned::new(connection, connect(self.tls));
                Client::Tls(Box::new(stream))
            }
            Transport::Https => {
                let roots = std::fs::read(self.ca()).unwrap();
                Client::Https { url: format!("{}/dns-query", self.gate.base), ca: roots }
            }
        }
    }

    /// Asks once, with a client of its own.
    pub(crate) fn ask(&self, transport: Transport, query: &DnsQuery) -> DnsMessage {
        self.open(transport).ask(query)
    }
}

/// One client.
pub(crate) enum Client {
    Udp(UdpSocket),
    Tcp(TcpStream),
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
    Https { url: String, ca: Vec<u8> },
}

impl Client {
    /// Sends a query and returns its answer, read whole.
    #[track_caller]
    pub(crate) fn ask(&mut self, query: &DnsQuery) -> DnsMessage {
        let reply = self.exchange(&query.to_wire()).expect("a reply");
        let message = DnsMessage::read(&reply).unwrap_or_else(|error| panic!("{error}: {reply:?}"));
        assert_eq!(message.id, query.id);
        message
    }

    /// Sends a packet and waits for its reply; none if HTTP refuses it.
    pub(crate) fn exchange(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        match self {
            Client::Https { url, ca } => {
                let (status, body) = post(url, ca, packet);
                if status == 200 { Some(body) } else { None }
            }
            _ => {
                self.send(packet);
                Some(self.receive())
            }
        }
    }

    pub(crate) fn send(&mut self, packet: &[u8]) {
        let framed = [&(packet.len() as u16).to_be_bytes()[..], packet].concat();
        match self {
            Client::Udp(socket) => _ = socket.send(packet).unwrap(),
            Client::Tcp(stream) => stream.write_all(&framed).unwrap(),
            Client::Tls(stream) => {
                stream.write_all(&framed).unwrap();
                stream.flush().unwrap();
            }
            Client::Https { .. } => panic!("a request has its reply"),
        }
    }

    pub(crate) fn receive(&mut self) -> Vec<u8> {
        fn framed(stream: &mut impl std::io::Read) -> Vec<u8> {
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut message).unwrap();
            message
        }
        match self {
            Client::Udp(socket) => {
                let mut buffer = vec![0; 65_535];
                let length = socket.recv(&mut buffer).unwrap();
                buffer.truncate(length);
                buffer
            }
            Client::Tcp(stream) => framed(stream),
            Client::Tls(stream) => framed(stream),
            Client::Https { .. } => panic!("a request has its reply"),
        }
    }
}

/// Posts a query by curl, over HTTP/2, and returns status and body.
pub(crate) fn post(url: &str, ca: &[u8], packet: &[u8]) -> (u16, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let (ca_file, sent, got) =
        (folder.path().join("ca"), folder.path().join("sent"), folder.path().join("got"));
    std::fs::write(&ca_file, ca).unwrap();
    std::fs::write(&sent, packet).unwrap();
    let output = std::process::Command::new("curl")
        .args(["--silent", "--show-error", "--http2", "--write-out", "%{http_code}", "--cacert"])
        .arg(&ca_file)
        .args(["--header", "content-type: application/dns-message", "--data-binary"])
        .arg(format!("@{}", sent.display()))
        .arg("--output")
        .arg(&got)
        .arg(url)
        .output()
        .unwrap();
    let status = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0);
    assert_ne!(status, 0, "{}", String::from_utf8_lossy(&output.stderr));
    (status, std::fs::read(&got).unwrap_or_default())
}
