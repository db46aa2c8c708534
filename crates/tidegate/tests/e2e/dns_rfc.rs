//! The RFC checklist of a resolver, asked of the running program from outside: over UDP, TCP, TLS and
//! HTTPS, each question twice, so that misses and hits are held to the same rules. nsd is the
//! authority.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use testkit::dns_message::{DnsMessage, DnsQuery, QueryEdns, dns_flag, wire_name};
use testkit::{DnsServer, TestZone, run_dns_client};

use crate::dns_client::{Resolver, Transport, post};

const A: u16 = 1;
const SOA: u16 = 6;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const RRSIG: u16 = 46;
const NSEC: u16 = 47;
const ANY: u16 = 255;

const NOERROR: u16 = 0;
const FORMERR: u16 = 1;
const NXDOMAIN: u16 = 3;
const NOTIMP: u16 = 4;
const REFUSED: u16 = 5;
const BADVERS: u16 = 16;

/// Wildcards, so that every question can be about a name that nobody asked for before.
fn authority() -> DnsServer {
    let many = (0..100).map(|n| format!("*.many A 198.51.{}.{}\n", n / 50, n % 50 + 1));
    let records = format!(
        "*.one A 192.0.2.1\n*.one TXT \"one\"\n*.zero 0 A 192.0.2.2\n*.alias CNAME x.one\n\
         *.odd TYPE65280 \\# 4 0a000001\n*.mail MX 10 x.one\n\
         *.long TXT \"{long}\" \"{long}\" \"{long}\" \"{long}\"\n{many}",
        long = "x".repeat(250),
        many = many.collect::<String>(),
    );
    DnsServer::nsd(&[
        TestZone::new("rfc.example", &records),
        TestZone::new("signed.example", "*.one A 192.0.2.3\nwww A 192.0.2.4").signed(),
        TestZone::new("", "rfc.example. NS ns.zone.example.\nsigned.example. NS ns.zone.example."),
    ])
}

struct Checklist {
    resolver: Resolver,
    _authority: DnsServer,
    count: std::cell::Cell<u32>,
}

impl Checklist {
    fn start(args: &[&str]) -> Checklist {
        let authority = authority();
        let resolver = Resolver::start(&authority.address().to_string(), args);
        Checklist { resolver, _authority: authority, count: std::cell::Cell::new(0) }
    }

    /// A name that nobody asked for before, below another.
    fn fresh(&self, parent: &str) -> String {
        self.count.set(self.count.get() + 1);
        format!("n{}.{parent}", self.count.get())
    }

    /// Asks a question twice over each transport, the second time as a hit, and checks both replies.
    fn each(&self, make: impl Fn(&str) -> DnsQuery, check: impl Fn(&DnsQuery, &DnsMessage)) {
        for transport in Transport::ALL {
            self.twice(transport, &make, &check);
        }
    }

    fn twice(
        &self,
        transport: Transport,
        make: impl Fn(&str) -> DnsQuery,
        check: impl Fn(&DnsQuery, &DnsMessage),
    ) {
        let name = self.fresh("one.rfc.example");
        let query = make(&name);
        for round in ["miss", "hit"] {
            let reply = self.resolver.ask(transport, &query);
            let told = format!("{transport:?}, {round}: {query:?}\n{reply:?}");
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                check(&query, &reply);
            }));
            assert!(checked.is_ok(), "{told}");
        }
    }
}

/// The parent of a query's name, replaced.
fn below(name: &str, parent: &str) -> String {
    name.replace("one.rfc.example", parent)
}

#[test]
fn header_and_question_are_the_clients_own() {
    let list = Checklist::start(&[]);
    list.each(
        |name| DnsQuery::new(&name.replace('e', "E"), A),
        |query, reply| {
            assert_eq!(reply.rcode, NOERROR);
            assert!(reply.has(dns_flag::QR) && reply.has(dns_flag::RD) && reply.has(dns_flag::RA));
            assert!(!reply.has(dns_flag::AA), "nobody's authority");
            assert!(
                !reply.has(dns_flag::Z) && !reply.has(dns_flag::AD) && !reply.has(dns_flag::TC)
            );
            assert_eq!(reply.question, query.to_wire()[12..], "echoed byte for byte (0x20)");
            assert_eq!(reply.answers().len(), 1);
            assert!((1..=3_600).contains(&reply.answers()[0].ttl));
            assert!(reply.edns.is_none(), "no OPT to those who sent none");
        },
    );
    // CD is copied, Z is not.
    list.each(
        |name| DnsQuery::new(name, A).flag(dns_flag::CD | dns_flag::Z),
        |_, reply| {
            assert!(reply.has(dns_flag::CD) && !reply.has(dns_flag::Z));
            assert_eq!((reply.rcode, reply.answers().len()), (NOERROR, 1));
        },
    );
}

