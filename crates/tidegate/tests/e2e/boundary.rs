//! The trust boundary on every path a request can take to a site: the shipped files of nginx and Caddy,
//! forward authentication by itself, and the guard. A visitor without a pass does not reach the site,
//! whatever the request says of itself; with one, nothing a visitor made up reaches it.

use serde_json::Value;

use crate::client_address::{exchange, hostile};
use crate::gates::{Proxy, TRUST, with_queue};
use crate::process::{Tidegate, text};
use crate::site::Site;

/// A browser's question before a call to another origin, which passes without a pass.
const PREFLIGHT: &str = "origin: https://a.example\r\naccess-control-request-method: POST";

/// Request lines, heads without `host`, and bodies of a visitor who wants to be taken for another.
fn attacks() -> Vec<(String, Vec<u8>, String)> {
    let mut all = Vec::new();
    let mut add = |line: &str, head: &[u8], body: &str| {
        all.push((line.to_owned(), head.to_vec(), body.to_owned()));
    };
    // Another address, host or scheme.
    for header in hostile(1) {
        add("GET /shop", &header, "");
    }
    // A preflight request that is none: it has a body, or names the method the site shall go by.
    for more in [
        "x-http-method-override: POST",
        "x-http-method: DELETE",
        "x-method-override: PUT",
        "x_http_method_override: POST",
        "x-original-url: /admin",
        "x-rewrite-url: /admin",
        "content-length: 5",
        "transfer-encoding: chunked",
    ] {
        let body = match more {
            "content-length: 5" => "hello",
            "transfer-encoding: chunked" => "5\r\nhello\r\n0\r\n\r\n",
            _ => "",
        };
        add("OPTIONS /shop", format!("{PREFLIGHT}\r\n{more}").as_bytes(), body);
    }
    // A call that says it is a preflight request.
    for method in [
        "x-http-method-override",
        "x-original-method",
        "x-forwarded-method",
        "x_original_method",
        "x_forwarded_method",
    ] {
        add("POST /shop", format!("{PREFLIGHT}\r\n{method}: OPTIONS").as_bytes(), "");
    }
    // A path that needs no pass, said in a header or as the target.
    for name in
        ["x-original-uri", "x-forwarded-uri", "x-original-url", "x-rewrite-url", "x_original_uri"]
    {
        for path in ["/robots.txt", "/_wr/site", "/_wr_gate"] {
            add("GET /shop", format!("{name}: {path}").as_bytes(), "");
        }
    }
    for target in [
        "/_wr/../shop",
        "/_wr/..%2fshop",
        "/_wr/%2e%2e/shop",
        "/_wr%2f..%2fshop",
        "/_wr/..;/shop",
        "/_wr/site/../../shop",
        "//_wr/../shop",
        "/\\_wr/../shop",
        "/_WR/../shop",
        "/robots.txt/../shop",
        "/robots.txt%2f..%2fshop",
        "/robots.txt;/../shop",
        "/robots.txt%3f/../shop",
        "/_wr_gate",
        "/gate/nginx/site",
        "/shop%00",
        "/shop?wrtoken=eyJhbGciOiJub25lIn0.e30.",
        "/shop?wrtoken=wrr1.x.y",
        "http://other.example/shop",
        "*",
    ] {
        add(&format!("GET {target}"), b"", "");
    }
    // What only Tidegate says, and passes nobody signed.
    for said in [
        "x-wr-session: 0b6f7a52-8e0c-4a55-9c0e-2f7c7a9d8f11",
        "x-wr-decision: allow",
        "x-wr-bypass: 7d1b7f0a2c9e4f58b3aa",
        "x_wr_session: 0b6f7a52-8e0c-4a55-9c0e-2f7c7a9d8f11",
        "x-wr-guarded: site",
        "cookie: wr_site=eyJhbGciOiJub25lIn0.eyJhdWQiOiJzaXRlIn0.",
        "cookie: wr_site=x; wr_site=eyJhbGciOiJub25lIn0.e30.",
        "authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.AAAA",
    ] {
        add("GET /shop", said.as_bytes(), "");
    }
    // Headers that are to be dropped on the way, so that others count.
    for named in [
        "x-original-method, x-original-uri, x-forwarded-for",
        "x-forwarded-method, x-forwarded-uri",
        "content-length, cookie, host",
        "x-wr-session",
    ] {
        add("GET /shop", format!("connection: {named}\r\n{PREFLIGHT}").as_bytes(), "");
    }
    all
}

