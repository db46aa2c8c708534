//! The proxies people run, with the very files of packaging/gates, and the built-in guard: real
//! nginx, real Caddy, the real binary, and a site behind them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::RedisServer;

use crate::process::{Tidegate, command, text};
use crate::site::Site;

/// A proxy process, ended on drop.
pub(crate) struct Proxy {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file of packaging, with the addresses of this test.
pub(crate) fn shipped(name: &str, gate: &Tidegate, origin: &Site) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    let file = std::fs::read_to_string(path).unwrap();
    let tidegate = gate.base.trim_start_matches("http://");
    assert!(file.contains("127.0.0.1:7070") && file.contains("127.0.0.1:3000"));
    file.replace("127.0.0.1:7070", tidegate)
        .replace("127.0.0.1:3000", &format!("127.0.0.1:{}", origin.port))
}

impl Proxy {
    pub(crate) fn nginx(gate: &Tidegate, origin: &Site) -> Proxy {
        Proxy::nginx_with(&shipped("gates/nginx.conf", gate, origin))
    }

    /// nginx with a file that listens on port 80, on a port of its own instead.
    pub(crate) fn nginx_with(site: &str) -> Proxy {
        let port = testkit::reserve_port();
        let folder = tempfile::tempdir().unwrap();
        assert!(site.contains("listen 80;"));
        let site = site.replace("listen 80;", &format!("listen 127.0.0.1:{port};"));
        std::fs::write(folder.path().join("site.conf"), site).unwrap();
        let at = folder.path().display();
        // One process: workers would run as nobody, who may not enter the folder, and outlive a
        // master that is killed.
        let main = format!(
            "daemon off;\nmaster_process off;\npid {at}/pid;\n\
             error_log {at}/log;\nevents {{ worker_connections 128; }}\nhttp {{\n\
             access_log off;\nclient_body_temp_path {at}/a;\nproxy_temp_path {at}/b;\n\
             fastcgi_temp_path {at}/c;\nuwsgi_temp_path {at}/d;\nscgi_temp_path {at}/e;\n\
             include {at}/site.conf;\n}}\n"
        );
        let path = folder.path().join("nginx.conf");
        std::fs::write(&path, main).unwrap();
        let mut nginx = Command::new("nginx");
        nginx.arg("-p").arg(folder.path()).arg("-c").arg(&path);
        nginx.arg("-e").arg(folder.path().join("log"));
        Proxy::start(nginx, port, folder)
    }

    pub(crate) fn caddy(gate: &Tidegate, origin: &Site) -> Proxy {
        Proxy::caddy_with(&shipped("gates/Caddyfile", gate, origin), "shop.example")
    }

    /// Caddy with a file for a host, on a port of its own instead.
    pub(crate) fn caddy_with(site: &str, host: &str) -> Proxy {
        let port = testkit::reserve_port();
        let folder = tempfile::tempdir().unwrap();
        let named = format!("\n{host} {{");
        assert!(site.contains(&named));
        // Whatever host is named, as nginx with one server does.
        let site = site.replace(&named, &format!("\nhttp://:{port} {{"));
        let options = "admin off\n\tauto_https off\n\tdefault_bind 127.0.0.1";
        let file = format!("{{\n\t{options}\n}}\n{site}");
        let path = folder.path().join("Caddyfile");
        std::fs::write(&path, file).unwrap();
        let mut caddy = Command::new("caddy");
        caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(&path);
        caddy.env("HOME", folder.path()).env("XDG_DATA_HOME", folder.path());
        caddy.env("XDG_CONFIG_HOME", folder.path());
        Proxy::start(caddy, port, folder)
    }

    /// Envoy with a file that listens on port 8080, on a port of its own instead.
    pub(crate) fn envoy_with(binary: &Path, config: &str) -> Proxy {
        let port = testkit::reserve_port();
        let folder = tempfile::tempdir().unwrap();
        assert!(config.contains("address: 0.0.0.0, port_value: 8080"));
        let listen = format!("address: 127.0.0.1, port_value: {port}");
        let config = config.replace("address: 0.0.0.0, port_value: 8080", &listen);
        let path = folder.path().join("envoy.yaml");
        std::fs::write(&path, config).unwrap();
        let mut envoy = Command::new(binary);
        envoy.arg("-c").arg(&path).args(["--concurrency", "1", "--log-level", "warning"]);
        // Several run at once; each would claim the same shared memory.
        envoy.args(["--use-dynamic-base-id", "--disable-hot-restart"]);
        Proxy::start(envoy, port, folder)
    }