#[test]
fn edns_is_answered_with_our_own_record() {
    let list = Checklist::start(&[]);
    let edns = QueryEdns {
        // Flags nobody knows, an option nobody knows, a client subnet.
        flags: 0x7fff,
        options: vec![(65_432, vec![1, 2, 3]), (8, vec![0, 1, 24, 0, 192, 0, 2])],
        ..QueryEdns::default()
    };
    list.each(
        |name| DnsQuery::new(name, A).edns(edns.clone()),
        |_, reply| {
            let edns = reply.edns.as_ref().unwrap();
            assert_eq!((edns.size, edns.version, edns.flags), (1_232, 0, 0));
            assert_eq!(edns.option(65_432), None, "unknown options are dropped");
            assert_eq!(edns.option(8), None, "client subnets are not used");
            assert_eq!(reply.answers().len(), 1);
        },
    );
    // DO is mirrored, also for a name without signatures.
    list.each(
        |name| DnsQuery::new(name, A).dnssec_ok(),
        |_, reply| assert_eq!(reply.edns.as_ref().unwrap().flags, 0x8000),
    );
    // A version we do not speak is never cached: the plain query that follows is answered.
    for transport in Transport::ALL {
        let name = list.fresh("one.rfc.example");
        let later = QueryEdns { version: 1, ..QueryEdns::default() };
        let refused = list.resolver.ask(transport, &DnsQuery::new(&name, A).edns(later.clone()));
        assert_eq!(refused.rcode, BADVERS, "{transport:?}");
        assert_eq!(refused.edns.unwrap().version, 0);
        let plain = list.resolver.ask(transport, &DnsQuery::new(&name, A));
        assert_eq!((plain.rcode, plain.answers().len()), (NOERROR, 1), "{transport:?}");
        let hit = list.resolver.ask(transport, &DnsQuery::new(&name, A).edns(later));
        assert_eq!(hit.rcode, BADVERS, "{transport:?}: of a name that is cached too");
    }
}

#[test]
fn udp_answers_fit_the_client_and_are_whole_elsewhere() {
    let list = Checklist::start(&[]);
    let sized = |size| QueryEdns { size, ..QueryEdns::default() };
    for (edns, limit) in [
        (None, 512),
        (Some(sized(100)), 512),
        (Some(sized(800)), 800),
        (Some(sized(1_232)), 1_232),
        (Some(sized(4_096)), 1_232),
        (Some(sized(65_535)), 1_232),
    ] {
        let make = |name: &str, parent: &str| {
            let mut query = DnsQuery::new(&below(name, parent), A);
            query.edns = edns.clone();
            query
        };
        list.twice(
            Transport::Udp,
            |name| make(name, "many.rfc.example"),
            |_, reply| {
                assert!(reply.length <= limit, "{} > {limit}", reply.length);
                assert!(reply.has(dns_flag::TC), "one RRset, too long: none of it");
                assert_eq!(reply.answers().len(), 0, "whole RRsets only");
                assert_eq!(reply.edns.is_some(), edns.is_some(), "the OPT record stays");
            },
        );
        let has_room = limit > 1_000;
        list.twice(
            Transport::Udp,
            |name| DnsQuery { qtype: TXT, ..make(name, "long.rfc.example") },
            |_, reply| {
                assert!(reply.length <= limit);
                assert_eq!(
                    (reply.has(dns_flag::TC), reply.answers().len()),
                    match has_room {
                        true => (false, 1),
                        false => (true, 0),
                    }
                );
            },
        );
        for transport in [Transport::Tcp, Transport::Tls, Transport::Https] {
            list.twice(
                transport,
                |name| make(name, "many.rfc.example"),
                |_, reply| {
                    assert_eq!((reply.has(dns_flag::TC), reply.answers().len()), (false, 100));
                },
            );
        }
    }
}

