//! Checks of `tidegate doctor`: the ports, the program that holds port 53, the upstreams, the certificate, the
//! sources and ages of lists, the receive buffer, the memory. A server that runs tells what its policy has. Disk
//! and clock are checked for the whole product.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dns::wire::{AnswerKind, TtlBounds};
use dns::{DomainName, Question, UpstreamNeeds, UpstreamOptions, Upstreams};
use web::cli::client::Client;
use web::cli::{Global, text};
use web::doctor::{Diagnosis, Finding};
use web::series::float;

use crate::config::DnsSettings;
use crate::remote::RemoteClient;

/// Time for the upstreams to answer.
const UPSTREAM_DEADLINE: Duration = Duration::from_secs(5);

/// Receive buffer that the listeners ask for.
const RECEIVE_BUFFER_BYTES: u64 = 4 << 20;

pub(crate) async fn check(diagnosis: &Diagnosis<'_>) -> Vec<Finding> {
    let Ok(settings) = DnsSettings::read(diagnosis.values) else { return Vec::new() };
    let mut findings = Vec::new();
    for address in &settings.listen.0 {
        findings.push(check_port(*address, diagnosis));
    }
    if !settings.listen.0.iter().any(|address| address.port() == 53) {
        findings.push(check_standard_port());
    }
    findings.push(check_upstreams(&settings).await);
    findings.extend(check_certificate(&settings, diagnosis));
    findings.push(check_lists(&diagnosis.config.server.data.join("dns/lists")));
    // A server that does not run has nothing to tell.
    let server = diagnosis
        .running
        .and_then(|_| Client::with_admin_token(&Global::default(), diagnosis.config).ok());
    if let Some(server) = &server {
        findings.extend(check_sources(server));
        findings.extend(check_policy_upstreams(server));
    }
    findings.push(check_memory(settings.cache_memory.0));
    for address in &settings.block_page_listen.0 {
        let setting = "dns.block_page_listen";
        findings.push(web::doctor::check_address(*address, setting, diagnosis.running));
    }
    findings.push(check_receive_buffer());
    findings
}

/// Checks the certificate of encrypted queries, where there are any: it can be read, and has the name.
fn check_certificate(settings: &DnsSettings, diagnosis: &Diagnosis<'_>) -> Option<Finding> {
    let http = &diagnosis.config.http;
    let is_set = !http.tls_cert.as_os_str().is_empty();
    if settings.tls_name.is_empty() && settings.tls_listen.0.is_empty() {
        return None;
    }
    let what = "dns certificate";
    if !is_set {
        let fix = "set http.tls_cert and http.tls_key, or leave dns.tls_name empty";
        return Some(Finding::warning(
            what,
            "dns.tls_name is set, and there is no certificate",
            fix,
        ));
    }
    if let Err(error) = web::serve::tls::Tls::load(&http.tls_cert, &http.tls_key) {
        return Some(Finding::bad(what, error.to_string(), "check http.tls_cert and http.tls_key"));
    }
    if settings.tls_name.is_empty() {
        let fix = "set dns.tls_name to the name in it, so that devices find it (DDR) and clients have ids";
        return Some(Finding::warning(what, "its name is not set", fix));
    }
    let fits = |name: &str| has_name(&http.tls_cert, name).unwrap_or(false);
    let name = settings.tls_name.as_str();
    Some(match (fits(name), fits(&format!("client.{name}"))) {
        (true, true) => Finding::good(what, format!("good for {name} and ids of clients below it")),
        (true, false) => Finding::good(
            what,
            format!("good for {name}; ids over TLS (ID.{name}) would need *.{name} in it"),
        ),
        (false, _) => Finding::bad(
            what,
            format!("it is not for {name}"),
            "set dns.tls_name to a name in the certificate",
        ),
    })
}

/// Tells whether a certificate is for a name; none if it cannot be read.
fn has_name(path: &Path, name: &str) -> Option<bool> {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, ServerName};
    let certificate = CertificateDer::pem_file_iter(path).ok()?.next()?.ok()?;
    let parsed = rustls::server::ParsedCertificate::try_from(&certificate).ok()?;
    let name = ServerName::try_from(name).ok()?;
    Some(rustls::client::verify_server_name(&parsed, &name).is_ok())
}

