//! Who the client is behind nginx and Caddy with the very blocks of docs/operating.md, whatever
//! headers a visitor sends: by the enqueue limit, the login lockout, the audit trail and the guard.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::gates::{Proxy, TRUST, documented};
use crate::process::{Tidegate, text};
use crate::site::Site;

/// The address visitors come from: of the loopback network, and not the proxy's own.
const VISITOR: &str = "127.0.0.2";

/// Everything a visitor may try, with a new address in it each time.
pub(crate) fn hostile(n: u32) -> Vec<Vec<u8>> {
    let address = format!("198.51.100.{n}");
    let lines = [
        format!("Forwarded: for={address}"),
        format!("Forwarded: for={address};proto=https;host=evil.example, for=127.0.0.1"),
        format!("Forwarded: for=\"{address}"),
        format!("Forwarded: for=\"[2001:db8:{n}::1]:443\""),
        "Forwarded: for=unknown".to_owned(),
        format!("X-Forwarded-For: {address}"),
        format!("X-Forwarded-For: {address}:443"),
        format!("X-Forwarded-For: {address}, 127.0.0.1"),
        format!("X-Forwarded-For: {address}\r\nX-Forwarded-For: 127.0.0.1"),
        format!("X-Forwarded-For: [2001:db8:{n}::1]"),
        "X-Forwarded-For: junk, , \"".to_owned(),
        "X-Forwarded-For: 127.0.0.1".to_owned(),
        format!("X-Real-IP: {address}"),
        format!("X-Client-IP: {address}"),
        format!("CF-Connecting-IP: {address}"),
        format!("True-Client-IP: {address}"),
        format!("X_Forwarded_For: {address}"),
        "X-Request-Id: constant".to_owned(),
        format!("X-Forwarded-Host: evil.example\r\nX-Forwarded-Proto: https\r\nVia: {address}"),
    ];
    let mut all: Vec<Vec<u8>> = lines.into_iter().map(String::into_bytes).collect();
    all.push([b"X-Forwarded-For: \xff\xfe, ", address.as_bytes()].concat());
    all
}

/// Sends a request as a visitor; returns the status and the whole reply.
pub(crate) fn visit(base: &str, line: &str, headers: &[u8], body: &str) -> (u16, String) {
    let host = base.trim_start_matches("http://");
    let head = format!("host: {host}\r\ncontent-length: {}\r\n", body.len()).into_bytes();
    let head = match headers {
        [] => head,
        headers => [&head, headers, b"\r\n"].concat(),
    };
    exchange(base, line, &head, body)
}

/// Sends a request as a visitor, with these lines as its whole head.
pub(crate) fn exchange(base: &str, line: &str, head: &[u8], body: &str) -> (u16, String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connected = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{VISITOR}:0").parse().unwrap()).unwrap();
        let at = base.trim_start_matches("http://").parse().unwrap();
        socket.connect(at).await.unwrap().into_std().unwrap()
    });
    let mut socket: TcpStream = connected;
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut sent = format!("{line} HTTP/1.1\r\nconnection: close\r\n").into_bytes();
    sent.extend_from_slice(head);
    sent.extend_from_slice(format!("\r\n{body}").as_bytes());
    socket.write_all(&sent).unwrap();
    let mut got = Vec::new();
    socket.read_to_end(&mut got).unwrap();
    let got = text(&got);
    let status = got.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or_else(|| panic!("no answer: {got}")), got)
}

