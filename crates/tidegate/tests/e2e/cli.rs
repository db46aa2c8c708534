use testkit::RedisServer;

use crate::{
    process::{Tidegate, run, text},
    wait::eventually,
};

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
fn what_the_start_refuses_is_refused_by_config_check_and_doctor() {
    let folder = tempfile::tempdir().unwrap();
    for (setting, why) in [
        ("log.level=banana", "is not a level"),
        ("log.level=info,room=loud", "is not a level"),
        ("store.url=banana", "is not a kind of store"),
        ("resp.tls=true", "needs a certificate"),
        ("jobs.namespace=a b", "jobs.namespace"),
        ("jobs.heartbeat=1m", "less than lock_ttl"),
        ("guard.queue=No", "guard.queue"),
    ] {
        for command in [&["config", "check"][..], &["doctor"], &["serve"]] {
            let got = run(folder.path(), &[&["--set", setting], command].concat());
            let told = text(&got.stderr);
            assert_eq!(got.status.code(), Some(2), "{setting} {command:?}: {told}");
            assert!(told.contains(why), "{setting} {command:?}: {told}");
        }
    }
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
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
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

#[test]
fn help_is_a_command_and_a_noun_alone_asks_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let help = run(folder.path(), &["help"]);
    assert!(help.status.success() && help.stderr.is_empty(), "{}", text(&help.stderr));
    assert!(text(&help.stdout).contains("tidegate room create sale"), "{}", text(&help.stdout));
    for noun in ["room", "jobs", "dns", "desk", "config", "token", "store"] {
        let alone = run(folder.path(), &[noun]);
        let told = text(&alone.stdout);
        assert!(
            alone.status.success() && alone.stderr.is_empty(),
            "{noun}: {}",
            text(&alone.stderr)
        );
        assert!(
            told.starts_with("Examples:") && told.contains(&format!("Usage: tidegate {noun}")),
            "{told}"
        );
        let by_word = run(folder.path(), &["help", noun]);
        assert!(by_word.status.success(), "{}", text(&by_word.stderr));
    }
    assert_eq!(run(folder.path(), &["room", "creat"]).status.code(), Some(2));
}

#[test]
fn top_prints_one_screen_where_there_is_no_terminal() {
    let gate = Tidegate::start("embedded:{data}", &[]);
    assert!(gate.run(&["room", "create", "sale", "--rate", "0/m"]).status.success());
    assert!(gate.run(&["jobs", "dispatch", "mail", "{}"]).status.success());
    let top = gate.run(&["top"]);
    let told = text(&top.stdout);
    assert!(top.status.success(), "{}", text(&top.stderr));
    for line in [
        "Queues  0 waiting, 0 admitted, 0 active",
        "Job types  1 waiting",
        "Workers  0 alive",
        "Store  embedded",
    ] {
        assert!(told.lines().any(|shown| shown.starts_with(line)), "{line}\n{told}");
    }
    assert!(told.contains("sale"), "{told}");
    // A type has its counts, and says that nobody takes it.
    let mail = told.lines().find(|line| line.trim_start().starts_with("mail")).unwrap();
    let words: Vec<&str> = mail.split_whitespace().collect();
    assert_eq!((words[1], words.last()), ("1", Some(&"unroutable")), "{told}");
    // The rate is there once there are two samples.
    eventually("the store runs commands all the time", || {
        !text(&gate.run(&["top"]).stdout).contains(" 0 commands/s")
    });
    assert!(!told.contains('\x1b'), "no escape sequences in a file: {told:?}");
    let json = gate.run(&["top", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let titles: Vec<&str> =
        json["sections"].as_array().unwrap().iter().filter_map(|s| s["title"].as_str()).collect();
    assert_eq!(titles, ["Queues", "Job types", "Workers", "Store"]);
}

/// Runs a command on a terminal of 24 lines, types q once a screen was drawn twice, and prints what was drawn.
const TERMINAL: &str = r#"
import fcntl, os, pty, struct, sys, termios
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
drawn, typed = b"", False
while True:
    try:
        piece = os.read(terminal, 65536)
    except OSError:
        break
    if not piece:
        break
    drawn += piece
    if not typed and drawn.count(b"q quits") >= 2:
        os.write(terminal, b"q")
        typed = True
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.stdout.buffer.write(drawn)
sys.exit(code)
"#;

#[test]
fn top_on_a_terminal_draws_screens_until_q() {
    let gate = Tidegate::start("embedded:{data}", &[]);
    let output = std::process::Command::new("timeout")
        .args(["60", "python3", "-c", TERMINAL])
        .arg(crate::process::binary())
        .args(["top", "--every", "200ms", "--server", &gate.base])
        .current_dir(gate.path())
        .env("TIDEGATE_TOKEN", gate.token())
        .env("TERM", "xterm")
        .output()
        .unwrap();
    let told = text(&output.stdout);
    assert!(output.status.success(), "{told}{}", text(&output.stderr));
    assert!(told.contains("q quits") && told.contains("Queues"), "{told}");
    assert!(told.starts_with("\x1b[?1049h"), "the alternate screen: {told:?}");
    assert!(told.trim_end().ends_with("\x1b[?25h\x1b[?1049l"), "given back: {told:?}");
}

#[test]
fn lists_are_printed_as_tables_json_or_tab_separated() {
    let gate = Tidegate::start("embedded:{data}", &[]);
    assert!(
        gate.run(&["room", "create", "sale", "--name", "Spring\tsale", "--rate", "60/m"])
            .status
            .code()
            == Some(2)
    );
    assert!(
        gate.run(&["room", "create", "sale", "--name", "Spring sale", "--rate", "60/m"])
            .status
            .success()
    );
    let list = |format: &str| text(&gate.run(&["room", "ls", "-o", format]).stdout);
    assert_eq!(
        list("tsv"),
        "QUEUE\tSTATUS\tWAITING\tADMITTED\tACTIVE\tMAX ACTIVE\tRATE\tNAME\nsale\tactive\t0\t0\t0\t1000\t60/m\tSpring sale\n"
    );
    assert!(list("table").starts_with("QUEUE  STATUS"), "{}", list("table"));
    let json: serde_json::Value = serde_json::from_str(&list("json")).unwrap();
    assert_eq!(json[0]["id"], "sale");
    assert_eq!(list("json"), text(&gate.run(&["room", "ls", "--json"]).stdout));
    assert_eq!(gate.run(&["room", "ls", "-o", "xml"]).status.code(), Some(2));

    let dry = gate.run(&["room", "rm", "sale", "--dry-run"]);
    assert_eq!(
        text(&dry.stdout),
        "would delete sale and end its positions and sessions: 0 waiting, 0 admitted and 0 active\n"
    );
    assert!(list("tsv").contains("sale"), "nothing was deleted");
    let shown = text(&gate.run(&["room", "show", "sale"]).stdout);
    assert!(shown.contains(&format!("waiting page      {}/_wr/sale", gate.base)), "{shown}");
}
