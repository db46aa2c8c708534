//! The programs in `examples/` that are not in Rust, started as its README says. Those in Rust have tests of their own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::openapi::python_tool;
use crate::process::{Tidegate, text};
use crate::v1::python;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// A program of the examples, with the addresses and the token of a Tidegate in its environment.
fn example(gate: &Tidegate, program: &Path, script: &str) -> Command {
    let redis = gate.banner.lines().find_map(|line| line.trim().strip_prefix("RESP")).unwrap();
    let mut command = Command::new(program);
    command.arg(script).current_dir(folder());
    command.env("TIDEGATE_URL", &gate.base).env("TIDEGATE_TOKEN", gate.token());
    command.env("REDIS_URL", redis.trim()).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn node() -> PathBuf {
    let packages = folder().join("node/node_modules");
    assert!(packages.exists(), "run `npm ci` in examples/node (./test does)");
    PathBuf::from("node")
}

fn jobs(gate: &Tidegate, args: &[&str]) -> Value {
    let mut all = vec!["jobs", "--json"];
    all.extend(args);
    let done = gate.run(&all);
    assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// Lets a worker work off a job of each kind, from two producers.
fn worker_story(program: &Path, script: &str) {
    let gate = Tidegate::start("embedded:", &[]);
    let dispatched = gate.run(&["jobs", "dispatch", "greet", "{\"name\":\"Ann\"}"]);
    let ours = text(&dispatched.stdout).trim().to_owned();
    let none = ["jobs", "dispatch", "greet", "{}", "--retries", "0"];
    let doomed = text(&gate.run(&none).stdout).trim().to_owned();
    let other = text(&gate.run(&["jobs", "dispatch", "other", "{}"]).stdout).trim().to_owned();
    let produced = example(&gate, Path::new(python()), "python/producer_v1.py").arg("Bob").output();
    let produced = produced.unwrap();
    assert!(produced.status.success(), "{}", text(&produced.stderr));
    let theirs = text(&produced.stdout).trim().to_owned();

    let mut worker = Command::new("timeout");
    let plain = example(&gate, program, script);
    worker.arg("60").arg(plain.get_program()).args(plain.get_args()).arg("--drain");
    worker.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let done = worker.current_dir(folder()).output().unwrap();
    assert!(done.status.success(), "{script}: {}\n{}", text(&done.stdout), text(&done.stderr));
    for (id, name) in [(&ours, "Ann"), (&theirs, "Bob")] {
        let job = jobs(&gate, &["show", id]);
        let expected = json!({ "greeting": format!("Hello, {name}!") });
        assert_eq!(
            (&job["status"], &job["result"]["data"]),
            (&json!("completed"), &expected),
            "{script}: {job}"
        );
    }
    let dead = jobs(&gate, &["show", &doomed]);
    assert_eq!(dead["status"], "dead", "{script}: {dead}");
    assert!(
        dead["result"]["error"]["message"].as_str().unwrap().contains("name"),
        "{script}: {dead}"
    );
    assert_eq!(jobs(&gate, &["show", &other])["status"], "waiting", "not its type");
    let stats = jobs(&gate, &["stats"]);
    assert_eq!(
        (&stats["active"], &stats["workers"]),
        (&json!(0), &json!(0)),
        "{script}: it has left"
    );
}

#[test]
fn the_python_worker_over_http_works() {
    worker_story(Path::new(python()), "python/worker_http.py");
}

#[test]
fn the_node_worker_over_http_works() {
    worker_story(&node(), "node/worker_http.mjs");
}

#[test]
fn the_python_worker_over_redis_works() {
    worker_story(Path::new(python()), "python/worker_redis.py");
}

#[test]
fn the_node_worker_over_redis_works() {
    worker_story(&node(), "node/worker_redis.mjs");
}

/// A site that runs until the test ends.
struct Site(Child);

impl Drop for Site {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Visits a page as a browser does, with its cookies, until it says something.
fn visit(gate: &Tidegate, url: &str, until: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let mut curl = Command::new("curl");
        curl.args(["-sL", "--max-time", "10", "-b", "jar", "-c", "jar"]);
        curl.args(["-H", "Accept: text/html", "-H", "Sec-Fetch-Mode: navigate"]);
        curl.args(["-H", "Sec-Fetch-Dest: document", url]);
        let page = text(&curl.current_dir(gate.path()).output().unwrap().stdout);
        if page.contains(until) {
            return page;
        }
        assert!(Instant::now() < deadline, "{url} never says {until:?}: {page}\n{}", gate.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_flask_site_is_guarded() {
    // A port that was free a moment ago: Flask does not say which one it chose.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let origin = format!("http://127.0.0.1:{port}");
    let gate = Tidegate::guard(&["--origin", &origin, "--rate", "100/s", "--max-active", "1"]);
    let mut flask = Command::new(python_tool("flask", "python"));
    flask.arg("python/site_flask.py").current_dir(folder()).env("PORT", port.to_string());
    flask.env("PYTHONDONTWRITEBYTECODE", "1").stdout(Stdio::null()).stderr(Stdio::null());
    let _site = Site(flask.spawn().unwrap());
    let guarded = gate.guarded();
    let page = visit(&gate, &format!("{guarded}/"), "Welcome");
    assert!(!page.contains("nobody"), "the guard says who came: {page}");
    let sessions = gate.json("/api/v1/admin/queues/site/sessions");
    assert_eq!(sessions["items"].as_array().unwrap().len(), 1, "{sessions}");
    let mut buy = Command::new("curl");
    buy.args(["-s", "--max-time", "10", "-b", "jar", "-c", "jar", "-X", "POST"]);
    let bought = buy.arg(format!("{guarded}/buy")).current_dir(gate.path()).output().unwrap();
    assert!(text(&bought.stdout).contains("Thank you"), "{}", text(&bought.stdout));
    let deadline = Instant::now() + Duration::from_secs(10);
    while gate.json("/api/v1/admin/queues/site/sessions")["items"] != json!([]) {
        assert!(Instant::now() < deadline, "the slot is free again");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_express_site_lets_in_who_has_a_pass() {
    let gate = Tidegate::start("embedded:", &["--set", "http.trusted_proxies=127.0.0.1"]);
    let made = gate.run(&["room", "create", "shop", "--rate", "100/s", "--max-active", "1"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let mut express = example(&gate, &node(), "node/site_express.mjs");
    let mut child = express.env("PORT", "0").stdout(Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let site = Site(child);
    let url = BufReader::new(out).lines().next().unwrap().unwrap();
    let curl = |args: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "--max-time", "10", "-o", "body", "-w", "%{http_code} %{redirect_url}"]);
        text(&curl.args(args).arg(&url).current_dir(gate.path()).output().unwrap().stdout)
    };
    let waiting = format!("302 {url}/_wr/shop?return_to=%2F");
    assert_eq!(curl(&["-H", "Accept: text/html"]), waiting);
    assert_eq!(curl(&["-H", "Accept: application/json"]), "429 ");
    let forged =
        "Authorization: Bearer eyJhbGciOiJub25lIn0.eyJhdWQiOiJzaG9wIiwiZXhwIjo5OTk5OTk5OTk5fQ.";
    assert_eq!(curl(&["-H", "Accept: application/json", "-H", forged]), "429 ");
    visit(&gate, &format!("{url}/"), "Welcome");
    let sessions = gate.json("/api/v1/admin/queues/shop/sessions");
    assert_eq!(sessions["items"].as_array().unwrap().len(), 1, "{sessions}");
    drop(site);
}

#[test]
fn the_list_is_complete_and_addresses_are_the_default_ones() {
    let list = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let settings = std::fs::read_to_string(folder().join("../docs/configuration.md")).unwrap();
    let mut texts = list.clone();
    for inside in ["node", "python", "redis", "rust/src/bin"] {
        for entry in std::fs::read_dir(folder().join(inside)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if [".mjs", ".py", ".lua", ".rs"].iter().any(|end| name.ends_with(end)) {
                let row = format!("({inside}/{name})");
                assert!(list.contains(&row), "{inside}/{name} is not in the list");
                texts += &std::fs::read_to_string(folder().join(inside).join(&name)).unwrap();
            }
        }
    }
    // Where the programs look without being told is where a server is that was told nothing.
    let mut found = 0;
    for scheme in ["redis://127.0.0.1:", "http://127.0.0.1:"] {
        for after in texts.split(scheme).skip(1) {
            let port: String = after.chars().take_while(char::is_ascii_digit).collect();
            let site = ["3000", "3001", ""].contains(&port.as_str());
            let default = settings.contains(&format!("`127.0.0.1:{port}`"));
            assert!(site || default, "{scheme}{port} is no address of ours");
            found += 1;
        }
    }
    assert!(found > 10, "only {found} addresses found");
}