#[test]
fn negative_answers_have_an_soa_and_count_down() {
    let list = Checklist::start(&[]);
    let is_negative = |reply: &DnsMessage, rcode: u16| {
        assert_eq!((reply.rcode, reply.answers().len()), (rcode, 0));
        let soa: Vec<_> = reply.authorities().iter().filter(|r| r.rtype == SOA).collect();
        assert_eq!(soa.len(), 1);
        assert!((290..=300).contains(&soa[0].ttl), "the lesser of TTL and MINIMUM: {}", soa[0].ttl);
    };
    list.each(
        |name| DnsQuery::new(&below(name, "nobody.rfc.example"), A),
        |_, reply| is_negative(reply, NXDOMAIN),
    );
    list.each(|name| DnsQuery::new(name, AAAA), |_, reply| is_negative(reply, NOERROR));
    // It counts down, and all types of a name share its denial (RFC 2308, 8020).
    let name = list.fresh("gone.rfc.example");
    let first = list.resolver.ask(Transport::Udp, &DnsQuery::new(&name, A));
    let since = Instant::now();
    let ttl = |reply: &DnsMessage| reply.authorities()[0].ttl;
    let later = testkit::until_blocking("the TTL counts down", || {
        let reply = list.resolver.ask(Transport::Udp, &DnsQuery::new(&name, A));
        (ttl(&reply) < ttl(&first)).then_some(reply)
    });
    assert!(u64::from(ttl(&first) - ttl(&later)) <= since.elapsed().as_secs() + 1);
}

#[test]
fn ttls_of_0_are_passed_on_and_never_kept() {
    let list = Checklist::start(&[]);
    list.each(
        |name| DnsQuery::new(&below(name, "zero.rfc.example"), A),
        |_, reply| assert_eq!(reply.answers()[0].ttl, 0),
    );
    let name = list.fresh("zero.rfc.example");
    list.resolver.ask(Transport::Udp, &DnsQuery::new(&name, A));
    let found = list.resolver.gate.run(&["dns", "cache", "find", &name, "--json"]);
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    assert_eq!(String::from_utf8_lossy(&found.stdout).trim(), "[]");
}

#[test]
fn types_nobody_knows_are_relayed_byte_for_byte() {
    let list = Checklist::start(&[]);
    list.each(
        |name| DnsQuery::new(&below(name, "odd.rfc.example"), 65_280),
        |_, reply| {
            assert_eq!(reply.answers()[0].data, [10, 0, 0, 1]);
            assert_eq!(reply.answers()[0].rtype, 65_280);
        },
    );
    list.each(
        |name| DnsQuery::new(name, 65_281),
        |_, reply| {
            assert_eq!((reply.rcode, reply.answers().len()), (NOERROR, 0));
            assert!(reply.has_type(SOA));
        },
    );
}

#[test]
fn aliases_are_followed_and_mail_is_found() {
    let list = Checklist::start(&[]);
    list.each(
        |name| DnsQuery::new(&below(name, "alias.rfc.example"), A),
        |_, reply| {
            let types: Vec<u16> = reply.answers().iter().map(|record| record.rtype).collect();
            assert_eq!(types, [5, 1], "the alias first, then what it leads to");
        },
    );
    list.each(
        |name| DnsQuery::new(&below(name, "mail.rfc.example"), 15),
        |_, reply| assert_eq!(reply.answers()[0].data[..2], [0, 10]),
    );
}

#[test]
fn dnssec_records_are_for_those_who_ask() {
    let list = Checklist::start(&[]);
    let signed = |name: &str| below(name, "one.signed.example");
    // The same name, plain and signed in turns, on misses and hits: no kind answers another.
    for transport in Transport::ALL {
        let name = list.fresh("one.signed.example");
        for round in 0..2 {
            let plain = list.resolver.ask(transport, &DnsQuery::new(&name, A));
            assert!(!plain.has_type(RRSIG) && !plain.has_type(NSEC), "{transport:?} {round}");
            assert_eq!(plain.answers().len(), 1);
            let asked = DnsQuery::new(&name, A).dnssec_ok();
            let reply = list.resolver.ask(transport, &asked);
            assert!(reply.has_type(RRSIG), "{transport:?} {round}: {reply:?}");
            assert!(reply.has_type(NSEC), "the proof of the wildcard: {reply:?}");
            assert_eq!(reply.edns.unwrap().flags, 0x8000);
            let unchecked = list.resolver.ask(transport, &asked.flag(dns_flag::CD));
            assert!(unchecked.has(dns_flag::CD) && unchecked.has_type(RRSIG));
        }
    }
    // Denials carry their proof, and signatures asked for by type are given to everybody.
    list.each(
        |name| DnsQuery::new(&below(name, "nobody.signed.example"), A).dnssec_ok(),
        |_, reply| {
            assert_eq!(reply.rcode, NXDOMAIN);
            assert!(reply.has_type(NSEC) && reply.has_type(RRSIG));
        },
    );
    list.each(
        |name| DnsQuery::new(&signed(name), AAAA).dnssec_ok(),
        |_, reply| {
            assert_eq!((reply.rcode, reply.answers().len()), (NOERROR, 0));
            assert!(reply.has_type(NSEC) && reply.has_type(RRSIG) && reply.has_type(SOA));
        },
    );
    let keys = list.resolver.ask(Transport::Tcp, &DnsQuery::new("signed.example", 48).dnssec_ok());
    assert!(keys.answers().iter().any(|record| record.rtype == 48));
    // AD is only what the upstream says: nsd does not validate, so nobody is told that it did.
    list.each(
        |name| DnsQuery::new(&signed(name), A).flag(dns_flag::AD),
        |_, reply| assert!(!reply.has(dns_flag::AD)),
    );
}

