//! A rate limit behind the proxies people run, with the very files of packaging/limits: real nginx, real
//! Caddy, the real binary, and a site behind them.

use crate::gates::{Answer, Proxy, TRUST, send, shipped};
use crate::process::{Tidegate, text};
use crate::site::Site;

/// Requests that the policy allows.
const LIMIT: usize = 20;

fn with_policy() -> Tidegate {
    let gate = Tidegate::start("embedded:", &TRUST);
    let limit = LIMIT.to_string();
    let set = [
        "desk",
        "limits",
        "set",
        "site",
        "--limit",
        &limit,
        "--window",
        "1h",
        "--algorithm",
        "sliding",
    ];
    let made = gate.run(&set);
    assert!(made.status.success(), "{}", text(&made.stderr));
    gate
}

/// Answers of as many requests, from four clients at once.
fn ask(base: &str, count: usize) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    (0..count / 4).map(|_| send("GET", base, &[], "")).collect::<Vec<_>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

/// Exactly the limit passes; the rest is told when to come back.
fn exactly_the_limit_passes(base: &str) {
    let answers = ask(base, 3 * LIMIT);
    let (passed, denied): (Vec<_>, Vec<_>) = answers.iter().partition(|one| one.status == 200);
    assert_eq!(passed.len(), LIMIT);
    assert!(passed.iter().all(|one| one.body.starts_with("the site saw GET /")));
    for one in denied {
        assert_eq!(one.status, 429, "{}", one.body);
        let wait: u64 = one.header("retry-after").parse().unwrap();
        assert!((3_000..=3_600).contains(&wait), "{wait}");
        assert_eq!(one.header("ratelimit-policy"), "\"site\";q=20;w=3600");
        assert!(one.body.contains("RATE_LIMITED"), "{}", one.body);
    }
}

#[test]
fn nginx_passes_exactly_the_limit_and_keeps_the_site_open_without_us() {
    let (gate, origin) = (with_policy(), Site::echo());
    let nginx = Proxy::nginx_with(&shipped("limits/nginx.conf", &gate, &origin));
    exactly_the_limit_passes(&nginx.base());
    drop(gate);
    assert_eq!(send("GET", &nginx.base(), &[], "").status, 200);
}

#[test]
fn caddy_passes_exactly_the_limit() {
    let (gate, origin) = (with_policy(), Site::echo());
    let caddy = Proxy::caddy_with(&shipped("limits/Caddyfile", &gate, &origin), "shop.example");
    exactly_the_limit_passes(&caddy.base());
    drop(gate);
    assert_eq!(send("GET", &caddy.base(), &[], "").status, 502);
}

#[test]
fn a_policy_that_is_not_there_denies_nobody_in_silence() {
    let gate = with_policy();
    for proxy in ["nginx", "forward"] {
        let answer = send("GET", &format!("{}/gate/limit/{proxy}/none", gate.base), &[], "");
        assert_eq!(answer.status, 404);
        assert!(answer.body.contains("POLICY_NOT_FOUND"), "{}", answer.body);
    }
}
