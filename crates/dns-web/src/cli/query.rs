//! `tidegate dns query`: asks a DNS server, and shows the reply as it came.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use clap::Args;
use domain::base::iana::Class;
use domain::base::{MessageBuilder, Name, Rtype};
use serde_json::{Value, json};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use web::cli::client::{Client, RUNNING, RunningServer, base_of};
use web::cli::{Context, Failure, Outcome, Output, Tone};
use web::config::value::Value as _;

use crate::config::DnsSettings;
use crate::records::{MessageText, RecordText, parse_type};

/// Largest reply over UDP that is asked for.
const UDP_SIZE: u16 = 1_232;

/// A query.
#[derive(Debug, Args)]
pub(crate) struct QueryArgs {
    /// The name
    name: String,
    /// The type
    #[arg(default_value = "A", value_name = "TYPE")]
    rtype: String,
    /// DNS server to ask, as ADDRESS or ADDRESS:PORT, instead of the local one
    #[arg(long, value_name = "ADDRESS")]
    at: Option<String>,
    /// Ask over TCP
    #[arg(long, conflicts_with_all = ["tls", "https"])]
    tcp: bool,
    /// Ask over TLS, at port 853 unless --at names another
    #[arg(long, conflicts_with = "https")]
    tls: bool,
    /// Name in the server's certificate, for --tls; its address if left out
    #[arg(long, value_name = "NAME", requires = "tls")]
    tls_name: Option<String>,
    /// Ask over HTTPS; --at is a URL then, and without it the local server is asked
    #[arg(long)]
    https: bool,
    /// Ask for DNSSEC records too
    #[arg(long)]
    dnssec: bool,
    /// Ask for an answer without validation
    #[arg(long)]
    checking_disabled: bool,
    /// Print only the data of the answers
    #[arg(long, conflicts_with = "json")]
    short: bool,
    /// Time to wait for the reply
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    timeout: Duration,
}

fn time(text: &str) -> Result<Duration, String> {
    Duration::parse(text, Some(("100ms", "1m")))
}

/// A reply with what is known of its way.
struct Reply {
    wire: Vec<u8>,
    protocol: &'static str,
    took: Duration,
}

pub(super) fn run(args: &QueryArgs, context: &Context<'_>) -> Outcome {
    let (id, query) = encode(args)?;
    if args.https {
        let (server, reply) = ask_https(args, &query, context)?;
        let message = read(&reply.wire, id)?;
        return show(args, &server, &reply, &message, context.output);
    }
    let standard_port = if args.tls { 853 } else { 53 };
    let server = match &args.at {
        Some(text) => parse_server(text, standard_port)?,
        None if args.tls => SocketAddr::new(local_server(context)?.ip(), standard_port),
        None => local_server(context)?,
    };
    let mut reply = if args.tls {
        ask_tls(args, server, &query, context)?
    } else if args.tcp {
        ask_tcp(server, &query, args.timeout)?
    } else {
        ask_udp(server, id, &query, args.timeout)?
    };
    let mut message = read(&reply.wire, id)?;
    if message.is_truncated && reply.protocol == "udp" {
        context.output.note("the reply over UDP is truncated; asking over TCP");
        reply = ask_tcp(server, &query, args.timeout)?;
        message = read(&reply.wire, id)?;
    }
    show(args, &server.to_string(), &reply, &message, context.output)
}

fn parse_server(text: &str, port: u16) -> Outcome<SocketAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address = text.parse::<SocketAddr>().ok();
    let address = address.or_else(|| Some(SocketAddr::new(bare.parse::<IpAddr>().ok()?, port)));
    address.ok_or_else(|| {
        Failure::usage(format!("--at {text} is not an address, such as 9.9.9.9 or 127.0.0.1:7053"))
    })
}

/// Finds the local server: the running one says where it listens, else it is where the settings say.
fn local_server(context: &Context<'_>) -> Outcome<SocketAddr> {
    let told = Client::new(context).and_then(|client| client.get("/api/v1/dns/status")).ok();
    let told = told.as_ref().and_then(|status| status["listen"].as_array()?.first()?.as_str());
    if let Some(address) = told.and_then(|text| text.parse().ok()) {
        return Ok(reachable(address));
    }
    let values = context.load()?.values;
    let settings =
        DnsSettings::read(&values).map_err(|problem| Failure::usage(problem.to_string()))?;
    match settings.listen.0.first() {
        Some(address) if address.port() != 0 => Ok(reachable(*address)),
        _ => Err(Failure::usage("no DNS server is known here")
            .next("start one with `tidegate`, or name one with --at 9.9.9.9")),
    }
}

