//! TLS as a person sets it up: a certificate and a key in the settings, read again on SIGHUP.

use std::path::Path;
use std::process::Command;

use testkit::tls::Certificates;

use crate::process::{Tidegate, text};

/// What curl says about a path: HTTP version and status, or why not.
fn curl(ca: &Path, gate: &Tidegate, more: &[&str]) -> String {
    let got = Command::new("curl")
        .args(["--silent", "--show-error", "--output", "/dev/null", "--cacert"])
        .arg(ca)
        .args(["--write-out", "%{http_version} %{http_code}"])
        .args(more)
        .arg(format!("{}/livez", gate.base))
        .output()
        .unwrap();
    match got.status.success() {
        true => text(&got.stdout),
        false => text(&got.stderr),
    }
}

#[test]
fn a_certificate_is_used_and_read_again_while_the_server_runs() {
    let (first, second) = (Certificates::make().unwrap(), Certificates::make().unwrap());
    let used = tempfile::tempdir().unwrap();
    let put = |from: &Path| {
        for name in ["server.pem", "server.key"] {
            std::fs::copy(from.join(name), used.path().join(name)).unwrap();
        }
    };
    put(first.folder());
    let setting =
        |name: &str, file: &str| format!("http.{name}={}", used.path().join(file).display());
    let (cert, key) = (setting("tls_cert", "server.pem"), setting("tls_key", "server.key"));
    let gate = Tidegate::start("embedded:", &["--set", &cert, "--set", &key]);
    assert!(gate.base.starts_with("https://127.0.0.1:"), "{}", gate.base);
    // To OpenSSL an authority and a certificate of the same name are one; so it is told the latter.
    let (old, new) = (first.folder().join("server.pem"), second.folder().join("server.pem"));
    assert_eq!(curl(&old, &gate, &["--http2"]), "2 200");
    assert_eq!(curl(&old, &gate, &["--http1.1"]), "1.1 200");
    let stranger = curl(&new, &gate, &[]);
    assert!(stranger.contains("certificate"), "{stranger}");

    // Commands on this machine find it, and who asks over plain HTTP is told.
    let listed = gate.run(&["token", "ls"]);
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    let known = first.folder().join("ca.pem").display().to_string();
    let elsewhere = ["token", "ls", "--server", &gate.base];
    assert_eq!(gate.run(&elsewhere).status.code(), Some(5), "nobody vouches for it");
    assert!(gate.run(&[&elsewhere[..], &["--ca", &known]].concat()).status.success());
    let plain = gate.base.replace("https://", "http://");
    let told = Command::new("curl").args(["--silent", &plain]).output().unwrap();
    assert_eq!(text(&told.stdout).trim(), "This port speaks https: use https://.");

    // A file that is broken changes nothing; a good one is what new connections get.
    std::fs::write(used.path().join("server.pem"), "no certificate").unwrap();
    gate.signal("-HUP");
    gate.wait_for_log("certificate not reloaded; the old one stays");
    assert_eq!(curl(&old, &gate, &[]), "2 200");
    put(second.folder());
    gate.signal("-HUP");
    gate.wait_for_log("certificate reloaded");
    assert_eq!(curl(&new, &gate, &[]), "2 200");
    assert!(curl(&old, &gate, &[]).contains("certificate"));
}

/// What redis-cli says about a PING over TLS, trusting this certificate.
fn ping(trusted: &Path, address: &str) -> String {
    let (host, port) = address.split_once(':').unwrap();
    let got = Command::new("redis-cli")
        .args(["-h", host, "-p", port, "--tls", "--cacert"])
        .arg(trusted)
        .arg("PING")
        .output()
        .unwrap();
    format!("{}{}", text(&got.stdout), text(&got.stderr)).trim().to_owned()
}

#[test]
fn the_resp_port_speaks_tls_with_the_same_certificate_and_reads_it_again() {
    let (first, second) = (Certificates::make().unwrap(), Certificates::make().unwrap());
    let used = tempfile::tempdir().unwrap();
    let put = |from: &Path| {
        for name in ["server.pem", "server.key"] {
            std::fs::copy(from.join(name), used.path().join(name)).unwrap();
        }
    };
    put(first.folder());
    let setting =
        |name: &str, file: &str| format!("http.{name}={}", used.path().join(file).display());
    let (cert, key) = (setting("tls_cert", "server.pem"), setting("tls_key", "server.key"));
    let folder = tempfile::tempdir().unwrap();
    let without = ["serve", "--store", "embedded:", "--set", "resp.tls=true"];
    let refused = crate::process::run(folder.path(), &without);
    assert!(text(&refused.stderr).contains("http.tls_cert"), "{}", text(&refused.stderr));

    let args = ["--set", &cert, "--set", &key, "--set", "resp.tls=true"];
    let gate = Tidegate::start("embedded:", &args);
    let address = gate.banner.split("rediss://").nth(1).unwrap().split_whitespace().next().unwrap();
    let (old, new) = (first.folder().join("server.pem"), second.folder().join("server.pem"));
    assert_eq!(ping(&old, address), "PONG");
    let stranger = ping(&new, address);
    assert!(stranger.contains("certificate verify failed"), "{stranger}");
    let (host, port) = address.split_once(':').unwrap();
    let plain = Command::new("redis-cli").args(["-h", host, "-p", port, "PING"]).output().unwrap();
    assert!(!text(&plain.stdout).contains("PONG"), "it answers without TLS");

    put(second.folder());
    gate.signal("-HUP");
    gate.wait_for_log("certificate reloaded");
    assert_eq!(ping(&new, address), "PONG");
    assert!(ping(&old, address).contains("certificate verify failed"));
}