/// Age beyond which a list is old: sources are fetched every day unless the policy says otherwise.
const LIST_OLD: Duration = Duration::from_secs(7 * 86_400);

/// Tells the ages of the lists in a folder: a fetch writes a file.
fn check_lists(folder: &Path) -> Finding {
    let Ok(files) = std::fs::read_dir(folder) else {
        return Finding::good("lists", "none fetched yet; the built-in one needs no fetch");
    };
    let mut ages: BTreeMap<String, Duration> = BTreeMap::new();
    for file in files.filter_map(Result::ok) {
        let path = file.path();
        let (Some(id), Some(kind)) = (path.file_stem(), path.extension()) else { continue };
        if !matches!(kind.to_str(), Some("set" | "source" | "txt")) {
            continue;
        }
        let modified = file.metadata().and_then(|meta| meta.modified()).ok();
        let Some(age) = modified.and_then(|at| at.elapsed().ok()) else { continue };
        let known = ages.entry(id.to_string_lossy().into_owned()).or_insert(age);
        *known = age.min(*known);
    }
    let old: Vec<&str> =
        ages.iter().filter(|(_, age)| **age > LIST_OLD).map(|(id, _)| id.as_str()).collect();
    match (ages.values().max(), old.is_empty()) {
        (None, _) => Finding::good("lists", "none fetched yet; the built-in one needs no fetch"),
        (Some(oldest), true) => {
            let hours = oldest.as_secs() / 3_600;
            Finding::good("lists", format!("{} fetched, the oldest {hours} h ago", ages.len()))
        }
        (Some(_), false) => Finding::warning(
            "lists",
            format!("not fetched for more than a week: {}", old.join(", ")),
            "tidegate dns lists refresh   (tidegate dns problems says why)",
        ),
    }
}

/// Tells which sources of lists the running server could not fetch.
fn check_sources(server: &Client) -> Option<Finding> {
    let told = server.get("/api/v1/dns/list-states?limit=1000").ok()?;
    let lists: Vec<_> =
        told["items"].as_array()?.iter().filter(|list| list["enabled"] == true).collect();
    let failed: Vec<String> = lists
        .iter()
        .filter(|list| !list["error"].is_null())
        .map(|list| format!("{}: {}", text(list, "id"), text(list, "error")))
        .collect();
    Some(match failed.is_empty() {
        true if lists.is_empty() => Finding::good("list sources", "no list is in use"),
        true => Finding::good("list sources", format!("all {} in order", lists.len())),
        false => {
            let fix = "tidegate dns problems   (tells what to do about each)";
            Finding::warning("list sources", failed.join("; "), fix)
        }
    })
}

/// Tells which upstreams of its policy the running server cannot reach.
fn check_policy_upstreams(server: &Client) -> Option<Finding> {
    let told = server.get("/api/v1/dns/upstreams?limit=1000").ok()?;
    let failing: Vec<String> = told["items"]
        .as_array()?
        .iter()
        .filter(|one| one["is_healthy"] == false)
        .map(|one| format!("{}: {}", text(one, "server"), text(one, "last_failure")))
        .collect();
    Some(match failing.is_empty() {
        true => Finding::good("upstreams in use", "none is failing"),
        false => {
            let fix = "tidegate dns upstreams test SERVER";
            Finding::warning("upstreams in use", failing.join("; "), fix)
        }
    })
}

/// Share of the memory that the cache may take without a word.
const CACHE_SHARE: f64 = 0.25;

