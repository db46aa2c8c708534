use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use testkit::RedisServer;

use crate::process::{Tidegate, command, run, text};

#[test]
fn a_first_start_shows_the_token_once_and_keeps_it_private() {
    let redis = RedisServer::start();
    let mut first = Tidegate::start(&redis.url(), &[]);
    let token = first.token();
    assert!(first.banner.contains(&token), "{}", first.banner);
    let mode = |path: &str| {
        std::fs::metadata(first.path().join(path)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode("tidegate-data"), 0o700);
    assert_eq!(mode("tidegate-data/admin-token"), 0o600);
    assert_eq!(first.get("/api/v1/me").0, 200);
    assert!(!first.log().contains(&token), "the token is in the log");
    first.signal("-TERM");
    assert_eq!(first.wait(), 0);

    let folder = std::mem::replace(&mut first.folder, tempfile::tempdir().unwrap());
    let second = Tidegate::start_in(folder, &redis.url(), &[]);
    assert!(!second.banner.contains(&token), "{}", second.banner);
    assert_eq!(second.token(), token);
}

#[test]
fn two_instances_on_one_store_accept_each_others_tokens() {
    let redis = RedisServer::start();
    let one = Tidegate::start(&redis.url(), &[]);
    let two = Tidegate::start(&redis.url(), &[]);
    let answer = ureq::get(format!("{}/api/v1/me", two.base))
        .header("authorization", format!("Bearer {}", one.token()))
        .call()
        .unwrap();
    assert_eq!(answer.status(), 200);
}

#[test]
fn a_port_in_use_is_named_with_the_setting_that_moves_it() {
    let redis = RedisServer::start();
    let one = Tidegate::start(&redis.url(), &[]);
    let address = one.base.trim_start_matches("http://");
    let folder = tempfile::tempdir().unwrap();
    let two = run(folder.path(), &["--store", &redis.url(), "--listen", address]);
    assert_eq!(two.status.code(), Some(1));
    let told = text(&two.stderr);
    let port = address.rsplit(':').next().unwrap();
    assert!(told.contains(&format!("port {port} is in use")), "{told}");
    assert!(told.contains("--listen") && told.contains("http.listen"), "{told}");
}

#[test]
fn a_store_that_is_away_is_exit_code_five() {
    let folder = tempfile::tempdir().unwrap();
    let gone = run(folder.path(), &["--store", "redis://127.0.0.1:1", "--listen", "127.0.0.1:0"]);
    assert_eq!(gone.status.code(), Some(5), "{}", text(&gone.stderr));
    assert!(text(&gone.stderr).contains("--store"), "{}", text(&gone.stderr));
}

#[test]
fn a_reload_is_checked_before_it_is_applied() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.toml");
    std::fs::write(&file, "[http]\nopen_metrics = false\n").unwrap();
    let gate = Tidegate::start_in(folder, &redis.url(), &[]);
    let open = || ureq::get(format!("{}/metrics", gate.base)).call().is_ok();
    assert!(!open());

    std::fs::write(&file, "[http]\nopen_metrics = true\nmax_body = 'huge'\n").unwrap();
    gate.signal("-HUP");
    gate.wait_for_log("configuration not reloaded");
    assert!(!open(), "nothing of a wrong file counts");

    std::fs::write(
        &file,
        "[http]\nopen_metrics = true\nmax_connections = 99\n[log]\nformat = 'json'\n",
    )
    .unwrap();
    gate.signal("-HUP");
    gate.wait_for_log("configuration reloaded");
    assert!(open());
    gate.wait_for_log("these changes count after a restart");
    assert!(gate.log().contains("[\"log.format\"]"));
}

