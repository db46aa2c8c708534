//! The programs in `examples/` that are not in Rust, started as its README says. Those in Rust have tests of their own.

use std::io::{BufRead, BufReader, Write};
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
    let deadline = Instant::now() + Duration::from_secs(60);
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
    // Flask does not say which one it chose.
    let port = testkit::reserve_port();
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
    let deadline = Instant::now() + Duration::from_secs(60);
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

/// Answers as Chatwoot's API does, from the fixture beside the converter; returns its address.
fn chatwoot() -> String {
    let fixture = std::fs::read_to_string(folder().join("python/chatwoot_fixture.json")).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let answers: Value = serde_json::from_str(&fixture.replace("{base}", &base)).unwrap();
    // A picture of one pixel.
    let picture: &[u8] = &[
        0x89, b'P', b'N', b'G', 13, 10, 26, 10, 0, 0, 0, 13, b'I', b'H', b'D', b'R', 0, 0, 0, 1, 0,
        0, 0, 1, 8, 4, 0, 0, 0, 0xb5, 0x1c, 0x0c, 0x02,
    ];
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut first, mut has_token) = (String::new(), false);
            reader.read_line(&mut first).unwrap();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                has_token |= line.to_lowercase().starts_with("api_access_token: secret")
                    || line.to_lowercase().starts_with("api-access-token: secret");
                if line.trim().is_empty() {
                    break;
                }
            }
            let path = first.split(' ').nth(1).unwrap_or_default();
            let found = answers.get(path).map(|answer| answer.to_string().into_bytes());
            let (status, body) = match found {
                Some(body) if has_token => ("200 OK", body),
                Some(_) => ("401 Unauthorized", b"{}".to_vec()),
                None if path.starts_with("/rails/") => ("200 OK", picture.to_vec()),
                None => ("404 Not Found", path.as_bytes().to_vec()),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let stream = reader.get_mut();
            // The reader may have gone.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    base
}

/// Everything of a Chatwoot account arrives: converted, imported twice, and read over the API.
#[test]
fn conversations_of_chatwoot_are_imported() {
    let gate = Tidegate::start("embedded:", &[]);
    // Somebody works here already, under an address that Chatwoot has, too.
    let ben = gate.run(&["desk", "agents", "add", "ben@example.org", "--name", "Ben", "--json"]);
    let ben: Value = serde_json::from_slice(&ben.stdout).unwrap();
    let ben = ben["agent"]["id"].as_str().unwrap();
    let converted = Command::new(python())
        .args(["python/from_chatwoot.py", "--account", "1", "--trust-identifiers"])
        .current_dir(folder())
        .env("CHATWOOT_URL", chatwoot())
        .env("CHATWOOT_TOKEN", "secret")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(converted.status.success(), "{}", text(&converted.stderr));
    let lines = gate.path().join("chatwoot.jsonl");
    std::fs::write(&lines, &converted.stdout).unwrap();
    let lines = lines.to_str().unwrap();
    for round in 0..2 {
        let done = gate.run(&["desk", "import", lines, "--json"]);
        assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
        let report: Value = serde_json::from_slice(&done.stdout).unwrap();
        let count = if round == 0 { "added" } else { "known" };
        for (kind, number) in
            [("visitor", 2), ("conversation", 3), ("message", 30), ("file", 1), ("canned", 2)]
        {
            assert_eq!(report["counts"][kind][count], number, "{kind}: {report}");
        }
    }
    let check = gate.run(&["desk", "archive", "check"]);
    assert!(check.status.success(), "{}{}", text(&check.stdout), text(&check.stderr));

    let resolved = gate.json("/api/v1/conversations/chatwoot-1-1");
    assert_eq!(resolved["visitor"]["verified"], true, "{resolved}");
    assert_eq!((&resolved["status"], &resolved["rating"]), (&json!("resolved"), &json!(5)));
    let snoozed = gate.json("/api/v1/conversations/chatwoot-1-3");
    assert_eq!(snoozed["assignee"]["id"], ben, "the one with the same address");
    assert_eq!(snoozed["wakes_at"], "2100-01-01T00:00:00.000Z");
    let waiting = gate.json("/api/v1/conversations/chatwoot-1-2");
    assert_eq!(
        (&waiting["priority"], &waiting["unread_agent"]),
        (&json!("urgent"), &json!(2)),
        "{waiting}"
    );
    assert_eq!(waiting["tags"], json!(["late order", "VIP-2"]));
    let messages = gate.json("/api/v1/conversations/chatwoot-1-1/messages?limit=100");
    let messages = messages["items"].as_array().unwrap();
    assert_eq!(messages.len(), 25);
    let numbers: Vec<i64> = messages.iter().map(|one| one["seq"].as_i64().unwrap()).collect();
    assert_eq!(numbers, (1..=25).collect::<Vec<_>>());
    let picture = &messages[20]["attachments"][0];
    assert_eq!(
        (&picture["name"], &picture["mime"]),
        (&json!("photo of bag.png"), &json!("image/png"))
    );
    assert_eq!(messages[21]["type"], "note");
    assert_eq!(messages[22]["content"], "Sorry about that! A new bag is on its way. ☕");
    let found = gate.json("/api/v1/conversations?status=resolved&text=bag");
    assert_eq!(found["items"][0]["id"], "chatwoot-1-1", "{found}");
    assert_eq!(
        gate.json("/api/v1/canned?prefix=hello")["items"][0]["content"],
        "Hello {{visitor.name}}, how can I help?"
    );
}