/// Tells what this machine has, and whether the cache fits.
fn check_memory(cache_bytes: u64) -> Finding {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let meminfo = read("/proc/meminfo");
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let total = total.and_then(|kib| kib.parse::<u64>().ok()).map(|kib| kib << 10);
    let limit = read("/sys/fs/cgroup/memory.max").trim().parse::<u64>().ok();
    let Some(bytes) = total.into_iter().chain(limit).min() else {
        return Finding::good("resources", "the system does not tell its memory");
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let machine = read("/proc/device-tree/model").trim_matches(['\0', '\n']).to_owned();
    describe_memory(bytes, total != Some(bytes), cores, &machine, cache_bytes)
}

fn describe_memory(
    bytes: u64,
    is_limit: bool,
    cores: usize,
    machine: &str,
    cache_bytes: u64,
) -> Finding {
    let size = |bytes: u64| {
        let (number, unit) = web::format::bytes(float(bytes));
        format!("{number} {unit}")
    };
    let machine = if machine.is_empty() { String::new() } else { format!("{machine}: ") };
    let word = if is_limit { "the container may use" } else { "memory of the machine" };
    let found = format!(
        "{machine}{cores} processors, {} ({word}); the cache takes up to {}",
        size(bytes),
        size(cache_bytes)
    );
    let fits = float(cache_bytes) <= float(bytes) * CACHE_SHARE;
    match fits {
        true => Finding::good("resources", found),
        false => {
            let advised = ((bytes / 8) >> 20).max(1);
            Finding::warning("resources", found, format!("--set dns.cache_memory={advised}mb"))
        }
    }
}

/// Checks that both UDP and TCP are free, or ours already.
fn check_port(address: SocketAddr, diagnosis: &Diagnosis<'_>) -> Finding {
    let bound = UdpSocket::bind(address)
        .and_then(|udp| std::net::TcpListener::bind(address).map(|tcp| (udp, tcp)));
    match (bound, diagnosis.running) {
        (Ok(_), _) => Finding::good("dns.listen", format!("{address} is free")),
        (Err(error), _) if error.kind() == std::io::ErrorKind::PermissionDenied => Finding::bad(
            "dns.listen",
            format!("this user may not listen on {address}"),
            "setcap cap_net_bind_service=+ep on the program, or the unit file of docs/start-dns.md",
        ),
        (Err(_), Some(running)) => {
            Finding::good("dns.listen", format!("{address} is used by process {}", running.pid))
        }
        (Err(error), None) => {
            let found = match holder(address) {
                Some(holder) => format!("{address} is held by {holder}"),
                None => format!("{address}: {error}"),
            };
            Finding::bad("dns.listen", found, fix(address))
        }
    }
}

fn fix(address: SocketAddr) -> String {
    if address.port() == 53 {
        return "systemd-resolved: DNSStubListener=no in /etc/systemd/resolved.conf (docs/start-dns.md)"
            .to_owned();
    }
    format!("--set dns.listen={} for any free port", SocketAddr::new(address.ip(), 0))
}

/// Tells who has port 53, for those who want clients to use this server.
fn check_standard_port() -> Finding {
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 53));
    match holder(address) {
        None => Finding::good("port 53", "free; clients expect DNS there (docs/start-dns.md)"),
        Some(holder) => Finding::good("port 53", format!("held by {holder}")),
    }
}

/// Asks the upstreams for the name servers of the root.
async fn check_upstreams(settings: &DnsSettings) -> Finding {
    let question = Question { name: DomainName::root(), qtype: 2, qclass: 1 };
    let authorities = settings.upstream_ca.as_path();
    let authorities = (!authorities.as_os_str().is_empty()).then_some(authorities);
    let mut needs = UpstreamNeeds::default();
    match (RemoteClient::new(authorities), web::serve::tls::client(authorities)) {
        (Ok(remote), Ok(tls)) => {
            needs.exchange = Some(Arc::new(remote));
            needs.tls = Some(Arc::new(tls));
        }
        (Err(error), _) | (_, Err(error)) => {
            return Finding::bad("upstreams", error.to_string(), "check dns.upstream_ca");
        }
    }
    let asked = settings.upstreams.0.iter().map(async |server| {
        let options = UpstreamOptions {
            servers: vec![server.clone()],
            timeout: settings.upstream_timeout,
            ..UpstreamOptions::default()
        };
        let upstreams = Upstreams::with_needs(options, needs.clone());
        let asked = upstreams.ask(&question, AnswerKind::Plain, TtlBounds::default());
        match tokio::time::timeout(UPSTREAM_DEADLINE, asked).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(format!("{server}: {error}")),
            Err(_) => Some(format!("{server}: no answer within 5 s")),
        }
    });
    let silent: Vec<String> =
        futures_util::future::join_all(asked).await.into_iter().flatten().collect();
    let count = settings.upstreams.0.len();
    match silent.len() {
        0 if count == 1 => Finding::good("upstreams", "the only one answers"),
        0 => Finding::good("upstreams", format!("all {count} answer")),
        failed if failed < count => {
            Finding::warning("upstreams", silent.join("; "), "check dns.upstreams")
        }
        // The resolver starts without a network, and answers what it has.
        _ => Finding::warning(
            "upstreams",
            silent.join("; "),
            "check the network, or name others in dns.upstreams; until then only known names are answered",
        ),
    }
}