/// Hosts a visitor may name; the proxies serve all of them here.
const HOSTS: [&str; 4] = ["shop.example", "127.0.0.1:7070", "shop.example.", "SHOP.example:80"];

/// Tries everything without a pass; the site is closed to newcomers.
fn nobody_comes_past(base: &str) {
    let mut refused = 0;
    for (line, head, body) in attacks() {
        for host in HOSTS.iter().take(if head.is_empty() { HOSTS.len() } else { 1 }) {
            let lengths = ["content-length", "transfer-encoding"];
            let has_length = lengths.iter().any(|name| text(&head).contains(name));
            let mut sent = format!("host: {host}\r\n").into_bytes();
            if !has_length && line.starts_with("POST") {
                sent.extend_from_slice(b"content-length: 0\r\n");
            }
            sent.extend_from_slice(&head);
            if !head.is_empty() {
                sent.extend_from_slice(b"\r\n");
            }
            let (status, reply) = exchange(base, &line, &sent, &body);
            let told = format!("{line} {}: {reply}", text(&sent));
            // A proxy that drops the disguise first is left with a preflight request, which passes.
            if line.starts_with("OPTIONS")
                && body.is_empty()
                && reply.contains("the site saw OPTIONS")
            {
                let seen = reply.to_ascii_lowercase();
                for word in ["override", "x-http", "x-original", "x-rewrite", "/admin", "x_"] {
                    assert!(!seen.contains(word), "{told}");
                }
                continue;
            }
            assert!(!reply.contains("the site saw"), "{told}");
            assert!(status >= 300 || line.contains("/_wr") || line.contains(" *"), "{told}");
            refused += 1;
        }
    }
    assert!(refused > 80, "{refused}");
    // The one that may pass does, so what was refused was refused for its disguise.
    let plain = format!("host: shop.example\r\n{PREFLIGHT}\r\n");
    let (status, reply) = exchange(base, "OPTIONS /shop", plain.as_bytes(), "");
    assert!(status == 200 && reply.contains("the site saw OPTIONS /shop"), "{reply}");
}

/// With a pass everything reaches the site, except what the visitor made up about itself.
fn the_site_hears_nothing_made_up(base: &str, pass: &str) {
    for made_up in [
        "Forwarded: for=198.51.100.1;host=evil.example",
        "X-Forwarded-For: 198.51.100.1",
        "X-Forwarded-Host: evil.example",
        "X-Forwarded-Proto: gopher",
        "X-Real-IP: 198.51.100.1",
        "X-Client-IP: 198.51.100.1",
        "True-Client-IP: 198.51.100.1",
        "CF-Connecting-IP: 198.51.100.1",
        "X_Forwarded_For: 198.51.100.1",
        "X_Real_IP: 198.51.100.1",
        "X-WR-Session: made-up",
        "X_WR_Session: made-up",
        "X-WR-Queue: made-up",
        "X-HTTP-Method-Override: DELETE",
        "X_HTTP_Method_Override: DELETE",
        "X-HTTP-Method: DELETE",
        "X-Method-Override: DELETE",
        "X-Original-URL: /made-up",
        "X-Original-URI: /made-up",
        "X-Rewrite-URL: /made-up",
        "X-Original-Method: DELETE",
        "X-Host: evil.example",
        "Connection: x-forwarded-for, x-wr-session, x-real-ip",
    ] {
        let head = format!("host: shop.example\r\ncookie: {pass}\r\n{made_up}\r\n");
        let (status, reply) = exchange(base, "GET /shop", head.as_bytes(), "");
        assert_eq!(status, 200, "{made_up}: {reply}");
        let (_, seen) = reply.split_once("the site saw GET /shop").unwrap();
        let seen = seen.to_ascii_lowercase();
        for word in ["198.51.100.1", "evil.example", "made-up", "gopher", ": delete", "override"] {
            assert!(!seen.contains(word), "{made_up}: {seen}");
        }
        assert!(!seen.lines().any(|line| line.split(':').next().unwrap().contains('_')), "{seen}");
        assert!(seen.contains("x-forwarded-for: 127.0.0.2\r\n"), "{made_up}: {seen}");
        assert_eq!(seen.matches("x-wr-session: ").count(), 1, "{made_up}: {seen}");
    }
}

