//! The resolver's keys as another program sees them: redis-cli on the built-in store over its port, on
//! Redis, and on a Cluster.

use std::process::Command;

use testkit::dns_message::{DnsMessage, DnsQuery};
use testkit::{Cluster, DnsServer, RedisServer, TestZone, until_blocking};

use crate::dns_client::{Resolver, Transport};
use crate::process::{Tidegate, text};

const A: u16 = 1;

fn authority() -> DnsServer {
    DnsServer::nsd(&[
        TestZone::new("seed.example", "*.one 600 A 192.0.2.1\nwww 600 A 192.0.2.2").signed(),
        TestZone::new("", "seed.example. NS ns.zone.example."),
    ])
}

/// Runs redis-cli; `cluster` lets it follow redirections.
fn cli(port: u16, cluster: bool, args: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-p", &port.to_string(), "--no-raw"]);
    if cluster {
        command.arg("-c");
    }
    text(&command.args(args).output().unwrap().stdout).trim().to_owned()
}

/// Asks for a name in both kinds and looks at what the store has.
fn check(store: &str, port: impl Fn(&Tidegate) -> u16, cluster: bool) {
    let authority = authority();
    let resolver = Resolver::start_on(
        store,
        &authority.address().to_string(),
        &["--set", "dns.sweep_interval=1s"],
    );
    let port = port(&resolver.gate);
    let run = |args: &[&str]| cli(port, cluster, args);
    let key = "dns:www.seed.example:1:1";
    let meta = if cluster { "{dnsmeta}" } else { "dnsmeta" };
    let ask = |query: DnsQuery| -> DnsMessage { resolver.ask(Transport::Udp, &query) };

    assert_eq!(ask(DnsQuery::new("WWW.seed.example", A)).answers().len(), 1);
    until_blocking("the answer is stored", || (run(&["TYPE", key]) == "hash").then_some(()));
    let fields = run(&["HKEYS", key]);
    for field in ["msg", "soft_expiry", "created_at", "stored_ttl", "auth_ttl"] {
        assert!(fields.contains(&format!("\"{field}\"")), "{fields}");
    }
    assert!(!fields.contains("msg_do"), "{fields}");
    assert_eq!(run(&["HGET", key, "stored_ttl"]), "\"600\"");
    // EXPIRE = ttl + min(ttl, grace 1 h).
    let ttl: i64 = run(&["TTL", key]).trim_start_matches("(integer) ").parse().unwrap();
    assert!((1_150..=1_200).contains(&ttl), "{ttl}");
    let number = |text: String| text.trim_matches('"').parse::<i64>().unwrap();
    let created = number(run(&["HGET", key, "created_at"]));
    let soft = number(run(&["HGET", key, "soft_expiry"]));
    assert!((595..=601).contains(&(soft - created)), "{soft} {created}");
    let index = format!("{meta}:expiry:index");
    until_blocking("the answer is in the index", || {
        (run(&["ZSCORE", &index, key]) == format!("\"{soft}\"")).then_some(())
    });
    assert_eq!(run(&["TYPE", &index]), "zset");

    // The answer with signatures has fields of its own in the same hash.
    assert!(ask(DnsQuery::new("www.seed.example", A).dnssec_ok()).has_type(46));
    until_blocking("the signed answer is stored", || {
        run(&["HKEYS", key]).contains("\"msg_do\"").then_some(())
    });
    let fields = run(&["HKEYS", key]);
    assert!(fields.contains("\"soft_expiry_do\"") && fields.contains("\"msg\""), "{fields}");
    assert_eq!(number(run(&["HGET", key, "created_at"])), created, "of the first store");
    // The answer to CD stays in memory.
    ask(DnsQuery::new("cd.one.seed.example", A).flag(0x10));
    ask(DnsQuery::new("after.one.seed.example", A));
    until_blocking("a later answer is stored", || {
        (run(&["EXISTS", "dns:after.one.seed.example:1:1"]) == "(integer) 1").then_some(())
    });
    assert_eq!(run(&["EXISTS", "dns:cd.one.seed.example:1:1"]), "(integer) 0");

    // Names with a meaning in keys never meet another name's.
    let mut odd = DnsQuery::new("", A);
    odd.name = b"\x05x.y:z\x03one\x04seed\x07example\0".to_vec();
    ask(odd);
    until_blocking("a name with a dot in a label is stored", || {
        (run(&["EXISTS", r"dns:x\.y:z.one.seed.example:1:1"]) == "(integer) 1").then_some(())
    });

    // Hits are counted, in batches, with a TTL.
    for _ in 0..5 {
        ask(DnsQuery::new("www.seed.example", A));
    }
    let hits = format!("{meta}:hit:{key}");
    until_blocking("hits are written", || {
        let count = run(&["GET", &hits]);
        (count.trim_matches('"').parse::<u32>().unwrap_or(0) >= 2).then_some(())
    });
    assert_eq!(run(&["TYPE", &hits]), "string");
    let ttl: i64 = run(&["TTL", &hits]).trim_start_matches("(integer) ").parse().unwrap();
    assert!((1..=300).contains(&ttl), "{ttl}");

    // A clear deletes the cache and nothing else.
    let cleared = resolver.gate.run(&["dns", "cache", "clear", "--yes"]);
    assert!(cleared.status.success(), "{}", text(&cleared.stderr));
    assert_eq!(run(&["EXISTS", key]), "(integer) 0");
    assert_eq!(run(&["EXISTS", &index]), "(integer) 0");
}

#[test]
fn keys_of_the_built_in_store_are_the_seeds() {
    let port = |gate: &Tidegate| {
        let url = gate.banner.split_whitespace().find(|word| word.starts_with("redis://")).unwrap();
        url.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap()
    };
    check("embedded:", port, false);
}

#[test]
fn keys_on_redis_are_the_seeds() {
    let redis = RedisServer::start();
    check(&redis.url(), |_| redis.port(), false);
}

#[test]
fn keys_on_a_cluster_are_the_seeds() {
    let mut cluster = Cluster::start();
    let (url, port) = (cluster.url(), cluster.nodes()[0].port());
    check(&url, |_| port, true);
}