/// A wildcard address is reached by loopback.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn encode(args: &QueryArgs) -> Outcome<(u16, Vec<u8>)> {
    let name: dns::DomainName = args
        .name
        .parse()
        .map_err(|error| Failure::usage(format!("{:?} is not a name: {error}", args.name)))?;
    let rtype = parse_type(&args.rtype).ok_or_else(|| {
        Failure::usage(format!("{:?} is not a type, such as A, AAAA, HTTPS or TYPE64", args.rtype))
    })?;
    let id = random_id();
    let failed =
        |error: &dyn std::fmt::Display| Failure::failed(format!("cannot write the query: {error}"));
    let name = Name::from_octets(name.as_wire().to_vec()).map_err(|error| failed(&error))?;
    let mut builder = MessageBuilder::new_vec();
    let header = builder.header_mut();
    header.set_id(id);
    header.set_rd(true);
    header.set_ad(true);
    header.set_cd(args.checking_disabled);
    let mut builder = builder.question();
    builder.push((name, Rtype::from_int(rtype), Class::IN)).map_err(|error| failed(&error))?;
    let mut builder = builder.additional();
    builder
        .opt(|opt| {
            opt.set_udp_payload_size(UDP_SIZE);
            opt.set_dnssec_ok(args.dnssec);
            Ok(())
        })
        .map_err(|error| failed(&error))?;
    Ok((id, builder.finish()))
}

fn random_id() -> u16 {
    let mut bytes = [0; 2];
    // Without random numbers the id is 0, which a spoofer could guess; the question is checked too.
    let _ = getrandom::fill(&mut bytes);
    u16::from_be_bytes(bytes)
}

fn no_reply(server: SocketAddr, error: &std::io::Error) -> Failure {
    let why = match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            "no reply in time".to_owned()
        }
        _ => error.to_string(),
    };
    Failure::unreachable(format!("{server}: {why}"))
        .next("is it a DNS server? name another with --at")
}

fn ask_udp(server: SocketAddr, id: u16, query: &[u8], timeout: Duration) -> Outcome<Reply> {
    let failed = |error: std::io::Error| no_reply(server, &error);
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).map_err(failed)?;
    socket.connect(server).map_err(failed)?;
    let started = Instant::now();
    socket.send(query).map_err(failed)?;
    let mut buffer = vec![0; 65_535];
    loop {
        let left = timeout.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(failed(std::io::ErrorKind::TimedOut.into()));
        }
        socket.set_read_timeout(Some(left)).map_err(failed)?;
        let length = socket.recv(&mut buffer).map_err(failed)?;
        let wire = buffer.get(..length).unwrap_or_default();
        // Anything else is not the reply to this query.
        if wire.get(..2) == Some(&id.to_be_bytes()) {
            let took = started.elapsed();
            return Ok(Reply { wire: wire.to_vec(), protocol: "udp", took });
        }
    }
}

fn ask_tcp(server: SocketAddr, query: &[u8], timeout: Duration) -> Outcome<Reply> {
    let failed = |error: std::io::Error| no_reply(server, &error);
    let started = Instant::now();
    let mut stream = TcpStream::connect_timeout(&server, timeout).map_err(failed)?;
    stream.set_read_timeout(Some(timeout)).map_err(failed)?;
    stream.set_write_timeout(Some(timeout)).map_err(failed)?;
    let wire = over_stream(&mut stream, query).map_err(failed)?;
    Ok(Reply { wire, protocol: "tcp", took: started.elapsed() })
}

fn ask_tls(
    args: &QueryArgs,
    server: SocketAddr,
    query: &[u8],
    context: &Context<'_>,
) -> Outcome<Reply> {
    let failed = |error: std::io::Error| no_reply(server, &error);
    let wrong = |error: &dyn std::fmt::Display| Failure::usage(error.to_string());
    let mut config =
        web::serve::tls::client(context.global.ca.as_deref()).map_err(|error| wrong(&error))?;
    config.alpn_protocols = vec![b"dot".to_vec()];
    let name = args.tls_name.clone().unwrap_or_else(|| server.ip().to_string());
    let name = rustls::pki_types::ServerName::try_from(name).map_err(|error| wrong(&error))?;
    let connection = rustls::ClientConnection::new(std::sync::Arc::new(config), name)
        .map_err(|error| wrong(&error))?;
    let started = Instant::now();
    let socket = TcpStream::connect_timeout(&server, args.timeout).map_err(failed)?;
    socket.set_read_timeout(Some(args.timeout)).map_err(failed)?;
    socket.set_write_timeout(Some(args.timeout)).map_err(failed)?;
    let mut stream = rustls::StreamOwned::new(connection, socket);
    let wire = over_stream(&mut stream, query).map_err(|error| {
        failed(error).next("--ca FILE names the authority of its certificate, --tls-name its name")
    })?;
    Ok(Reply { wire, protocol: "tls", took: started.elapsed() })
}