#[test]
fn a_validating_client_finds_the_chain_of_a_signed_zone() {
    let list = Checklist::start(&[]);
    let port = list.resolver.udp.port().to_string();
    let ask = |args: &[&str]| {
        let all =
            [&["@127.0.0.1", "-p", &port, "+dnssec", "+norecurse", "+recurse"], args].concat();
        run_dns_client("dig", &all)
    };
    let keys = ask(&["signed.example", "DNSKEY", "+short"]);
    let key = keys.lines().find(|line| line.starts_with("257")).expect("a key-signing key");
    let folder = tempfile::tempdir().unwrap();
    let anchor = folder.path().join("anchor");
    let (head, rest) = key.split_at(key.match_indices(' ').nth(2).unwrap().0 + 1);
    let text = rest.replace(' ', "");
    std::fs::write(
        &anchor,
        format!("trust-anchors {{ signed.example. static-key {head}\"{text}\"; }};\n"),
    )
    .unwrap();
    let validated = |name: &str| {
        let anchor = anchor.display().to_string();
        let all = ["@127.0.0.1", "-p", &port, "-a", &anchor, "+root=signed.example", name, "A"];
        run_dns_client("delv", &all)
    };
    for _ in ["miss", "hit"] {
        let told = validated("www.signed.example");
        assert!(told.contains("; fully validated") && told.contains("192.0.2.4"), "{told}");
        let told = validated("nothing.signed.example");
        assert!(told.contains("; negative response, fully validated"), "{told}");
    }
}

#[test]
fn cookies_are_echoed_and_given() {
    let list = Checklist::start(&[]);
    let with = |cookie: Vec<u8>| QueryEdns { options: vec![(10, cookie)], ..QueryEdns::default() };
    for transport in Transport::ALL {
        let name = list.fresh("one.rfc.example");
        let mut known = vec![1, 2, 3, 4, 5, 6, 7, 8];
        for _ in ["miss", "hit", "with our own"] {
            let query = DnsQuery::new(&name, A).edns(with(known.clone()));
            let reply = list.resolver.ask(transport, &query);
            let cookie = reply.edns.as_ref().unwrap().option(10).unwrap().to_vec();
            assert_eq!((cookie.len(), &cookie[..8]), (24, &known[..8]), "{transport:?}");
            assert_eq!(cookie[8], 1, "version of RFC 9018");
            assert_eq!(reply.answers().len(), 1);
            known = cookie;
        }
        for bad in [vec![], vec![1; 7], vec![1; 9], vec![1; 15], vec![1; 41]] {
            let query = DnsQuery::new(&name, A).edns(with(bad.clone()));
            let reply = list.resolver.ask(transport, &query);
            assert_eq!(reply.rcode, FORMERR, "{transport:?}: {} bytes", bad.len());
        }
        // A cookie that is not ours is no reason to be refused.
        let query = DnsQuery::new(&name, A).edns(with(vec![9; 24]));
        assert_eq!(list.resolver.ask(transport, &query).rcode, NOERROR);
    }
}