/// Takes the one slot as a visitor; returns the pass.
fn enter(base: &str, gate: &Tidegate) -> String {
    let head = b"host: shop.example\r\naccept: text/html\r\n";
    let (status, reply) = exchange(base, "GET /", head, "");
    assert_eq!(status, 200, "{reply}");
    let pass = reply.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let ours = name.eq_ignore_ascii_case("set-cookie") && value.starts_with("wr_site=");
        ours.then(|| value.split(';').next().unwrap().to_owned())
    });
    assert!(gate.run(&["room", "pause", "site"]).status.success());
    pass.unwrap_or_else(|| panic!("no pass: {reply}"))
}

fn holds(base: &str, gate: &Tidegate) {
    let pass = enter(base, gate);
    nobody_comes_past(base);
    the_site_hears_nothing_made_up(base, &pass);
}

#[test]
fn no_disguise_comes_past_nginx() {
    let (gate, origin) = (with_queue(&TRUST), Site::echo());
    let nginx = Proxy::nginx(&gate, &origin);
    holds(&nginx.base(), &gate);
}

#[test]
fn no_disguise_comes_past_caddy() {
    let (gate, origin) = (with_queue(&TRUST), Site::echo());
    let caddy = Proxy::caddy(&gate, &origin);
    holds(&caddy.base(), &gate);
}

#[test]
fn no_disguise_comes_past_the_guard() {
    let origin = Site::echo();
    // Nothing is open here: other paths are tried as disguises.
    let args = ["--origin", &origin.url(), "--rate", "6000/m", "--max-active", "1"];
    let gate = Tidegate::guard(&[&args[..], &["--set", "guard.open_paths="]].concat());
    holds(&gate.guarded(), &gate);
}

/// A proxy that asks by forward authentication and hands on every header of the visitor, as Traefik
/// does, with its own words about the request.
#[test]
fn no_disguise_comes_past_forward_authentication() {
    let gate = with_queue(&TRUST);
    let ask = |method: &str, uri: &str, head: &[u8]| {
        let said = format!(
            "host: gate\r\nx-forwarded-method: {method}\r\nx-forwarded-uri: {uri}\r\nx-forwarded-for: \
             127.0.0.2\r\nx-forwarded-proto: http\r\nx-forwarded-host: shop.example\r\n"
        );
        exchange(&gate.base, "GET /gate/forward/site", &[said.as_bytes(), head].concat(), "")
    };
    assert_eq!(ask("GET", "/", b"accept: text/html\r\n").0, 200);
    assert!(gate.run(&["room", "pause", "site"]).status.success());
    for (line, head, body) in attacks() {
        let (method, uri) = line.split_once(' ').unwrap();
        // The proxy puts its own in place of these, and asks without the body.
        let ours = ["x-forwarded-", "connection:", "transfer-encoding:"];
        let lines: Vec<String> = text(&head)
            .split("\r\n")
            .filter(|line| !line.is_empty() && !line.contains('\u{fffd}'))
            .filter(|line| !ours.iter().any(|start| line.to_ascii_lowercase().starts_with(start)))
            .map(|line| match line.strip_prefix("content-length") {
                Some(length) => format!("x-original-content-length{length}\r\n"),
                None => format!("{line}\r\n"),
            })
            .collect();
        // Chunked bodies have no length to be told: Traefik hands the coding on.
        let chunked = match body.starts_with("5\r\n") {
            true => "x-original-transfer-encoding: chunked\r\n",
            false => "",
        };
        let (status, reply) =
            ask(method, uri, [lines.concat(), chunked.to_owned()].concat().as_bytes());
        let pure = method == "OPTIONS" && lines.len() == 2 && chunked.is_empty();
        assert!(pure || matches!(status, 302 | 400 | 429), "{line} {lines:?}: {reply}");
        // And nobody is sent elsewhere.
        let location = reply.lines().find_map(|line| line.strip_prefix("location: "));
        assert!(location.is_none_or(|to| to.starts_with("/_wr/site")), "{line}: {reply}");
    }
    let plain = format!("{PREFLIGHT}\r\n");
    assert_eq!(ask("OPTIONS", "/shop", plain.as_bytes()).0, 200);
    let program = ask("POST", "/shop", b"").1;
    let body: Value = serde_json::from_str(program.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["error"]["code"], "QUEUED", "{body}");
}