/// Asks by POST. Returns the URL too.
fn ask_https(args: &QueryArgs, query: &[u8], context: &Context<'_>) -> Outcome<(String, Reply)> {
    let url = match &args.at {
        Some(url) if url.starts_with("https://") || url.starts_with("http://") => url.clone(),
        Some(url) => {
            return Err(Failure::usage(format!("--at {url} is not a URL"))
                .next("--at https://dns.example/dns-query"));
        }
        None => local_url(context)?,
    };
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .tls_config(https_trust(context, args.at.is_none())?)
        .timeout_global(Some(args.timeout))
        .build()
        .into();
    let unanswered = |error: &dyn std::fmt::Display| {
        Failure::unreachable(format!("{url}: {error}"))
            .next("--ca FILE names the authority of its certificate")
    };
    let started = Instant::now();
    let request = agent.post(&url).header("accept", DNS_MESSAGE).content_type(DNS_MESSAGE);
    let mut answer = request.send(query).map_err(|error| unanswered(&error))?;
    if answer.status() != 200 {
        return Err(Failure::failed(format!("{url}: HTTP {}", answer.status().as_u16())));
    }
    let body = answer.body_mut().with_config().limit(65_535);
    let wire = body.read_to_vec().map_err(|error| unanswered(&error))?;
    Ok((url, Reply { wire, protocol: "https", took: started.elapsed() }))
}

const DNS_MESSAGE: &str = "application/dns-message";

/// The local server's own address for queries.
fn local_url(context: &Context<'_>) -> Outcome<String> {
    let config = context.load()?.config;
    let note = std::fs::read_to_string(config.server.data.join(RUNNING)).ok();
    let running = note.and_then(|text| serde_json::from_str::<RunningServer>(&text).ok());
    let has_tls = !config.http.tls_cert.as_os_str().is_empty();
    let base = match running {
        Some(running) => running.http,
        None => base_of(config.http.listen, has_tls),
    };
    Ok(format!("{base}/dns-query"))
}

/// The certificate authorities to trust. The local server's certificate is for the name that clients use,
/// and what goes over loopback is as safe as the port itself.
fn https_trust(context: &Context<'_>, is_local: bool) -> Outcome<TlsConfig> {
    let Some(path) = &context.global.ca else {
        return Ok(TlsConfig::builder().disable_verification(is_local).build());
    };
    let wrong = |why: String| Failure::usage(format!("--ca {}: {why}", path.display()));
    let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let items = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<_> = items.collect();
    if found.is_empty() {
        return Err(wrong("it contains no certificate".to_owned()));
    }
    Ok(TlsConfig::builder().root_certs(RootCerts::new_with_certs(&found)).build())
}

/// Sends a query with its length before it, and reads the reply.
fn over_stream(
    stream: &mut (impl std::io::Read + std::io::Write),
    query: &[u8],
) -> std::io::Result<Vec<u8>> {
    let length = u16::try_from(query.len()).map_err(std::io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], query].concat())?;
    stream.flush()?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut wire = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut wire)?;
    Ok(wire)
}

fn read(wire: &[u8], id: u16) -> Outcome<MessageText> {
    let fits = wire.get(..2) == Some(&id.to_be_bytes());
    MessageText::read(wire)
        .filter(|_| fits)
        .ok_or_else(|| Failure::failed("the reply is damaged, or answers another query"))
}

fn show(
    args: &QueryArgs,
    server: &str,
    reply: &Reply,
    message: &MessageText,
    output: &Output,
) -> Outcome {
    if output.json {
        let mut value = json!(message);
        if let Value::Object(fields) = &mut value {
            fields.insert("server".to_owned(), json!(server));
            fields.insert("protocol".to_owned(), json!(reply.protocol));
            fields.insert("bytes".to_owned(), json!(reply.wire.len()));
            fields.insert("duration_us".to_owned(), json!(reply.took.as_micros()));
        }
        return output.value(&value);
    }
    if args.short {
        return message.answers.iter().try_for_each(|record| output.line(&record.data));
    }
    let tone = if message.rcode == "NOERROR" { Tone::Good } else { Tone::Warn };
    output.line(&format!(
        "{}  {}",
        output.paint(tone, &message.rcode),
        output.paint(Tone::Dim, &message.flags.join(" "))
    ))?;
    for error in &message.extended_errors {
        output.line(&format!("extended error: {error}"))?;
    }
    for (section, records) in [
        ("answer", &message.answers),
        ("authority", &message.authorities),
        ("additional", &message.additionals),
    ] {
        if !records.is_empty() {
            output.line("")?;
            let row = |record: &RecordText| {
                let RecordText { name, rtype, ttl_seconds, data } = record.clone();
                vec![name, ttl_seconds.to_string(), rtype, data]
            };
            let rows: Vec<Vec<String>> = records.iter().map(row).collect();
            output.table(&[&section.to_uppercase(), "TTL", "TYPE", "DATA"], &rows)?;
        }
    }
    let took = reply.took.as_secs_f64() * 1_000.0;
    output.note(&format!(
        "\n{} bytes from {server} over {} in {took:.1} ms",
        reply.wire.len(),
        reply.protocol.to_uppercase()
    ));
    Ok(())
}