#[test]
fn padding_and_keepalive_are_where_they_belong() {
    let list = Checklist::start(&[]);
    let edns = QueryEdns { options: vec![(12, vec![]), (11, vec![])], ..QueryEdns::default() };
    list.each(|name| DnsQuery::new(name, A).edns(edns.clone()), |_, _| {});
    for transport in Transport::ALL {
        list.twice(
            transport,
            |name| DnsQuery::new(name, A).edns(edns.clone()),
            |_, reply| {
                let edns = reply.edns.as_ref().unwrap();
                let is_private = matches!(transport, Transport::Tls | Transport::Https);
                assert_eq!(edns.option(12).is_some(), is_private, "RFC 7830: encrypted only");
                if is_private {
                    assert_eq!(reply.length % 468, 0, "RFC 8467: blocks of 468");
                }
                let is_stream = matches!(transport, Transport::Tcp | Transport::Tls);
                let expected = is_stream.then_some(&[0, 100][..]);
                assert_eq!(edns.option(11), expected, "RFC 7828: 10 s, over TCP only");
            },
        );
    }
}

#[test]
fn queries_nobody_should_send_get_what_the_table_says() {
    let list = Checklist::start(&[]);
    let cached = list.fresh("one.rfc.example");
    list.resolver.ask(Transport::Udp, &DnsQuery::new(&cached, A));
    let good = || DnsQuery::new(&cached, A);
    let name = wire_name(&cached);
    let with_name = |wire: Vec<u8>| DnsQuery { name: wire, ..good() }.to_wire();
    let counts = |questions: u8, more: &[u8]| {
        let mut wire = good().to_wire();
        wire[5] = questions;
        wire.extend(more);
        wire
    };
    let mut two_opts = good().edns(QueryEdns::default()).to_wire();
    two_opts[11] = 2;
    two_opts.extend(QueryEdns::default().to_wire());
    let mut cut = good().to_wire();
    cut.truncate(20);
    let long_name: Vec<u8> = [[&[63][..], &[b'a'; 63]].concat().repeat(4), vec![0]].concat();
    let mut opt_in_answer = good().edns(QueryEdns::default()).to_wire();
    opt_in_answer[7] = 1;
    opt_in_answer[11] = 0;
    let mut opt_with_name = good().to_wire();
    opt_with_name[11] = 1;
    opt_with_name.extend([1, b'x', 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    let mut no_more = good().to_wire();
    no_more[11] = 1;
    let opcode = |opcode: u16| DnsQuery { flags: opcode << 11 | dns_flag::RD, ..good() }.to_wire();
    let mut header_only = good().to_wire();
    header_only.truncate(12);
    let cases: Vec<(&str, Vec<u8>, u16)> = vec![
        ("no question", counts(0, &[]), FORMERR),
        ("two questions", counts(2, &[&name[..], &[0, 1, 0, 1]].concat()), FORMERR),
        ("a header that promises a question", header_only, FORMERR),
        ("a name that breaks off", cut, FORMERR),
        ("label type 01", with_name(vec![0x41, 0, 0]), FORMERR),
        ("label type 10", with_name(vec![0x81, 0, 0]), FORMERR),
        ("a pointer to itself", with_name(vec![0xc0, 12]), FORMERR),
        ("a pointer into the header", with_name(vec![0xc0, 0]), FORMERR),
        ("a name of 257 bytes", with_name(long_name), FORMERR),
        ("two OPT", two_opts, FORMERR),
        ("OPT in the answer section", opt_in_answer, FORMERR),
        ("OPT with a name", opt_with_name, FORMERR),
        ("a record that is not there", no_more, FORMERR),
        ("opcode IQUERY", opcode(1), NOTIMP),
        ("opcode STATUS", opcode(2), NOTIMP),
        ("opcode NOTIFY", opcode(4), NOTIMP),
        ("opcode UPDATE", opcode(5), NOTIMP),
        ("an opcode nobody has", opcode(15), NOTIMP),
        ("class CHAOS", DnsQuery { qclass: 3, ..good() }.to_wire(), REFUSED),
        ("class ANY", DnsQuery { qclass: 255, ..good() }.to_wire(), REFUSED),
        ("a zone transfer", DnsQuery { qtype: 252, ..good() }.to_wire(), REFUSED),
        ("an incremental one", DnsQuery { qtype: 251, ..good() }.to_wire(), REFUSED),
        ("RD=0 of a cached name", DnsQuery { flags: 0, ..good() }.to_wire(), REFUSED),
        (
            "RD=0 of another",
            DnsQuery { flags: 0, ..DnsQuery::new("x.one.rfc.example", A) }.to_wire(),
            REFUSED,
        ),
        (
            "version.bind",
            DnsQuery { qclass: 3, ..DnsQuery::new("version.bind", TXT) }.to_wire(),
            REFUSED,
        ),
    ];
    for transport in Transport::ALL {
        let mut client = list.resolver.open(transport);
        for (what, packet, rcode) in &cases {
            let reply = client.exchange(packet).unwrap_or_else(|| panic!("{transport:?}: {what}"));
            assert_eq!(reply[..2], packet[..2], "{transport:?}: {what}: id");
            assert_eq!(reply[2] & 0x80, 0x80, "{transport:?}: {what}: QR");
            assert_eq!(reply[2] & 0x78, packet[2] & 0x78, "{transport:?}: {what}: opcode");
            assert_eq!(u16::from(reply[3] & 0xf), *rcode, "{transport:?}: {what}");
            assert!(reply.len() <= packet.len() + 11, "{transport:?}: {what}: no amplification");
            DnsMessage::read(&reply).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        // And the good query is still answered.
        assert_eq!(client.ask(&good()).answers().len(), 1);
    }
}

#[test]
fn short_packets_and_responses_get_no_reply() {
    let list = Checklist::start(&[]);
    let name = list.fresh("one.rfc.example");
    let response = DnsQuery::new(&name, A).flag(dns_flag::QR).to_wire();
    let good = DnsQuery::new(&name, A);
    list.resolver.ask(Transport::Udp, &good);
    for transport in [Transport::Udp, Transport::Tcp, Transport::Tls] {
        let mut client = list.resolver.open(transport);
        for packet in [&[][..], &[1], &good.to_wire()[..11], &response] {
            client.send(packet);
        }
        // Packets of one client are looked at in their order: the first reply is to the last.
        let reply = client.ask(&good);
        assert_eq!(reply.answers().len(), 1, "{transport:?}");
    }
    let (url, ca) = (format!("{}/dns-query", list.resolver.gate.base), list.resolver.ca());
    let ca = std::fs::read(ca).unwrap();
    for packet in [&good.to_wire()[..11], &response] {
        assert_eq!(post(&url, &ca, packet).0, 400);
    }
}

#[test]
fn any_and_special_names_are_answered_here() {
    let list = Checklist::start(&[]);
    list.each(
        |name| DnsQuery::new(name, ANY),
        |_, reply| {
            assert_eq!(reply.answers().len(), 1, "RFC 8482: one record");
            assert_eq!(reply.answers()[0].rtype, 13);
        },
    );
    for (name, qtype, rcode) in [
        ("localhost", A, NOERROR),
        ("any.localhost", AAAA, NOERROR),
        ("x.invalid", A, NXDOMAIN),
        ("x.onion", A, NXDOMAIN),
        ("x.alt", A, NXDOMAIN),
        ("x.home.arpa", A, NXDOMAIN),
        ("1.1.168.192.in-addr.arpa", 12, NXDOMAIN),
        ("1.0.0.10.in-addr.arpa", 12, NXDOMAIN),
        ("use-application-dns.net", A, NXDOMAIN),
        ("_dns.resolver.arpa", 64, NOERROR),
        ("x.resolver.arpa", A, NOERROR),
    ] {
        for transport in Transport::ALL {
            for round in ["miss", "hit"] {
                let reply = list.resolver.ask(transport, &DnsQuery::new(name, qtype));
                assert_eq!(reply.rcode, rcode, "{transport:?} {round} {name}: {reply:?}");
                let is_negative = reply.answers().is_empty();
                assert!(
                    !is_negative || reply.has_type(SOA),
                    "{name}: negative answers have an SOA"
                );
            }
        }
    }
}

#[test]
fn tcp_takes_pipelined_split_and_many_queries() {
    let list = Checklist::start(&["--set", "dns.tcp_idle=1s"]);
    for transport in [Transport::Tcp, Transport::Tls] {
        let mut client = list.resolver.open(transport);
        let queries: Vec<DnsQuery> = (0..200)
            .map(|number| DnsQuery {
                id: number,
                // Every other one is a hit for the one before it.
                ..DnsQuery::new(&format!("p{}-{transport:?}.one.rfc.example", number / 2), A)
            })
            .collect();
        queries.iter().for_each(|query| client.send(&query.to_wire()));
        let mut seen = std::collections::HashSet::new();
        for _ in &queries {
            let reply = DnsMessage::read(&client.receive()).unwrap();
            assert_eq!((reply.rcode, reply.answers().len()), (NOERROR, 1));
            let query = &queries[usize::from(reply.id)];
            assert_eq!(reply.question, query.to_wire()[12..]);
            assert!(seen.insert(reply.id), "answered once");
        }
        // An idle connection is closed by the server.
        match &mut client {
            crate::dns_client::Client::Tcp(stream) => {
                assert_eq!(std::io::Read::read(stream, &mut [0; 1]).unwrap_or(0), 0);
            }
            crate::dns_client::Client::Tls(stream) => {
                assert_eq!(std::io::Read::read(stream, &mut [0; 1]).unwrap_or(0), 0);
            }
            _ => {}
        }
    }
}

#[test]
fn doh_follows_rfc_8484() {
    let list = Checklist::start(&[]);
    let base = format!("{}/dns-query", list.resolver.gate.base);
    let name = list.fresh("one.rfc.example");
    let ca = list.resolver.ca();
    let curl = |args: &[&str]| {
        let common =
            ["--silent", "--http2", "--cacert", &ca, "--dump-header", "-", "--output", "/dev/null"];
        let got = std::process::Command::new("curl").args(common).args(args).output().unwrap();
        String::from_utf8_lossy(&got.stdout).to_lowercase()
    };
    let query = DnsQuery { id: 0, ..DnsQuery::new(&name, A) }.to_wire();
    let encoded = encode_base64url(&query);
    for _ in ["miss", "hit"] {
        let got = curl(&[&format!("{base}?dns={encoded}")]);
        assert!(got.starts_with("http/2 200"), "{got}");
        assert!(got.contains("content-type: application/dns-message"), "{got}");
        let age: u32 = got
            .split("max-age=")
            .nth(1)
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!((3_500..=3_600).contains(&age), "the least TTL: {age}");
    }
    let is = |args: &[&str], status: &str| {
        let got = curl(args);
        assert!(got.starts_with(&format!("http/2 {status}")), "{args:?}: {got}");
        assert!(!got.contains("application/json"), "{args:?}: {got}");
    };
    is(&[&base], "400");
    is(&[&format!("{base}?dns=***")], "400");
    is(&[&format!("{base}?dns=AAAA")], "400");
    is(&["--data", "x", &base], "415");
    // The frame puts these two into the envelope whoever asks.
    for (args, status) in
        [(&["--request", "PUT", &base][..], "405"), (&[&format!("{base}x")], "404")]
    {
        let got = curl(args);
        assert!(got.starts_with(&format!("http/2 {status}")), "{args:?}: {got}");
    }
    let long = "A".repeat(8_000);
    is(&[&format!("{base}?dns={long}")], "413");
    let json = curl(&["--header", "accept: application/json", &base]);
    assert!(json.starts_with("http/2 400") && json.contains("application/json"), "{json}");
}

fn encode_base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..1 + chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(word);
        for digit in 0..=chunk.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63]));
        }
    }
    text
}