#[test]
fn a_request_under_way_is_finished_before_the_stop() {
    use std::io::{Read, Write};
    let redis = RedisServer::start();
    let mut gate = Tidegate::start(&redis.url(), &[]);
    let body = r#"{"name":"slow","role":"viewer"}"#;
    let (first, second) = body.split_at(10);
    let mut socket = std::net::TcpStream::connect(gate.base.trim_start_matches("http://")).unwrap();
    let head = format!(
        "POST /api/v1/tokens HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\r\n",
        gate.token(),
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    // The server asks for the body once the handler reads it: the request is under way.
    let mut told = [0; 25];
    socket.read_exact(&mut told).unwrap();
    assert!(told.starts_with(b"HTTP/1.1 100 Continue"));
    socket.write_all(first.as_bytes()).unwrap();
    gate.signal("-TERM");
    gate.wait_for_log("stopping");
    socket.write_all(second.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert_eq!(gate.wait(), 0);
}

#[test]
fn a_closed_pipe_is_no_failure() {
    use std::io::Read;
    let folder = tempfile::tempdir().unwrap();
    let mut child = command(folder.path(), &["config", "reference"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(told, "");
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_built_in_store_keeps_everything_through_kill_9() {
    let mut gate = Tidegate::start("embedded:{data}", &[]);
    assert!(gate.banner.contains("RESP         redis://127.0.0.1:"), "{}", gate.banner);
    let made = gate.run(&["token", "create", "--role", "viewer", "--name", "kept"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    gate.signal("-KILL");
    gate.wait();
    let folder = std::mem::replace(&mut gate.folder, tempfile::tempdir().unwrap());
    let again = Tidegate::start_in(folder, "embedded:{data}", &[]);
    let list = text(&again.run(&["token", "ls"]).stdout);
    assert!(list.contains("kept"), "{list}");
    assert_eq!(again.get("/readyz").0, 200);
}

#[test]
fn an_idle_connection_is_kept_longer_than_a_slow_head() {
    use std::io::{Read, Write};
    use std::time::Duration;
    let limits = ["--set", "http.header_timeout=1s", "--set", "http.idle_timeout=60s"];
    let gate = Tidegate::start("embedded:", &limits);
    let connect = || {
        let socket = std::net::TcpStream::connect(gate.base.trim_start_matches("http://")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket
    };
    let ask = |socket: &mut std::net::TcpStream| {
        socket.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut got = [0; 12];
        socket.read_exact(&mut got).unwrap();
        let mut rest = [0; 4096];
        assert!(socket.read(&mut rest).unwrap() > 0);
        text(&got)
    };
    let mut idle = connect();
    assert_eq!(ask(&mut idle), "HTTP/1.1 200");
    let mut slow = connect();
    assert_eq!(ask(&mut slow), "HTTP/1.1 200");
    // A head that never ends is cut; meanwhile the other connection has idled for longer than that.
    slow.write_all(b"GET /livez HTTP/1.1\r\n").unwrap();
    let started = Instant::now();
    let mut told = Vec::new();
    // Closed or reset: both are an end.
    let _ = slow.read_to_end(&mut told);
    assert!(started.elapsed() < testkit::HANG, "a slow head was not cut");
    assert_eq!(ask(&mut idle), "HTTP/1.1 200");
}

#[test]
fn an_error_of_a_reload_is_one_line_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.toml");
    std::fs::write(&file, "[http]\nopen_metrics = false\n").unwrap();
    let gate = Tidegate::start_in(folder, "embedded:", &[]);
    std::fs::write(&file, "[http]\nmax_body = = 1\n").unwrap();
    gate.signal("-HUP");
    gate.wait_for_log("configuration not reloaded");
    for line in gate.log().lines() {
        assert!(line.starts_with("20"), "no event: {line}\n{}", gate.log());
    }
}

/// Asks over one connection until the server says that it closes it; returns how many were answered.
fn ask_until_told(address: &str, stopping: &std::sync::atomic::AtomicBool) -> u32 {
    use std::io::{BufRead, BufReader, Read, Write};
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut answers = BufReader::new(socket.try_clone().unwrap());
    let mut answered = 0;
    loop {
        socket.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let (mut length, mut closes, mut line) = (0, false, String::new());
        let read = answers.read_line(&mut line).unwrap();
        assert!(read > 0, "closed without a word after {answered} answers");
        assert!(line.starts_with("HTTP/1.1 200"), "{line}");
        while line != "\r\n" {
            line.clear();
            assert!(answers.read_line(&mut line).unwrap() > 0);
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            closes |= lower.trim() == "connection: close";
        }
        let mut body = vec![0; length];
        answers.read_exact(&mut body).unwrap();
        answered += 1;
        if closes {
            assert!(stopping.load(std::sync::atomic::Ordering::SeqCst), "closed before the stop");
            return answered;
        }
    }
}

#[test]
fn a_stop_under_load_breaks_no_request() {
    use std::sync::atomic::{AtomicBool, Ordering};
    for _ in 0..3 {
        let mut gate = Tidegate::start("embedded:", &[]);
        let address = gate.base.trim_start_matches("http://").to_owned();
        let stopping = AtomicBool::new(false);
        let answered: u32 = std::thread::scope(|scope| {
            let clients: Vec<_> =
                (0..16).map(|_| scope.spawn(|| ask_until_told(&address, &stopping))).collect();
            // Load is there once the server has answered some.
            let asked = || gate.get("/livez").0;
            (0..50).for_each(|_| assert_eq!(asked(), 200));
            stopping.store(true, Ordering::SeqCst);
            gate.signal("-TERM");
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        assert!(answered >= 16, "{answered}");
        assert_eq!(gate.wait(), 0);
        assert!(!gate.log().contains("still under way"), "{}", gate.log());
    }
}