    fn start(mut command: Command, port: u16, folder: tempfile::TempDir) -> Proxy {
        let paths = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
        let log = std::fs::File::create(folder.path().join("out")).unwrap();
        command
            .env("PATH", paths)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{command:?}: {error}; install it with: apt-get install nginx caddy")
        });
        let mut proxy = Proxy { child, port, _folder: folder };
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = proxy.child.try_wait().unwrap();
            let told = ["out", "log"].map(|name| {
                std::fs::read_to_string(proxy._folder.path().join(name)).unwrap_or_default()
            });
            assert!(ended.is_none() && Instant::now() < deadline, "{command:?}: {told:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        proxy
    }

    pub(crate) fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: ureq::http::HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The cookie of the queue that was set.
    fn cookie(&self) -> Option<String> {
        let all = self.headers.get_all("set-cookie").iter();
        let ours = all.map(|v| v.to_str().unwrap()).find(|v| v.starts_with("wr_site="))?;
        Some(ours.split(';').next().unwrap().to_owned())
    }
}

pub(crate) fn send(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .allow_non_standard_methods(true)
        .timeout_global(Some(Duration::from_secs(60)))
        .build()
        .into();
    let mut request = ureq::http::Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut answer = match body {
        "" => agent.run(request.body(()).unwrap()).unwrap(),
        body => agent.run(request.body(body.to_owned()).unwrap()).unwrap(),
    };
    Answer {
        status: answer.status().as_u16(),
        headers: answer.headers().clone(),
        body: answer.body_mut().read_to_string().unwrap(),
    }
}

const PAGE: (&str, &str) = ("accept", "text/html");

fn navigate(url: &str, cookie: &str) -> Answer {
    match cookie {
        "" => send("GET", url, &[PAGE], ""),
        cookie => send("GET", url, &[PAGE, ("cookie", cookie)], ""),
    }
}