#[test]
fn blocked_replies_can_be_cached_and_say_why() {
    let list = Checklist::start(&[]);
    let blocked = list.resolver.gate.run(&["dns", "block", "ads.rfc.example"]);
    assert!(blocked.status.success());
    for (qtype, answers) in [(A, 1), (AAAA, 1), (TXT, 0), (65, 0)] {
        list.each(
            |name| DnsQuery::new(&below(name, "ads.rfc.example"), qtype).edns(QueryEdns::default()),
            |_, reply| {
                assert_eq!(
                    (reply.rcode, reply.answers().len()),
                    (NOERROR, answers),
                    "never NXDOMAIN"
                );
                assert!(answers == 1 || reply.has_type(SOA), "negative caching works");
                let error = reply.edns.as_ref().unwrap().option(15).unwrap();
                assert_eq!(error[..2], [0, 15], "EDE 15: blocked");
            },
        );
    }
    // EDE is for those who sent an OPT record.
    list.each(
        |name| DnsQuery::new(&below(name, "ads.rfc.example"), A),
        |_, reply| assert!(reply.edns.is_none()),
    );
}

#[test]
fn a_client_that_may_not_ask_is_refused_everywhere() {
    let list = Checklist::start(&[]);
    let policy = r#"{"access": {"networks": ["10.0.0.0/8"]},
        "rate_limit": {"per_second": 5, "burst": 10, "exempt": []}}"#;
    std::fs::write(list.resolver.gate.path().join("policy.json"), policy).unwrap();
    let applied = list.resolver.gate.run(&["dns", "apply", "policy.json"]);
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    // Loopback is exempt from the rate limit, never from the access list.
    for transport in Transport::ALL {
        let query = DnsQuery::new("www.one.rfc.example", A).edns(QueryEdns::default());
        let reply = list.resolver.ask(transport, &query);
        assert_eq!(reply.rcode, REFUSED, "{transport:?}");
        let error = reply.edns.as_ref().unwrap().option(15).unwrap();
        assert_eq!(error[..2], [0, 18], "EDE 18: prohibited");
    }
}

