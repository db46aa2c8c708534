//! What policy does to queries: lists, rules, groups, schedules, local records, protection.

use std::{net::IpAddr, time::Duration};

use dns::{
    FrontTable, HitResult, ListRefresh, Policy, QueryBatch, QueryClient, QueryOutcome,
    QueryProtocol, RefreshPreset, Resolver, ResolverOptions, UpstreamOptions,
};
use serde_json::json;
use store::Store;
use testkit::{
    dns_message::{DnsMessage, DnsQuery, QueryEdns},
    each_store, until,
};

use crate::support::{
    ScriptedUpstream, address_reply, packet, packet_with_opt, question, question_end,
};

const HOME: &str = "192.168.1.10";

fn policy(json: serde_json::Value) -> Policy {
    serde_json::from_value(json).unwrap()
}

async fn upstream() -> ScriptedUpstream {
    ScriptedUpstream::start(|query, _| vec![address_reply(query, 300, 1)]).await
}

fn options(upstream: &ScriptedUpstream, policy: Policy) -> ResolverOptions {
    ResolverOptions {
        upstream: UpstreamOptions {
            servers: vec![upstream.address()],
            timeout: Duration::from_millis(500),
            ..UpstreamOptions::default()
        },
        refresh: RefreshPreset::Off,
        default_policy: policy,
        ..ResolverOptions::default()
    }
}

async fn open(store: &Store, upstream: &ScriptedUpstream, json: serde_json::Value) -> Resolver {
    Resolver::open(store.clone(), options(upstream, policy(json))).await.unwrap()
}

fn from(address: &str) -> QueryClient<'static> {
    let address: IpAddr = address.parse().unwrap();
    QueryClient { address, id: None, protocol: QueryProtocol::Udp }
}

/// Response code and the data of the first record.
fn told(reply: &[u8]) -> (u8, Vec<u8>) {
    let start = question_end(reply);
    let data = match reply[7] {
        0 => Vec::new(),
        // Owner as a pointer, type, class, TTL, length.
        _ => {
            let length = usize::from(reply[start + 11]);
            reply[start + 12..start + 12 + length].to_vec()
        }
    };
    (reply[3] & 0xf, data)
}

async fn ask(resolver: &Resolver, name: &str, client: &str) -> (u8, Vec<u8>) {
    told(&resolver.answer(&packet(name), from(client)).await.unwrap())
}

const TRUE: [u8; 4] = [192, 0, 2, 1];
const NULL: [u8; 4] = [0; 4];

fn passed() -> (u8, Vec<u8>) {
    (0, TRUE.to_vec())
}

fn blocked() -> (u8, Vec<u8>) {
    (0, NULL.to_vec())
}

fn with_type(name: &str, qtype: u8) -> Vec<u8> {
    let mut packet = packet(name);
    let at = packet.len() - 3;
    packet[at] = qtype;
    packet
}

