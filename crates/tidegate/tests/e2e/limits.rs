//! Refusals that reach the client: a body that is too long, and a server out of file descriptors.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{Tidegate, command, text};

/// Sizes just over the limit of one mebibyte and far over it, in kilobytes.
const SIZES_KB: [usize; 4] = [1_100, 1_500, 3_000, 10_000];

fn body_file(gate: &Tidegate, kilobytes: usize) -> String {
    let path = gate.path().join(format!("body-{kilobytes}"));
    let body = format!("{{\"type\":\"t\",\"payload\":\"{}\"}}", "x".repeat(kilobytes * 1000));
    std::fs::write(&path, body).unwrap();
    path.display().to_string()
}

#[test]
fn a_body_that_is_too_long_gets_its_413_with_curl() {
    let gate = Tidegate::start("embedded:", &[]);
    let url = format!("{}/api/v1/jobs", gate.base);
    let token = format!("authorization: Bearer {}", gate.token());
    for kilobytes in SIZES_KB {
        let body = format!("@{}", body_file(&gate, kilobytes));
        for more in [
            &["-H", "Expect:"][..],
            &[],
            &["-H", "Expect: 100-continue"],
            &["-H", "Transfer-Encoding: chunked", "-H", "Expect:"],
        ] {
            let got = Command::new("curl")
                .args(["-sS", "--max-time", "60", "-X", "POST", "-H", &token])
                .args(["-H", "content-type: application/json", "--data-binary", &body])
                .args(["-w", "\n%{http_code}", &url])
                .args(more)
                .output()
                .unwrap();
            let told = text(&got.stdout);
            assert!(got.status.success(), "{kilobytes} kB {more:?}: {}", text(&got.stderr));
            assert!(told.ends_with("\n413"), "{kilobytes} kB {more:?}: {told}");
            assert!(told.contains("BODY_TOO_LARGE"), "{told}");
        }
    }
}

#[test]
fn a_body_that_is_too_long_gets_its_413_with_python() {
    let gate = Tidegate::start("embedded:", &[]);
    let program = r#"
import http.client, sys
host, token = sys.argv[1], sys.argv[2]
for size in map(int, sys.argv[3:]):
    for chunked in (False, True):
        connection = http.client.HTTPConnection(host, timeout=60)
        headers = {"authorization": "Bearer " + token, "content-type": "application/json"}
        body = b"x" * (size * 1000)
        if chunked:
            pieces = (body[at:at + 65536] for at in range(0, len(body), 65536))
            connection.request("POST", "/api/v1/jobs", pieces, headers, encode_chunked=True)
        else:
            connection.request("POST", "/api/v1/jobs", body, headers)
        answer = connection.getresponse()
        assert answer.status == 413, (size, chunked, answer.status)
        assert b"BODY_TOO_LARGE" in answer.read()
"#;
    let sizes = SIZES_KB.map(|size| size.to_string());
    let got = Command::new("python3")
        .args(["-c", program, gate.base.trim_start_matches("http://"), &gate.token()])
        .args(sizes)
        .output()
        .unwrap();
    assert!(got.status.success(), "{}", text(&got.stderr));
}

#[test]
fn a_command_says_that_the_body_is_too_long() {
    let gate = Tidegate::start("embedded:", &[]);
    for kilobytes in SIZES_KB {
        let path = gate.path().join("payload");
        std::fs::write(&path, format!("\"{}\"", "x".repeat(kilobytes * 1000))).unwrap();
        let payload = format!("@{}", path.display());
        let got = gate.run(&["jobs", "dispatch", "mail", &payload]);
        let told = text(&got.stderr);
        assert_eq!(got.status.code(), Some(2), "{kilobytes} kB: {told}");
        assert!(told.contains("larger than") && told.contains("413"), "{kilobytes} kB: {told}");
    }
    // Standard input is not read further than a payload may be long.
    let piped = std::fs::File::open(gate.path().join("payload")).unwrap();
    let mut command = command(gate.path(), &["jobs", "dispatch", "mail", "-"]);
    let got = command.stdin(piped).output().unwrap();
    let told = text(&got.stderr);
    assert!(got.status.code() == Some(2) && told.contains("more than 262144 bytes"), "{told}");
}

/// Asks on a new connection; returns the status, within the time a client would wait.
fn status_of(address: &str) -> u16 {
    let started = Instant::now();
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(testkit::HANG)).unwrap();
    socket.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut got = Vec::new();
    socket.read_to_end(&mut got).unwrap();
    assert!(started.elapsed() < testkit::HANG, "{:?}", started.elapsed());
    let got = text(&got);
    got.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{got:?}"))
}

/// While `held` connections are open new ones are told 503, and afterwards all is well again.
fn told_503_while(gate: &Tidegate, held: Vec<TcpStream>) {
    let address = gate.base.trim_start_matches("http://");
    // A descriptor that was given back just then serves one, as often as it is given back in time; nobody is
    // left without an answer.
    let told: Vec<u16> = (0..20).map(|_| status_of(address)).collect();
    assert!(told.iter().all(|status| matches!(status, 200 | 503)), "{told:?}");
    assert!(told.contains(&503), "{told:?}");
    drop(held);
    let deadline = Instant::now() + Duration::from_secs(60);
    while status_of(address) != 200 {
        assert!(Instant::now() < deadline, "{}", gate.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = gate.log();
    let warnings = log.lines().filter(|line| line.contains("WARN")).count();
    assert!(warnings <= 4, "{log}");
}

/// Opens connections to a port until the server refuses new ones at its own; returns those it holds.
fn hold_until_refused(gate: &Tidegate, port: &str, most: usize) -> Vec<TcpStream> {
    let address = gate.base.trim_start_matches("http://");
    let mut held: Vec<TcpStream> = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    // Several refusals in a row: the connections of earlier questions are closed by then.
    let mut refused = 0;
    while refused < 5 {
        if status_of(address) == 503 {
            refused += 1;
            continue;
        }
        refused = 0;
        held.push(TcpStream::connect(port).unwrap());
        assert!(Instant::now() < deadline && held.len() < most, "{}", held.len());
    }
    held
}

#[test]
fn a_server_raises_its_limit_of_open_files_to_the_hard_one() {
    let gate = Tidegate::start_with_soft_files(256, &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gate.pid())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let [soft, hard] = [0, 1].map(|at| line.split_whitespace().nth(at).unwrap());
    assert!(soft == hard && soft != "256", "{line}");
}

#[test]
fn more_connections_than_files_are_told_503_at_once() {
    // Silent connections stay for the whole test.
    let gate = Tidegate::start_with_files(128, &["--set", "http.header_timeout=2m"]);
    let held = hold_until_refused(&gate, gate.base.trim_start_matches("http://"), 200);
    told_503_while(&gate, held);
}

#[test]
fn a_server_whose_files_are_used_up_elsewhere_still_answers_503() {
    let gate = Tidegate::start_with_files(128, &[]);
    let line = gate.banner.lines().find_map(|line| line.trim().strip_prefix("RESP")).unwrap();
    let resp = line.trim().trim_start_matches("redis://").to_owned();
    let held = hold_until_refused(&gate, &resp, 400);
    told_503_while(&gate, held);
}