#[test]
fn mutated_packets_harm_nobody() {
    let list = Checklist::start(&[]);
    let name = list.fresh("one.rfc.example");
    let good = DnsQuery::new(&name, A);
    list.resolver.ask(Transport::Udp, &good);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(list.resolver.udp).unwrap();
    let mut random = fastrand::Rng::with_seed(20_261_117);
    for round in 0..3_000 {
        let edns = QueryEdns { options: vec![(10, vec![1; 8])], ..QueryEdns::default() };
        let mut packet = good.clone().edns(edns).to_wire();
        for _ in 0..random.usize(1..8) {
            let at = random.usize(..packet.len());
            packet[at] = random.u8(..);
        }
        packet.truncate(random.usize(0..=packet.len()));
        socket.send(&packet).unwrap();
        if round % 100 == 99 {
            assert_eq!(list.resolver.ask(Transport::Udp, &good).answers().len(), 1);
        }
    }
    for transport in [Transport::Tcp, Transport::Tls] {
        let mut client = list.resolver.open(transport);
        for _ in 0..300 {
            let mut packet = good.to_wire();
            let at = random.usize(..packet.len());
            packet[at] = random.u8(..);
            client.send(&packet);
        }
        // Whatever came before, a good query on a connection of its own is answered.
        assert_eq!(list.resolver.ask(transport, &good).answers().len(), 1);
    }
    assert!(!list.resolver.gate.log().contains("panic"), "{}", list.resolver.gate.log());
}