each_store! {
    async fn rules_block_and_allow_and_a_change_counts_at_once_everywhere(t: TestStore) {
        let upstream = upstream().await;
        let first = open(&t.store, &upstream, json!({"rules": ["||ads.test^", "@@||good.ads.test^"]})).await;
        let second = open(&t.another().await, &upstream, json!({})).await;
        assert_eq!(ask(&first, "www.test", HOME).await, passed());
        assert_eq!(ask(&first, "x.ads.test", HOME).await, blocked());
        assert_eq!(ask(&first, "x.good.ads.test", HOME).await, passed());
        assert_eq!(ask(&second, "x.ads.test", HOME).await, passed());
        first.save_policy(0, policy(json!({"rules": ["||www.test^"]}))).await.unwrap();
        assert_eq!(ask(&first, "www.test", HOME).await, blocked(), "cached before");
        assert_eq!(ask(&first, "x.ads.test", HOME).await, passed(), "blocked before");
        until("the other instance follows", async || {
            (ask(&second, "www.test", HOME).await == blocked()).then_some(())
        })
        .await;
        first.close().await;
        second.close().await;
    }

    async fn groups_decide_for_their_clients_only(t: TestStore) {
        let upstream = upstream().await;
        let resolver = open(&t.store, &upstream, json!({
            "groups": [
                {"id": "kids", "rules": ["||games.test^"], "services": [{"id": "tiktok"}],
                 "block_reply": {"mode": "nxdomain"}},
                {"id": "guests", "block_reply": {"mode": "refused"}, "rules": ["||games.test^"]},
            ],
            "clients": [
                {"id": "tablet", "group": "kids", "addresses": ["192.168.1.20"]},
                {"id": "guests", "group": "guests", "addresses": ["192.168.2.0/24"]},
            ],
        })).await;
        for _ in 0..2 {
            assert_eq!(ask(&resolver, "games.test", HOME).await, passed());
            assert_eq!(ask(&resolver, "games.test", "192.168.1.20").await, (3, vec![]));
            assert_eq!(ask(&resolver, "www.tiktok.com", "192.168.1.20").await, (3, vec![]));
            assert_eq!(ask(&resolver, "www.tiktok.com", HOME).await, passed());
            assert_eq!(ask(&resolver, "games.test", "192.168.2.77").await, (5, vec![]));
        }
        let by_id = QueryClient { id: Some("tablet"), ..from(HOME) };
        let reply = resolver.answer(&packet("games.test"), by_id).await.unwrap();
        assert_eq!(told(&reply), (3, vec![]), "by its id over DoH");
        resolver.close().await;
    }

    async fn schedules_pauses_and_timed_rules_end_by_themselves(t: TestStore) {
        // The clock of tests starts at a moment of its own: windows are made around it.
        let now = t.store.now();
        let upstream = upstream().await;
        let hour = 3_600_000;
        let resolver = open(&t.store, &upstream, json!({
            "rules": ["||ads.test^"],
            "pauses": [{"scope": {"client": "192.168.1.30"}, "until_ms": now.0 + hour}],
            "timed_rules": [
                {"id": "t1", "name": "ads.test", "action": "allow",
                 "scope": {"client": "192.168.1.31"}, "until_ms": now.0 + hour},
                {"id": "t2", "name": "www.test", "action": "block", "scope": "all",
                 "until_ms": now.0 + 2 * hour},
            ],
        })).await;
        assert_eq!(ask(&resolver, "ads.test", HOME).await, blocked());
        assert_eq!(ask(&resolver, "ads.test", "192.168.1.30").await, passed(), "paused");
        assert_eq!(ask(&resolver, "ads.test", "192.168.1.31").await, passed(), "allowed");
        assert_eq!(ask(&resolver, "www.test", HOME).await, blocked());
        t.clock.advance(Duration::from_millis(3_600_001));
        for client in ["192.168.1.30", "192.168.1.31"] {
            assert_eq!(ask(&resolver, "ads.test", client).await, blocked(), "{client}");
        }
        assert_eq!(ask(&resolver, "www.test", HOME).await, blocked());
        t.clock.advance(Duration::from_millis(3_600_000));
        assert_eq!(ask(&resolver, "www.test", HOME).await, passed());
        resolver.close().await;
    }

    async fn only_clients_on_the_access_list_are_answered(t: TestStore) {
        let upstream = upstream().await;
        let resolver = open(&t.store, &upstream, json!({})).await;
        assert_eq!(ask(&resolver, "www.test", "203.0.113.9").await, (5, vec![]));
        assert_eq!(ask(&resolver, "www.test", "10.1.2.3").await, passed());
        let mut front = FrontTable::new(16);
        let mut out = [0; 1_232];
        let now = resolver.now();
        let hit = resolver.answer_hit(&mut front, &packet("www.test"), from("203.0.113.9"), now, &mut out);
        let HitResult::Reply(length) = hit else { panic!("{hit:?}") };
        assert_eq!(told(&out[..length]).0, 5);
        resolver.close().await;
    }

    async fn local_names_never_leave(t: TestStore) {
        let upstream = upstream().await;
        let resolver = open(&t.store, &upstream, json!({"records": [
            {"name": "nas.lan", "type": "A", "value": "192.168.1.5"},
            {"name": "www.lan", "type": "CNAME", "value": "www.example.com"},
        ]})).await;
        let mut no_recursion = packet("nas.lan");
        no_recursion[2] = 0;
        for _ in 0..2 {
            assert_eq!(ask(&resolver, "nas.lan", HOME).await, (0, vec![192, 168, 1, 5]));
            let reply = resolver.answer(&no_recursion, from(HOME)).await.unwrap();
            assert_eq!(told(&reply), (0, vec![192, 168, 1, 5]), "also without recursion");
            let reply = resolver.answer(&with_type("nas.lan", 28), from(HOME)).await.unwrap();
            assert_eq!((reply[3] & 0xf, reply[7], reply[9]), (0, 0, 1), "NODATA with SOA");
            assert_eq!(ask(&resolver, "x.invalid", HOME).await, (3, vec![]));
            assert_eq!(ask(&resolver, "use-application-dns.net", HOME).await, (3, vec![]));
            let reply = resolver.answer(&with_type("any.test", 255), from(HOME)).await.unwrap();
            assert_eq!((reply[7], told(&reply).1), (1, b"\x07RFC8482\0".to_vec()), "ANY");
        }
        assert_eq!(upstream.seen().len(), 0);
        let reply = resolver.answer(&packet("www.lan"), from(HOME)).await.unwrap();
        assert_eq!(reply[7], 2, "an alias is followed");
        assert_eq!(upstream.seen().len(), 1);
        resolver.close().await;
    }
}