/// A server with small limits and a queue.
fn server() -> Tidegate {
    let limits = [
        "--set",
        "room.enqueues_per_minute=5",
        "--set",
        "auth.login_tries=5",
        "--set",
        "audit.keep=500",
    ];
    let gate = Tidegate::start("embedded:", &[&TRUST[..], &limits[..]].concat());
    let made = gate.run(&["room", "create", "concert"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    gate
}

/// Whatever a visitor sends, it is one visitor, at its own address.
fn a_visitor_is_who_it_is_behind(base: &str, gate: &Tidegate) {
    let enqueue = "POST /api/v1/queues/concert/enqueue";
    let mut enqueued = Vec::new();
    for n in 1..=3 {
        for header in hostile(n) {
            let (status, body) = visit(base, enqueue, &header, "");
            // A proxy may refuse a header that is none; then nothing has happened.
            assert!(matches!(status, 201 | 400 | 429), "{}: {body}", text(&header));
            if status == 201 {
                enqueued.push(text(&header));
            }
        }
    }
    assert_eq!(enqueued.len(), 5, "one visitor may enqueue 5 times a minute: {enqueued:?}");

    let form =
        b"content-type: application/x-www-form-urlencoded\r\nsec-fetch-site: same-origin\r\n";
    let mut tried = 0;
    for n in 1..=3 {
        for header in hostile(n) {
            let headers = [&form[..], &header].concat();
            let (status, body) = visit(base, "POST /login", &headers, "token=wrong");
            assert!(matches!(status, 401 | 400 | 429), "{}: {body}", text(&header));
            tried += u32::from(status == 401);
        }
    }
    assert_eq!(tried, 5, "one address may fail 5 times");

    let entries = gate.json("/api/v1/audit")["items"].clone();
    let logins: Vec<_> = entries
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["action"] == "session.open" && entry["status"] == 401)
        .collect();
    // The first refusal has a line at once; those that follow are summed up.
    assert!(!logins.is_empty(), "{entries}");
    for entry in logins {
        assert_eq!(entry["client"], VISITOR, "{entry}");
        assert_ne!(entry["request_id"], "constant");
    }
}

#[test]
fn a_visitor_is_who_it_is_behind_nginx() {
    let gate = server();
    let location = documented("nginx", "proxy_pass", &gate);
    let nginx = Proxy::nginx_with(&format!("server {{\nlisten 80;\n{location}\n}}\n"));
    a_visitor_is_who_it_is_behind(&nginx.base(), &gate);
}

#[test]
fn a_visitor_is_who_it_is_behind_caddy() {
    let gate = server();
    let caddy = Proxy::caddy_with(&documented("text", "reverse_proxy", &gate), "gate.example");
    a_visitor_is_who_it_is_behind(&caddy.base(), &gate);
}

/// A guard with an open network that no visitor is in, and nobody let in otherwise.
fn guard_behind(start: fn(&str) -> Proxy) {
    let origin = Site::echo();
    let open = "198.51.100.0/24";
    let url = origin.url();
    let args = ["--origin", &url, "--max-active", "1", "--open-network", open];
    let gate = Tidegate::guard(&[&args[..], &TRUST[..]].concat());
    let proxy = start(gate.guarded().trim_start_matches("http://"));
    // The one place is taken.
    assert_eq!(visit(&proxy.base(), "GET /", b"accept: text/html", "").0, 200);
    assert!(gate.run(&["room", "pause", "site"]).status.success());
    for header in hostile(1) {
        let (status, body) = visit(&proxy.base(), "GET /", &header, "");
        assert!(matches!(status, 400 | 429 | 503), "{}: {body}", text(&header));
    }
    // What passes tells the site nothing a visitor made up.
    for header in hostile(1) {
        let (status, body) = visit(&proxy.base(), "GET /robots.txt", &header, "");
        assert!(matches!(status, 200 | 400), "{}: {body}", text(&header));
        let seen = body.to_ascii_lowercase();
        // `Via` says which proxies a request passed, not who asks.
        let seen: Vec<&str> = seen.lines().filter(|line| !line.starts_with("via:")).collect();
        let seen = seen.join("\n");
        for made_up in ["198.51.100.1", "2001:db8:1", "evil.example"] {
            assert!(!seen.contains(made_up), "{}: {seen}", text(&header));
        }
        if status == 200 {
            assert!(seen.contains(&format!("x-real-ip: {VISITOR}")), "{seen}");
        }
    }
}

#[test]
fn a_guard_behind_nginx_believes_no_visitor() {
    guard_behind(|address| {
        let page = crate::gates::documented_block("nginx", "proxy_pass");
        let location = page.replace("127.0.0.1:7070", address);
        Proxy::nginx_with(&format!("server {{\nlisten 80;\n{location}\n}}\n"))
    });
}

#[test]
fn a_guard_behind_caddy_believes_no_visitor() {
    guard_behind(|address| {
        let page = crate::gates::documented_block("text", "reverse_proxy");
        Proxy::caddy_with(&page.replace("127.0.0.1:7070", address), "gate.example")
    });
}
