//! A respdiff of our own: 5,000 mixed queries to us and to Unbound, both before the same nsd. The only
//! differences are TTLs, the order of records, and that we pass on the authority and additional sections
//! of positive answers, which Unbound leaves out (`minimal-responses`).

use std::{
    collections::BTreeMap,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use dns::{
    ListenOptions, Listeners, Policy, RefreshPreset, Resolver, ResolverOptions, UpstreamOptions,
};
use store::Store;
use testkit::{
    DnsServer, TestZone,
    dns_message::{DnsMessage, DnsQuery, DnsRecord, QueryEdns, dns_flag},
};

const QUERIES: usize = 5_000;

/// Types that are asked for, some of which no name has.
const TYPES: [u16; 16] = [1, 28, 5, 15, 16, 2, 6, 12, 33, 35, 64, 65, 257, 43, 65_280, 99];

fn authority() -> DnsServer {
    let many: String = (0..60).map(|n| format!("many A 198.51.100.{}\n", n + 1)).collect();
    let hosts: String = (0..200)
        .map(|n| format!("h{n} A 192.0.2.{}\nh{n} AAAA 2001:db8::{n:x}\n", n % 250 + 1))
        .collect();
    // Unbound follows eleven aliases at most.
    let chain: String = (0..8).map(|n| format!("c{n} CNAME c{}\n", n + 1)).collect();
    let records = format!(
        "{many}{hosts}{chain}c8 A 192.0.2.77\n\
         dead CNAME nobody\nout CNAME www.other.peer.example.\nlost CNAME www.nowhere.example.\n\
         *.wild A 192.0.2.9\n*.wild TXT \"wild\"\na.b.c.ent A 192.0.2.10\n\
         mail MX 10 h1\nmail MX 20 h2\n_sip._udp SRV 1 2 5060 h3\n\
         text TXT \"one\" \"two\"\ntext TXT \"{long}\"\nodd TYPE65280 \\# 4 0a000001\n\
         svc HTTPS 1 . alpn=h2 ipv4hint=192.0.2.5\nsvc SVCB 1 h4 port=853\n\
         ca CAA 0 issue \"ca.example\"\nptr PTR h5\nname NAPTR 1 2 \"u\" \"x\" \"!a!b!\" .\n\
         zero 0 A 192.0.2.11\nbrief 1 A 192.0.2.12\n\
         below DNAME other.peer.example.\nsub NS ns.sub\nns.sub A 127.0.0.1\n",
        long = "t".repeat(240),
    );
    DnsServer::nsd(&[
        TestZone::new("main.peer.example", &records),
        TestZone::new("other.peer.example", "www A 192.0.2.20\nwww AAAA 2001:db8::20\n@ TXT \"o\""),
        TestZone::new("signed.peer.example", "www A 192.0.2.30\n*.wild A 192.0.2.31\nal CNAME www")
            .signed(),
        TestZone::new(
            "",
            "main.peer.example. NS ns.zone.example.\nother.peer.example. NS ns.zone.example.\n\
             signed.peer.example. NS ns.zone.example.",
        ),
    ])
}

const NAMES: [&str; 29] = [
    "main",
    "many.main",
    "c0.main",
    "c5.main",
    "c8.main",
    "dead.main",
    "out.main",
    "lost.main",
    "x.wild.main",
    "y.z.wild.main",
    "ent.main",
    "b.c.ent.main",
    "a.b.c.ent.main",
    "mail.main",
    "_sip._udp.main",
    "text.main",
    "odd.main",
    "svc.main",
    "ca.main",
    "ptr.main",
    "name.main",
    "zero.main",
    "www.below.main",
    "below.main",
    "www.other",
    "www.signed",
    "q.wild.signed",
    "al.signed",
    "gone.signed",
];

fn any_query(random: &mut fastrand::Rng) -> DnsQuery {
    let name = match random.u8(..10) {
        0..=2 => format!("h{}.main.peer.example", random.u16(..260)),
        3 => format!("n{}.main.peer.example", random.u16(..50)),
        _ => format!("{}.peer.example", NAMES[random.usize(..NAMES.len())]),
    };
    let name: String =
        name.chars().map(|c| if random.bool() { c.to_ascii_uppercase() } else { c }).collect();
    let mut query = DnsQuery::new(&name, TYPES[random.usize(..TYPES.len())]);
    // Mostly what people ask for.
    if random.bool() {
        query.qtype = [1, 28, 65][random.usize(..3)];
    }
    query = match random.u8(..4) {
        0 => query,
        1 => query
            .edns(QueryEdns { size: [512, 1_232, 4_096][random.usize(..3)], ..Default::default() }),
        2 => query.edns(QueryEdns::default()),
        _ => query.dnssec_ok(),
    };
    if random.u8(..8) == 0 { query.flag(dns_flag::CD) } else { query }
}

fn ask(server: SocketAddr, query: &DnsQuery) -> DnsMessage {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut buffer = [0; 4_096];
    for _ in 0..4 {
        socket.send(&query.to_wire()).unwrap();
        if let Ok(length) = socket.recv(&mut buffer) {
            return DnsMessage::read(&buffer[..length]).unwrap();
        }
    }
    panic!("{server} does not answer {query:?}");
}

/// Records without TTLs, in order.
fn sorted(records: &[DnsRecord]) -> Vec<DnsRecord> {
    let mut records: Vec<_> =
        records.iter().map(|record| DnsRecord { ttl: 0, ..record.clone() }).collect();
    records.sort();
    records.dedup();
    records
}

/// Parts in which two replies differ.
fn differences(ours: &DnsMessage, theirs: &DnsMessage) -> Vec<&'static str> {
    let mut found = Vec::new();
    let mut note = |what, differs: bool| {
        if differs {
            found.push(what);
        }
    };
    note("rcode", ours.rcode != theirs.rcode);
    note("flags", ours.flags != theirs.flags);
    note("question", ours.question != theirs.question);
    note(
        "edns",
        ours.edns.as_ref().map(|e| (e.version, e.flags))
            != theirs.edns.as_ref().map(|e| (e.version, e.flags)),
    );
    note("answers", sorted(ours.answers()) != sorted(theirs.answers()));
    // A negative answer is its SOA record; signed ones have their proof.
    let negative = |message: &DnsMessage| {
        sorted(message.authorities()).into_iter().filter(|r| r.rtype == 6).collect::<Vec<_>>()
    };
    let is_negative = theirs.answers().is_empty();
    note("denial", is_negative && negative(ours) != negative(theirs));
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_those_of_unbound() {
    let authority = authority();
    let unbound = DnsServer::unbound_with(
        authority.address(),
        " edns-buffer-size: 1232\n max-udp-size: 1232\n",
    );
    let options = ResolverOptions {
        upstream: UpstreamOptions {
            servers: vec![authority.address().to_string().parse().unwrap()],
            ..UpstreamOptions::default()
        },
        default_policy: Policy::default(),
        refresh: RefreshPreset::Off,
        ..ResolverOptions::default()
    };
    let resolver = Resolver::open(Store::open("embedded:").await.unwrap(), options).await.unwrap();
    let listen = ListenOptions {
        addresses: vec!["127.0.0.1:0".parse().unwrap()],
        ..ListenOptions::default()
    };
    let listeners = Listeners::open(&resolver, listen).await.unwrap();
    let (us, them) = (listeners.addresses()[0], unbound.address());
    let compared = tokio::task::spawn_blocking(move || {
        let mut random = fastrand::Rng::with_seed(5_000);
        let mut bad = Vec::new();
        let mut kinds = BTreeMap::<u16, usize>::new();
        for _ in 0..QUERIES {
            let query = any_query(&mut random);
            let (ours, theirs) = (ask(us, &query), ask(them, &query));
            *kinds.entry(ours.rcode).or_default() += 1;
            let parts = differences(&ours, &theirs);
            if !parts.is_empty() {
                bad.push(format!("{parts:?}\n  {query:?}\n  ours   {ours:?}\n  theirs {theirs:?}"));
            }
        }
        (bad, kinds)
    });
    let (bad, kinds) = compared.await.unwrap();
    assert!(
        bad.is_empty(),
        "{} of {QUERIES} differ:\n{}",
        bad.len(),
        bad[..bad.len().min(8)].join("\n")
    );
    assert!(kinds[&0] > 1_000 && kinds[&3] > 200, "a mix: {kinds:?}");
    listeners.close().await;
    resolver.close().await;
}