async fn alone(json: serde_json::Value, upstream: &ScriptedUpstream) -> Resolver {
    open(&Store::open("embedded:").await.unwrap(), upstream, json).await
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_replies_can_be_kept_and_say_why() {
    let upstream = upstream().await;
    for (mode, code, has_record, has_soa) in [
        (json!({"mode": "null_address"}), 0, true, false),
        (json!({"mode": "nxdomain"}), 3, false, true),
        (json!({"mode": "nodata"}), 0, false, true),
        (json!({"mode": "refused"}), 5, false, false),
        (json!({"mode": "custom_address", "ipv4": "192.0.2.66"}), 0, true, false),
    ] {
        let resolver = alone(
            json!({"rules": ["||ads.test^"], "groups": [{"id": "default", "block_reply": mode}]}),
            &upstream,
        )
        .await;
        let mut front = FrontTable::new(16);
        let mut out = [0; 1_232];
        let asked = packet_with_opt("ads.test", 1_232, false);
        let missed = resolver.answer(&asked, from(HOME)).await.unwrap();
        let now = resolver.now();
        let hit = resolver.answer_hit(&mut front, &asked, from(HOME), now, &mut out);
        assert_eq!(hit, HitResult::Reply(missed.len()), "{mode}");
        assert_eq!(out[..missed.len()], missed, "the same on a hit");
        let counts = (missed[7] == 1, missed[9] == 1);
        assert_eq!((missed[3] & 0xf, counts), (code, (has_record, has_soa)), "{mode}");
        // Extended DNS Error 15, blocked, with the name of what blocked it.
        assert!(missed.ends_with(b"\x00\x0f\x00\x07\x00\x0frules"), "{missed:?}");
        // Another type of a name that has an address gets no NXDOMAIN.
        let other = resolver.answer(&with_type("ads.test", 16), from(HOME)).await.unwrap();
        assert_eq!(other[3] & 0xf, code);
        resolver.close().await;
    }
    assert_eq!(upstream.seen().len(), 0);
}

/// A reply with an alias and the address of its target.
fn alias_reply(query: &[u8], target: &[u8], address: [u8; 4]) -> Vec<u8> {
    let end = question_end(query);
    let mut reply = query[..end].to_vec();
    (reply[2], reply[3]) = (0x81, 0x80);
    reply[4..12].copy_from_slice(&[0, 1, 0, 2, 0, 0, 0, 0]);
    reply.extend_from_slice(&[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0]);
    reply.push(u8::try_from(target.len()).unwrap());
    let at = u8::try_from(reply.len()).unwrap();
    reply.extend_from_slice(target);
    reply.extend_from_slice(&[0xc0, at, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    reply.extend_from_slice(&address);
    reply
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_checked_too() {
    let upstream = ScriptedUpstream::start(|query, _| {
        let target = b"\x07tracker\x04test\x00";
        vec![alias_reply(query, target, [198, 51, 100, 7])]
    })
    .await;
    let behind_alias = alone(json!({"rules": ["||tracker.test^"]}), &upstream).await;
    assert_eq!(ask(&behind_alias, "shop.test", HOME).await, blocked(), "replaced as a whole");
    let why = behind_alias.why(&question("shop.test"), HOME.parse().unwrap(), None).await;
    assert_eq!((why.outcome, why.hop.as_deref()), (QueryOutcome::Blocked, Some("tracker.test")));
    assert_eq!((why.line, why.rule.as_deref()), (Some(1), Some("||tracker.test^")));
    behind_alias.close().await;

    let allowed = alone(json!({"rules": ["||tracker.test^", "@@||shop.test^"]}), &upstream).await;
    let reply = allowed.answer(&packet("shop.test"), from(HOME)).await.unwrap();
    assert_eq!((reply[3] & 0xf, reply[7]), (0, 2), "an exception for the name wins");
    allowed.close().await;

    let by_address = alone(json!({"rules": ["198.51.100.0/24"]}), &upstream).await;
    assert_eq!(ask(&by_address, "shop.test", HOME).await, blocked());
    by_address.close().await;
}

/// What is withheld as a record is not told as a hint of a service binding.
#[tokio::test(flavor = "multi_thread")]
async fn hints_at_withheld_addresses_are_taken_out() {
    let upstream = ScriptedUpstream::start(|query, _| {
        let end = question_end(query);
        if query[end - 3] != 65 {
            return vec![address_reply(query, 300, 1)];
        }
        let mut reply = query[..end].to_vec();
        (reply[2], reply[3]) = (0x81, 0xa0);
        reply[4..12].copy_from_slice(&[0, 1, 0, 1, 0, 0, 0, 0]);
        // 1 . alpn=h2 ipv4hint=192.0.2.1 ipv6hint=2001:db8::1
        let mut data = vec![0, 1, 0, 0, 1, 0, 3, 2, b'h', b'2', 0, 4, 0, 4, 192, 0, 2, 1];
        data.extend([0, 6, 0, 16, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        reply.extend([0xc0, 12, 0, 65, 0, 1, 0, 0, 1, 44, 0, data.len() as u8]);
        reply.extend(data);
        vec![reply]
    })
    .await;
    let rules = json!({"rules": ["||six.test^$dnstype=AAAA", "||four.test^$dnstype=A"]});
    let resolver = alone(rules, &upstream).await;
    let ask = async |name: &str| {
        let query = DnsQuery::new(name, 65).dnssec_ok().flag(0x20).to_wire();
        let reply = resolver.answer(&query, from(HOME)).await.unwrap();
        DnsMessage::read(&reply).unwrap()
    };
    for _ in ["miss", "hit"] {
        let whole = ask("both.test").await;
        assert_eq!((whole.answers()[0].data.len(), whole.has(0x20)), (38, true));
        let four = ask("www.six.test").await;
        assert_eq!(four.answers()[0].data[10..], [0, 4, 0, 4, 192, 0, 2, 1]);
        assert!(!four.has(0x20), "changed, so it is not what was validated");
        assert_eq!(four.edns.as_ref().unwrap().option(15).unwrap()[..2], [0, 17], "filtered");
        let six = ask("www.four.test").await;
        assert_eq!((six.answers()[0].data.len(), six.answers()[0].data[11]), (30, 6));
    }
    resolver.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn private_addresses_of_public_names_are_withheld() {
    let upstream = ScriptedUpstream::start(|query, _| {
        let mut reply = address_reply(query, 60, 1);
        let at = reply.len() - 4;
        reply[at..].copy_from_slice(&[192, 168, 1, 1]);
        vec![reply]
    })
    .await;
    let resolver = alone(json!({"rebinding": {"exempt": ["home.test"]}}), &upstream).await;
    for _ in 0..2 {
        assert_eq!(ask(&resolver, "evil.test", HOME).await, (0, vec![]));
        assert_eq!(ask(&resolver, "nas.home.test", HOME).await, (0, vec![192, 168, 1, 1]));
    }
    resolver.close().await;
    let off = alone(json!({"rebinding": {"enabled": false}}), &upstream).await;
    assert_eq!(ask(&off, "evil.test", HOME).await, (0, vec![192, 168, 1, 1]));
    off.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_limit_holds_for_hits_and_misses_and_lets_true_clients_come_back() {
    let upstream = upstream().await;
    let resolver = alone(json!({"rate_limit": {"per_second": 1, "burst": 10}}), &upstream).await;
    let mut front = FrontTable::new(16);
    let mut out = [0; 1_232];
    let asked = packet("www.test");
    resolver.answer(&asked, from("127.0.0.1")).await.unwrap();
    let now = resolver.now();
    let (mut whole, mut truncated, mut none) = (0, 0, 0);
    for _ in 0..100 {
        match resolver.answer_hit(&mut front, &asked, from(HOME), now, &mut out) {
            HitResult::Reply(_) if out[2] & 2 != 0 => truncated += 1,
            HitResult::Reply(_) => whole += 1,
            HitResult::Drop => none += 1,
            HitResult::Miss => panic!("the answer is in memory"),
        }
    }
    assert_eq!(whole, 10);
    assert!((15..35).contains(&truncated) && none > 50, "{truncated} {none}");
    // A client with a cookie is told one of ours now and then, and is not limited with it.
    let with_cookie = |cookie: Vec<u8>| {
        let edns = QueryEdns { options: vec![(10, cookie)], ..QueryEdns::default() };
        DnsQuery::new("www.test", 1).edns(edns).to_wire()
    };
    let asked_so = with_cookie(vec![7; 8]);
    let told = (0..20).find_map(|_| {
        match resolver.answer_hit(&mut front, &asked_so, from(HOME), now, &mut out) {
            HitResult::Reply(length) => Some(DnsMessage::read(&out[..length]).unwrap()),
            _ => None,
        }
    });
    let told = told.expect("a reply now and then");
    assert_eq!((told.rcode, told.answers().len()), (23, 0), "BADCOOKIE");
    let cookie = told.edns.as_ref().unwrap().option(10).unwrap().to_vec();
    let proven = with_cookie(cookie);
    for _ in 0..100 {
        let hit = resolver.answer_hit(&mut front, &proven, from(HOME), now, &mut out);
        assert!(matches!(hit, HitResult::Reply(_)), "{hit:?}");
        assert_eq!((out[3] & 0xf, out[7]), (0, 1), "the answer");
    }
    // Loopback is not limited.
    for _ in 0..100 {
        let hit = resolver.answer_hit(&mut front, &asked, from("127.0.0.1"), now, &mut out);
        assert!(matches!(hit, HitResult::Reply(_)));
    }
    resolver.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn safe_search_gives_the_address_of_the_safe_variant() {
    let upstream = upstream().await;
    let resolver = alone(
        json!({"groups": [{"id": "kids", "safe_search": ["google", "youtube"]}],
               "clients": [{"id": "tablet", "group": "kids", "addresses": [HOME]}]}),
        &upstream,
    )
    .await;
    let reply = resolver.answer(&packet("www.google.com"), from(HOME)).await.unwrap();
    assert_eq!(reply[7], 2, "an alias and its address");
    assert!(reply.windows(15).any(|part| part == b"forcesafesearch"));
    let reply = resolver.answer(&with_type("www.google.com", 65), from(HOME)).await.unwrap();
    assert_eq!((reply[3] & 0xf, reply[7]), (0, 0), "no service binding");
    let other = resolver.answer(&packet("www.google.com"), from("10.0.0.1")).await.unwrap();
    assert_eq!(told(&other), passed());
    resolver.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_may_have_upstreams_of_its_own_and_no_cache() {
    let (common, own) = (
        upstream().await,
        ScriptedUpstream::start(|query, _| vec![address_reply(query, 300, 99)]).await,
    );
    let resolver = alone(
        json!({
            "groups": [
                {"id": "work", "upstreams": [{"address": own.address().to_string()}]},
                {"id": "live", "cache": false},
            ],
            "clients": [
                {"id": "laptop", "group": "work", "addresses": ["192.168.1.40"]},
                {"id": "monitor", "group": "live", "addresses": ["192.168.1.41"]},
            ],
            "upstreams": {"domains": [
                {"domains": ["corp.test"], "servers": [{"address": own.address().to_string()}]}]},
        }),
        &common,
    )
    .await;
    for _ in 0..2 {
        assert_eq!(ask(&resolver, "www.test", HOME).await, passed());
        assert_eq!(ask(&resolver, "www.test", "192.168.1.40").await, (0, vec![192, 0, 2, 99]));
        assert_eq!(ask(&resolver, "a.corp.test", HOME).await, (0, vec![192, 0, 2, 99]));
    }
    assert_eq!((common.seen().len(), own.seen().len()), (1, 2));
    for _ in 0..3 {
        assert_eq!(ask(&resolver, "www.test", "192.168.1.41").await, passed());
    }
    assert_eq!(common.seen().len(), 4);
    resolver.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_read_from_files_kept_and_guarded() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("files")).unwrap();
    let file = folder.path().join("files/own.txt");
    let lines: String = (0..200).map(|number| format!("||ads{number}.test^\n")).collect();
    std::fs::write(&file, &lines).unwrap();
    let upstream = upstream().await;
    let store = Store::open("embedded:").await.unwrap();
    let json = json!({"lists": [{"id": "own", "name": "Own list", "url": "file:own.txt"}]});
    let mut options = options(&upstream, policy(json));
    options.list_folder = Some(folder.path().to_owned());
    let resolver = Resolver::open(store.clone(), options.clone()).await.unwrap();
    assert_eq!(ask(&resolver, "ads7.test", HOME).await, passed(), "not fetched yet");
    assert_eq!(resolver.refresh_lists().await, 1);
    assert_eq!(ask(&resolver, "ads7.test", HOME).await, blocked(), "also when cached before");
    let why = resolver.why(&question("x.ads7.test"), HOME.parse().unwrap(), None).await;
    assert_eq!(
        (why.list.as_str(), why.line, why.rule.as_deref()),
        ("own", Some(8), Some("||ads7.test^"))
    );
    assert_eq!(resolver.refresh_lists().await, 0, "nothing is due");

    // Less than half is left: that is asked about first.
    std::fs::write(&file, "||ads7.test^\n").unwrap();
    let shrunk = ListRefresh::NeedsConfirmation { rules_before: 200, rules: 1 };
    assert_eq!(resolver.refresh_list("own", false).await.unwrap(), shrunk);
    assert_eq!(ask(&resolver, "ads8.test", HOME).await, blocked(), "the last good copy stays");
    // A source that is gone leaves the last good copy too.
    std::fs::remove_file(&file).unwrap();
    resolver.refresh_list("own", false).await.unwrap_err();
    assert_eq!(ask(&resolver, "ads8.test", HOME).await, blocked());
    let status = resolver.lists().status(&resolver.policy().policy.lists).remove(0);
    assert!(status.is_loaded && status.error.is_some() && status.figures.rules == 200);
    resolver.close().await;

    // After a restart the compiled copy is there before anything is fetched.
    let again = Resolver::open(store, options).await.unwrap();
    assert_eq!(ask(&again, "ads9.test", HOME).await, blocked());
    std::fs::write(&file, "||ads7.test^\n").unwrap();
    let replaced = ListRefresh::Replaced { rules_before: 200, rules: 1 };
    assert_eq!(again.refresh_list("own", true).await.unwrap(), replaced);
    assert_eq!(ask(&again, "ads9.test", HOME).await, passed());
    again.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answered_query_is_recorded() {
    let upstream = upstream().await;
    let resolver = alone(
        json!({"rules": ["||ads.test^"], "groups": [{"id": "kids"}],
               "clients": [{"id": "tablet", "group": "kids", "addresses": [HOME]}]}),
        &upstream,
    )
    .await;
    ask(&resolver, "www.test", HOME).await;
    ask(&resolver, "www.test", HOME).await;
    ask(&resolver, "ads.test", HOME).await;
    let mut front = FrontTable::new(16);
    let mut out = [0; 1_232];
    let now = resolver.now();
    for name in ["www.test", "ads.test"] {
        resolver.answer_hit(&mut front, &packet(name), from(HOME), now, &mut out);
    }
    resolver.hand_over(&mut front);
    let mut batch = QueryBatch::default();
    resolver.queries().drain(&mut batch);
    let labels = resolver.labels();
    let rows: Vec<_> = batch
        .iter()
        .map(|(record, _, answer)| {
            assert_eq!(
                (&*labels.name(record.client_id), &*labels.name(record.group)),
                ("tablet", "kids")
            );
            (record.outcome, labels.name(record.list).to_string(), answer.to_owned())
        })
        .collect();
    let row = |outcome, list: &str, answer: &str| (outcome, list.to_owned(), answer.to_owned());
    assert_eq!(
        rows,
        [
            row(QueryOutcome::Upstream, "", "192.0.2.1"),
            row(QueryOutcome::Cached, "", "192.0.2.1"),
            row(QueryOutcome::Blocked, "rules", "0.0.0.0"),
            row(QueryOutcome::Cached, "", "192.0.2.1"),
            row(QueryOutcome::Blocked, "rules", "0.0.0.0"),
        ]
    );
    resolver.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_if_decides_and_changes_nothing() {
    let upstream = upstream().await;
    let resolver = alone(json!({}), &upstream).await;
    let (asked, home) = (question("ads.test"), HOME.parse().unwrap());
    let other = policy(json!({"rules": ["||ads.test^"]}));
    let would = resolver.what_if(other, &asked, home, None).await.unwrap();
    assert_eq!(would.outcome, QueryOutcome::Blocked);
    let now = resolver.why(&asked, home, None).await;
    assert_eq!(now.outcome, QueryOutcome::Upstream);
    let bad = policy(json!({"rules": ["a b"]}));
    resolver.what_if(bad, &asked, home, None).await.unwrap_err();
    resolver.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_name_covers_what_is_below() {
    let upstream = ScriptedUpstream::start(|query, _| {
        let end = question_end(query);
        let mut reply = query[..end].to_vec();
        (reply[2], reply[3]) = (0x81, 0x83);
        reply[4..12].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
        reply.extend_from_slice(&[0xc0, 12, 0, 6, 0, 1, 0, 0, 0, 60, 0, 22, 0, 0]);
        reply.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 60]);
        vec![reply]
    })
    .await;
    let resolver = alone(json!({}), &upstream).await;
    assert_eq!(ask(&resolver, "gone.test", HOME).await.0, 3);
    assert_eq!(ask(&resolver, "a.b.gone.test", HOME).await.0, 3);
    assert_eq!(upstream.seen().len(), 1, "RFC 8020");
    assert_eq!(ask(&resolver, "there.test", HOME).await.0, 3);
    assert_eq!(upstream.seen().len(), 2);
    resolver.close().await;
}