/// Checks that the system grants the receive buffer that bursts need.
fn check_receive_buffer() -> Finding {
    let path = Path::new("/proc/sys/net/core/rmem_max");
    let granted: Option<u64> =
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    match granted {
        Some(bytes) if bytes >= RECEIVE_BUFFER_BYTES => {
            Finding::good("receive buffer", format!("up to {} MB", bytes >> 20))
        }
        Some(bytes) => Finding::warning(
            "receive buffer",
            format!("at most {} KB; bursts of queries may be lost", bytes >> 10),
            format!("sysctl -w net.core.rmem_max={RECEIVE_BUFFER_BYTES}"),
        ),
        None => Finding::good("receive buffer", "the system does not tell its limit"),
    }
}

/// Returns the program that holds a UDP port, as far as this user may see it.
pub(crate) fn holder(address: SocketAddr) -> Option<String> {
    let inodes = ["/proc/net/udp", "/proc/net/udp6", "/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .flat_map(|path| std::fs::read_to_string(path).ok())
        .flat_map(|table| sockets(&table, address))
        .collect::<Vec<_>>();
    if inodes.is_empty() {
        return None;
    }
    let processes = std::fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    for process in processes {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        let holds = files.filter_map(Result::ok).any(|file| {
            let target = std::fs::read_link(file.path()).unwrap_or_default();
            let inode = target.to_str().and_then(|text| {
                text.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
            });
            inode.is_some_and(|inode| inodes.contains(&inode))
        });
        if holds {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("{} (process {pid})", name.trim()));
        }
    }
    Some("a program of another user".to_owned())
}

/// Returns the inodes of the sockets in a table of `/proc/net` that are in the way of an address.
/// Connections of TCP are not: only a listener (state 0A) is, and any socket of UDP (07).
fn sockets(table: &str, address: SocketAddr) -> Vec<u64> {
    let rows = table.lines().skip(1);
    rows.filter_map(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let (ip, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let is_listening = *state == "07" || *state == "0A";
        let ip = parse_hex_ip(ip)?;
        let overlaps = ip.is_unspecified() || address.ip().is_unspecified() || ip == address.ip();
        (port == address.port() && is_listening && overlaps).then(|| inode.parse().ok())?
    })
    .collect()
}

/// Reads an address as `/proc/net` has it: words in the byte order of the machine, in hexadecimal.
fn parse_hex_ip(text: &str) -> Option<IpAddr> {
    let words: Vec<[u8; 4]> = (0..text.len() / 8)
        .map(|index| u32::from_str_radix(text.get(index * 8..index * 8 + 8)?, 16).ok())
        .map(|word| word.map(u32::to_ne_bytes))
        .collect::<Option<_>>()?;
    match words.as_slice() {
        [v4] => Some(IpAddr::from(*v4)),
        [a, b, c, d] => {
            let bytes: [u8; 16] = [*a, *b, *c, *d].concat().try_into().ok()?;
            Some(IpAddr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_port_is_found() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let found = holder(address).unwrap();
        assert!(found.ends_with(&format!("(process {})", std::process::id())), "{found}");
        drop(socket);
        assert_eq!(holder(address), None);
    }

    #[test]
    fn a_cache_that_does_not_fit_is_told_with_one_that_does() {
        let told =
            |cache| format!("{:?}", describe_memory(512 << 20, true, 4, "A small board", cache));
        let good = told(32 << 20);
        assert!(
            good.contains("A small board: 4 processors") && !good.contains("cache_memory="),
            "{good}"
        );
        let bad = told(256 << 20);
        assert!(bad.contains("dns.cache_memory=64mb"), "{bad}");
    }

    #[test]
    fn addresses_of_the_kernel_are_read() {
        let loopback = u32::from_ne_bytes([127, 0, 0, 1]);
        assert_eq!(parse_hex_ip(&format!("{loopback:08X}")), Some("127.0.0.1".parse().unwrap()));
        let zeros = "0".repeat(32);
        assert!(parse_hex_ip(&zeros).unwrap().is_unspecified());
        assert_eq!(parse_hex_ip("xyz"), None);
    }
}