/// What holds behind any gate of a queue `site` with room for one.
fn behind_a_gate(base: &str, gate: &Tidegate) {
    // The first visitor does not even notice.
    let first = navigate(&format!("{base}/shop?a=b%20c"), "");
    assert_eq!(first.status, 200, "{}", first.body);
    assert!(first.body.starts_with("the site saw GET /shop?a=b%20c"), "{}", first.body);
    let pass = first.cookie().expect("a pass");
    assert!(pass.starts_with("wr_site=eyJ"), "{pass}");
    let set: Vec<_> = first.headers.get_all("set-cookie").iter().collect();
    assert!(set.iter().any(|value| value.to_str().unwrap().starts_with("site=1")), "{set:?}");
    let lower = first.body.to_ascii_lowercase();
    assert!(lower.contains("x-wr-session: ") && lower.contains("x-forwarded-for: 127.0.0.1\r\n"));

    // With the pass everything goes through, bodies too, and nothing is set again.
    let sent = [("cookie", pass.as_str()), ("x-wr-session", "forged")];
    let posted = send("POST", &format!("{base}/cart"), &sent, "two of them");
    assert_eq!(posted.status, 200);
    assert!(posted.body.ends_with("two of them"), "{}", posted.body);
    assert!(!posted.body.contains("forged"), "{}", posted.body);
    // The pass came back: it is set once more, for the whole session, and then stays.
    let pass = posted.cookie().unwrap_or(pass);
    assert_eq!(navigate(&format!("{base}/shop"), &pass).cookie(), None);
    assert_eq!(navigate(&format!("{base}/private"), &pass).status, 401, "the site's own");

    // The next one waits, on a page of the same site.
    let second = navigate(&format!("{base}/shop?a=b%20c"), "");
    assert_eq!(second.status, 302, "{}", second.body);
    let page = second.header("location").to_owned();
    assert!(page.ends_with("/_wr/site?return_to=/shop%3Fa%3Db%2520c"), "{page}");
    assert_eq!(second.header("cache-control"), "no-store");
    let program = send("POST", &format!("{base}/cart"), &[], "x");
    assert_eq!(program.status, 429, "{}", program.body);
    assert!(!program.header("retry-after").is_empty());
    let told: serde_json::Value = serde_json::from_str(&program.body).unwrap();
    assert_eq!(
        (&told["error"]["code"], &told["error"]["details"]["queue"]),
        (&"QUEUED".into(), &"site".into()),
        "{told}"
    );
    assert_eq!(told["error"]["details"]["next_position"], 1, "{told}");
    assert_eq!(told["error"]["details"]["enqueue"], "/_wr/api/v1/queues/site/enqueue", "{told}");
    assert!(!told["request_id"].as_str().unwrap().is_empty(), "{told}");
    let forged = format!("{}x", pass);
    assert_eq!(navigate(&format!("{base}/"), &forged).status, 302);

    // On the page: a key, then a place, then the turn.
    let arrived = navigate(&format!("{base}/_wr/site?return_to=/shop"), "");
    assert_eq!(arrived.status, 303, "{}", arrived.body);
    let key = arrived.cookie().unwrap();
    let joined = navigate(&format!("{base}{}", path_of(arrived.header("location"))), &key);
    let place = joined.cookie().expect("a place");
    assert!(place.starts_with("wr_site=wrp1."), "{place}");
    let waiting = navigate(&format!("{base}/_wr/site/wait?return_to=/shop"), &place);
    assert_eq!(waiting.status, 200);
    assert_eq!(navigate(&format!("{base}/shop"), &place).status, 302, "not yet");

    // The first one is taken out: now it is the second one's turn, at the gate itself.
    let list = gate.run(&["room", "sessions", "site", "--json"]);
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    let id = list[0]["session_id"].as_str().unwrap();
    assert!(gate.run(&["room", "revoke", "--session", id]).status.success());
    assert_ne!(navigate(&format!("{base}/shop"), &pass).status, 200, "revoked at once");
    let deadline = Instant::now() + Duration::from_secs(60);
    let back = loop {
        let back = navigate(&format!("{base}/shop"), &place);
        if back.status == 200 {
            break back;
        }
        assert!(Instant::now() < deadline, "{}", back.status);
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(back.body.starts_with("the site saw GET /shop"), "{}", back.body);
    assert!(back.cookie().unwrap().starts_with("wr_site=eyJ"));
}

fn path_of(location: &str) -> &str {
    location.find("/_wr/").map_or(location, |at| &location[at..])
}

pub(crate) fn with_queue(args: &[&str]) -> Tidegate {
    let gate = Tidegate::start("embedded:", args);
    let made = gate.run(&["room", "create", "site", "--max-active", "1", "--rate", "100/s"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    gate
}

pub(crate) const TRUST: [&str; 2] = ["--set", "http.trusted_proxies=127.0.0.1"];

#[test]
fn nginx_asks_at_the_gate() {
    let (gate, origin) = (with_queue(&TRUST), Site::echo());
    let nginx = Proxy::nginx(&gate, &origin);
    behind_a_gate(&nginx.base(), &gate);
    // The gate is not there: closed, as the file says.
    drop(gate);
    assert_eq!(navigate(&format!("{}/", nginx.base()), "").status, 503);
}

#[test]
fn caddy_asks_at_the_gate() {
    let (gate, origin) = (with_queue(&TRUST), Site::echo());
    let caddy = Proxy::caddy(&gate, &origin);
    behind_a_gate(&caddy.base(), &gate);
    drop(gate);
    assert_eq!(navigate(&format!("{}/", caddy.base()), "").status, 502);
}

/// The first block of a kind in docs/operating.md that has a word in it, for a server.
pub(crate) fn documented(kind: &str, word: &str, gate: &Tidegate) -> String {
    let address = gate.base.trim_start_matches("http://");
    documented_block(kind, word).replace("127.0.0.1:7070", address)
}

/// The first block of a kind in docs/operating.md that has a word in it.
pub(crate) fn documented_block(kind: &str, word: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md");
    let page = std::fs::read_to_string(path).unwrap();
    let blocks = page.split("```").skip(1).step_by(2);
    let block = blocks.filter_map(|block| block.strip_prefix(kind)).find(|b| b.contains(word));
    let block = block.unwrap();
    assert!(block.contains("127.0.0.1:7070"));
    block.to_owned()
}

/// The server itself behind a proxy: pages, calls, live streams, and who the visitor is.
fn the_server_works_behind(base: &str, gate: &Tidegate) {
    assert_eq!(send("GET", &format!("{base}/readyz"), &[], "").status, 200);
    let token = format!("Bearer {}", gate.token());
    let me = send("GET", &format!("{base}/api/v1/me"), &[("authorization", &token)], "");
    assert_eq!(me.status, 200, "{}", me.body);
    let made = [("authorization", token.as_str()), ("content-type", "application/json")];
    let queue = r#"{"id":"behind"}"#;
    let made = send("POST", &format!("{base}/api/v1/admin/queues"), &made, queue);
    assert_eq!(made.status, 201, "{}", made.body);
    let entries = gate.json("/api/v1/audit")["items"].clone();
    assert_eq!(entries[0]["client"], "127.0.0.1", "{entries}");

    // Events are handed on as they come.
    let mut socket = TcpStream::connect(base.trim_start_matches("http://")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let host = base.trim_start_matches("http://");
    let asked = format!(
        "GET /api/v1/live?topics=overview HTTP/1.1\r\nhost: {host}\r\nauthorization: {token}\r\n\r\n"
    );
    socket.write_all(asked.as_bytes()).unwrap();
    let mut got = Vec::new();
    while !text(&got).contains("event: part") {
        let mut piece = [0; 4096];
        let read = socket.read(&mut piece).unwrap();
        assert!(read > 0, "{}", text(&got));
        got.extend_from_slice(&piece[..read]);
    }
}

#[test]
fn the_server_works_behind_nginx_as_documented() {
    let gate = Tidegate::start("embedded:", &TRUST);
    let location = documented("nginx", "proxy_pass", &gate);
    let nginx = Proxy::nginx_with(&format!("server {{\nlisten 80;\n{location}\n}}\n"));
    the_server_works_behind(&nginx.base(), &gate);
}

#[test]
fn the_server_works_behind_caddy_as_documented() {
    let gate = Tidegate::start("embedded:", &TRUST);
    let caddy = Proxy::caddy_with(&documented("text", "reverse_proxy", &gate), "gate.example");
    the_server_works_behind(&caddy.base(), &gate);
}

#[test]
fn one_command_guards_a_site() {
    let origin = Site::echo();
    let gate =
        Tidegate::guard(&["--origin", &origin.url(), "--rate", "6000/m", "--max-active", "1"]);
    let base = gate.guarded();
    let shown = gate.run(&["room", "show", "site", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["max_active"], 1);
    assert_eq!(shown["admission"]["count"], 6000);
    assert_eq!(shown["admission"]["per_seconds"], 60);
    behind_a_gate(&base, &gate);
}

/// Limit and rate of the guard's queue.
fn limits(gate: &Tidegate) -> (u64, u64) {
    let shown = gate.json("/api/v1/admin/queues/site");
    (shown["max_active"].as_u64().unwrap(), shown["admission"]["count"].as_u64().unwrap())
}

#[track_caller]
fn what_an_operator_changed_outlives_a_restart(store: &str) {
    let origin = Site::echo();
    let url = origin.url();
    let start = |folder, most: &str| {
        let args = ["--store", store, "--origin", &url, "--rate", "600/m", "--max-active", most];
        Tidegate::guard_in(folder, &args)
    };
    let gate = start(tempfile::tempdir().unwrap(), "5");
    assert_eq!(limits(&gate), (5, 600));
    let set = gate.run(&["room", "set", "site", "--max-active", "9", "--rate", "60/m"]);
    assert!(set.status.success(), "{}", text(&set.stderr));

    // The same flags again: they were applied before.
    let gate = start(gate.stop(), "5");
    assert_eq!(limits(&gate), (9, 60));
    let log = gate.log();
    assert!(log.contains("not applied") && log.contains("guard.max_active"), "{log}");

    // One of them is another one now, and counts.
    let gate = start(gate.stop(), "7");
    assert_eq!(limits(&gate), (7, 60));
    assert!(gate.log().contains("applied to the queue"), "{}", gate.log());
    let gate = start(gate.stop(), "7");
    assert_eq!(limits(&gate), (7, 60));
}

#[test]
fn what_an_operator_changed_outlives_a_restart_on_the_built_in_store() {
    what_an_operator_changed_outlives_a_restart("embedded:{data}");
}

#[test]
fn what_an_operator_changed_outlives_a_restart_on_redis() {
    let redis = RedisServer::start();
    what_an_operator_changed_outlives_a_restart(&redis.url());
}

#[test]
fn a_guard_has_its_rules_from_the_configuration_file() {
    let origin = Site::echo();
    let folder = tempfile::tempdir().unwrap();
    let file = format!(
        "[guard]\norigin = '{}'\nmax_active = 1\nroutes = ['/checkout = checkout']\n\
         open_paths = ['/healthz', '/static/*']\nbypass_file = 'partners'\n",
        origin.url()
    );
    std::fs::write(folder.path().join("tidegate.toml"), file).unwrap();
    std::fs::write(folder.path().join("partners"), "# acme\n7d1b7f0a2c9e4f58b3aa\n").unwrap();
    let gate = Tidegate::guard_in(folder, &[]);
    let base = gate.guarded();
    let inside = navigate(&format!("{base}/"), "").cookie().unwrap();
    assert_eq!(navigate(&format!("{base}/"), "").status, 302);
    assert_eq!(navigate(&format!("{base}/"), &inside).status, 200);
    for open in ["/healthz", "/static/app.js"] {
        let answer = send("GET", &format!("{base}{open}"), &[], "");
        assert!(answer.body.starts_with(&format!("the site saw GET {open}")), "{}", answer.body);
    }
    let partner = [("x-wr-bypass", "7d1b7f0a2c9e4f58b3aa")];
    assert_eq!(send("POST", &format!("{base}/orders"), &partner, "{}").status, 200);
    assert_eq!(send("POST", &format!("{base}/orders"), &[], "{}").status, 429);
    // The other part of the site has room of its own, in a queue that was made for it.
    let paying = navigate(&format!("{base}/checkout"), &inside);
    assert_eq!(paying.status, 200);
    assert!(paying.body.to_ascii_lowercase().contains("x-wr-queue: checkout"), "{}", paying.body);
    assert_eq!(gate.json("/api/v1/admin/queues/checkout")["active"], 1);
}

#[test]
fn the_guard_has_an_address_for_visitors_and_one_for_its_dashboard() {
    let folder = tempfile::tempdir().unwrap();
    let help = text(&command(folder.path(), &["room", "guard", "--help"]).output().unwrap().stdout);
    let line = |flag: &str| {
        let after = help.split(flag).nth(1).unwrap_or_else(|| panic!("{flag}: {help}"));
        after.lines().take(2).collect::<Vec<_>>().join(" ")
    };
    assert!(line("--listen <ADDRESS>").contains("visitors"), "{help}");
    assert!(line("--dashboard <ADDRESS>").contains("dashboard and API"), "{help}");

    let origin = Site::echo();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = taken.local_addr().unwrap().to_string();
    let start = |listen: &str, dashboard: &[&str]| {
        let args = ["room", "guard", "--origin", &origin.url(), "--set", "resp.listen=off"];
        let mut guard = command(folder.path(), &args);
        guard.args(["--listen", listen]).args(dashboard).output().unwrap()
    };
    let told = text(&start("127.0.0.1:0", &["--dashboard", &busy]).stderr);
    assert!(
        told.contains(&format!("listens on {busy}, where dashboard and API would be")),
        "{told}"
    );
    assert!(told.contains("--dashboard 127.0.0.1:0") && told.contains("http.listen"), "{told}");
    let told = text(&start(&busy, &["--dashboard", "127.0.0.1:0"]).stderr);
    assert!(told.contains("where the guarded site would be"), "{told}");
    assert!(told.contains("--listen 127.0.0.1:0") && told.contains("guard.listen"), "{told}");

    // Before the verb the flag means the same.
    let got = command(folder.path(), &["--listen", &busy, "room", "guard"])
        .args(["--origin", &origin.url(), "--dashboard", "127.0.0.1:0", "--set", "resp.listen=off"])
        .output()
        .unwrap();
    assert!(text(&got.stderr).contains("where the guarded site would be"), "{}", text(&got.stderr));
}

#[test]
fn a_guard_without_a_site_or_with_a_wrong_one_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let check = |args: &[&str], word: &str| {
        let got = command(folder.path(), &["room", "guard"]).args(args).output().unwrap();
        let told = text(&got.stderr);
        assert_eq!(got.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains(word), "{args:?}: {told}");
    };
    check(&[], "--origin http://127.0.0.1:3000");
    check(&["--origin", "127.0.0.1:3000"], "http://127.0.0.1:3000");
    check(&["--origin", "http://127.0.0.1:3000/shop"], "has a path");
    check(&["--origin", "http://a", "--route", "/checkout"], "/checkout=checkout");
    check(&["--origin", "http://a", "--open-path", "/*.css"], "/static/*");
    check(&["--origin", "http://a", "--open-network", "home"], "10.0.0.0/8");
    check(&["--origin", "http://127.0.0.1:3000", "--rate", "fast"], "500/m");
    check(&["--origin", "http://127.0.0.1:3000", "--when-down", "ajar"], "open");
    check(
        &[
            "--origin",
            "http://127.0.0.1:3000",
            "--queue",
            "Not A Name",
            "--store",
            "embedded:",
            "--set",
            "http.listen=127.0.0.1:0",
            "--set",
            "resp.listen=off",
        ],
        "guard.queue",
    );
}
