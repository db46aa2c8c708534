use testkit::RedisServer;

use crate::process::{Tidegate, run, text};

#[test]
fn tokens_are_managed_from_the_command_line() {
    let redis = RedisServer::start();
    let gate = Tidegate::start(&redis.url(), &[]);
    let made = gate.run(&["token", "create", "--role", "operator", "--name", "on call"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let secret = text(&made.stdout).trim().to_owned();
    assert!(secret.starts_with("tg_operator_"), "{secret}");

    let list = gate.run(&["token", "ls", "--json"]);
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    let found = list.as_array().unwrap().iter().find(|token| token["name"] == "on call").unwrap();
    let id = found["id"].as_str().unwrap();
    assert!(gate.run(&["token", "revoke", id]).status.success());
    assert_eq!(gate.run(&["token", "revoke", id]).status.code(), Some(3), "not found");
    assert_eq!(
        gate.run(&["token", "create", "--role", "king", "--name", "x"]).status.code(),
        Some(2)
    );

    std::fs::write(gate.path().join("bad"), "tg_admin_wrong_wrong_wrong").unwrap();
    let denied = gate.run(&["token", "ls", "--token-file", "bad"]);
    assert_eq!(denied.status.code(), Some(4), "{}", text(&denied.stderr));
    let away = gate.run(&["token", "ls", "--server", "http://127.0.0.1:1"]);
    assert_eq!(away.status.code(), Some(5), "{}", text(&away.stderr));
}

#[test]
fn wrong_usage_is_exit_code_two_and_says_what_is_right() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["serv"][..],
        &["--set", "nonsense"],
        &["--set", "http.max_bodi=1", "config", "check"],
        &["--listen", "nowhere", "config", "check"],
        &["--config", "missing.toml", "config", "check"],
    ] {
        let got = run(folder.path(), args);
        assert_eq!(got.status.code(), Some(2), "{args:?}: {}", text(&got.stderr));
        assert!(!got.stderr.is_empty());
    }
    let near = run(folder.path(), &["--set", "http.max_bodi=1", "config", "check"]);
    assert!(text(&near.stderr).contains("did you mean http.max_body?"), "{}", text(&near.stderr));
}

#[test]
fn a_shown_configuration_can_be_used_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let shown = run(folder.path(), &["config", "show", "--origin", "--set", "http.max_body=2mb"]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(text(&shown.stdout).contains("# flag --set"));
    std::fs::write(folder.path().join("tidegate.toml"), &shown.stdout).unwrap();
    let again = run(folder.path(), &["config", "show", "--json"]);
    let again: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    let body = again.as_array().unwrap().iter().find(|s| s["name"] == "http.max_body").unwrap();
    assert_eq!(body["value"], "2mb");
    assert!(body["origin"].as_str().unwrap().starts_with("file "));
}

#[test]
fn the_reference_page_is_up_to_date() {
    let page = text(&run(tempfile::tempdir().unwrap().path(), &["config", "reference"]).stdout);
    golden("docs/configuration.md", &page);
}

/// Compares with a file of the tree; `cargo xtask codegen` writes it anew.
fn golden(path: &str, made: &str) {
    let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "{path} is out of date: run `cargo xtask codegen`");
}

#[test]
fn doctor_finds_what_is_wrong_and_says_how_to_fix_it() {
    use std::os::unix::fs::PermissionsExt;
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let url = redis.url();
    let args = [
        "doctor",
        "--json",
        "--store",
        &url,
        "--set",
        "resp.listen=off",
        "--listen",
        "127.0.0.1:0",
    ];
    let good = run(folder.path(), &args);
    assert!(good.status.success(), "{}{}", text(&good.stdout), text(&good.stderr));

    std::fs::create_dir(folder.path().join("tidegate-data")).unwrap();
    let token = folder.path().join("tidegate-data/admin-token");
    std::fs::write(&token, "tg_admin_0123456789012345").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    drop(redis);
    let bad = run(folder.path(), &args);
    assert_eq!(bad.status.code(), Some(1));
    let findings: serde_json::Value = serde_json::from_slice(&bad.stdout).unwrap();
    let state = |what: &str| {
        let found = findings.as_array().unwrap().iter().find(|f| f["what"] == what).unwrap();
        (found["state"].as_str().unwrap().to_owned(), found["fix"].is_string())
    };
    assert_eq!(state("admin token"), ("bad".to_owned(), true));
    assert_eq!(state("store"), ("bad".to_owned(), true));
}

#[test]
fn doctor_looks_at_the_built_in_store_without_mending_it() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["doctor", "--json", "--store", "embedded:kept", "--listen", "127.0.0.1:0"];
    let args = [&args[..], &["--set", "resp.listen=127.0.0.1:0"]].concat();
    let found = |what: &str| {
        let got = run(folder.path(), &args);
        let findings: serde_json::Value = serde_json::from_slice(&got.stdout).unwrap();
        let all = findings.as_array().unwrap();
        let finding = all.iter().find(|finding| finding["what"] == what).unwrap();
        (
            finding["state"].as_str().unwrap().to_owned(),
            finding["found"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(found("store").0, "good");
    assert_eq!(found("clock").0, "good");

    let kept = folder.path().join("kept");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let url = format!("embedded:{}", kept.display());
        let store = store::Store::open(&url).await.unwrap();
        for n in 0..3 {
            let () = store::redis::AsyncCommands::set(&mut store.clone(), n, "x").await.unwrap();
        }
    });
    drop(runtime);
    assert!(found("store").1.contains("3 keys"), "{:?}", found("store"));

    // Killed, and nobody has asked yet how it ended.
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", ended.id());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        assert!(std::time::Instant::now() < deadline, "`true` does not end");
        std::thread::yield_now();
    }
    let data = folder.path().join("tidegate-data");
    std::fs::create_dir_all(&data).unwrap();
    let left = format!(r#"{{"http":"http://127.0.0.1:1","pid":{}}}"#, ended.id());
    std::fs::write(data.join("running.json"), left).unwrap();
    assert!(found("store").1.contains("3 keys"), "{:?}", found("store"));
    ended.wait().unwrap();

    let log = kept.join("log-1.tide");
    let now = u64::try_from(store::Clock::system().now().0).unwrap();
    let ahead = std::time::UNIX_EPOCH + std::time::Duration::from_millis(now + 3_600_000);
    std::fs::File::options().append(true).open(&log).unwrap().set_modified(ahead).unwrap();
    assert_eq!(found("clock").0, "bad");

    let mut bytes = std::fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    assert_eq!(found("store").0, "bad");
    assert_eq!(std::fs::read(&log).unwrap(), bytes, "left as it is");
}

#[test]
fn completions_are_printed_for_each_shell() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let got = run(folder.path(), &["completions", shell]);
        assert!(got.status.success());
        assert!(text(&got.stdout).contains("tidegate"));
    }
}