#[test]
fn dig_kdig_and_dnsperf_get_along_with_it() {
    let list = Checklist::start(&[]);
    let (udp, tls) = (list.resolver.udp.port().to_string(), list.resolver.tls.port().to_string());
    let name = list.fresh("one.rfc.example");
    let https = list.resolver.gate.base.rsplit(':').next().unwrap().to_owned();
    for _ in ["miss", "hit"] {
        for args in [
            vec!["@127.0.0.1", "-p", &udp, &name, "A"],
            vec!["@127.0.0.1", "-p", &udp, "+tcp", &name, "A"],
            vec!["@127.0.0.1", "-p", &udp, "+cookie", "+dnssec", &name, "A"],
            vec!["@127.0.0.1", "-p", &tls, "+tls", "+padding", &name, "A"],
            vec!["@127.0.0.1", "-p", &https, "+https", &name, "A"],
            vec!["@127.0.0.1", "-p", &https, "+https-get", &name, "A"],
        ] {
            let told = run_dns_client("kdig", &args);
            assert!(told.contains("192.0.2.1") && !told.contains("WARNING"), "{args:?}: {told}");
        }
        let told = run_dns_client("dig", &["@127.0.0.1", "-p", &udp, &name, "A", "+qr"]);
        assert!(told.contains("192.0.2.1") && !told.contains("WARNING"), "{told}");
    }
    let file = list.resolver.gate.path().join("queries");
    std::fs::write(&file, format!("{name} A\n{name} AAAA\nx.nobody.rfc.example A\n")).unwrap();
    let file = file.display().to_string();
    for (mode, port) in [("udp", &udp), ("tcp", &udp), ("dot", &tls)] {
        let args =
            ["-s", "127.0.0.1", "-p", port, "-m", mode, "-d", &file, "-n", "100", "-Q", "2000"];
        let told = run_dns_client("dnsperf", &args);
        assert!(told.contains("Queries lost:         0 "), "{mode}: {told}");
    }
}

#[test]
fn an_answer_comes_within_the_client_timeout_when_the_upstream_is_dead() {
    // A socket that takes everything and says nothing.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let upstream = silent.local_addr().unwrap().to_string();
    let resolver = Resolver::start(&upstream, &[]);
    for transport in Transport::ALL {
        let since = Instant::now();
        let query = DnsQuery::new(&format!("{transport:?}.dead.example"), A);
        let reply = resolver.ask(transport, &query.edns(QueryEdns::default()));
        let took = since.elapsed();
        assert_eq!(reply.rcode, 2, "{transport:?}");
        assert_eq!(reply.edns.unwrap().option(15).unwrap()[..2], [0, 22], "EDE 22");
        assert!(
            took < Duration::from_millis(2_600),
            "{transport:?}: {took:?} (1.8 s and a busy machine)"
        );
    }
}
