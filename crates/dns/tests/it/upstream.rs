//! Asking upstreams: what is checked, what is tried next. Upstreams here are scripted ones on
//! loopback, because the true ones do not lie, stall or break at will.

use std::{sync::atomic::Ordering, time::Duration};

use dns::{
    UpstreamAddress, UpstreamError, UpstreamOptions, UpstreamStrategy, Upstreams,
    wire::{AnswerKind, TtlBounds},
};

use crate::support::{ScriptedUpstream, address_reply, question};

fn upstreams(servers: &[&ScriptedUpstream]) -> Upstreams {
    Upstreams::new(UpstreamOptions {
        servers: servers.iter().map(|server| server.address()).collect(),
        timeout: Duration::from_millis(500),
        next_after: Duration::from_millis(150),
        ..UpstreamOptions::default()
    })
}

async fn ask(upstreams: &Upstreams, name: &str) -> Result<u8, UpstreamError> {
    let asked = question(name);
    let answer = upstreams.ask(&asked, AnswerKind::Plain, TtlBounds::default()).await?.answer;
    // The last byte of the only record is that of its address.
    Ok(*answer.as_wire().last().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_have_random_ids_ports_and_capitals() {
    let server = ScriptedUpstream::start(|query, _| vec![address_reply(query, 60, 1)]).await;
    let upstreams = upstreams(&[&server]);
    for _ in 0..20 {
        assert_eq!(ask(&upstreams, "a-rather-long-name.example.test").await, Ok(1));
    }
    let seen = server.seen();
    let distinct = |part: &dyn Fn(&crate::support::SeenQuery) -> Vec<u8>| {
        seen.iter().map(part).collect::<std::collections::HashSet<_>>().len()
    };
    assert!(distinct(&|query| query.wire[..2].to_vec()) > 15, "ids");
    assert!(distinct(&|query| query.from.port().to_be_bytes().to_vec()) > 10, "ports");
    assert!(distinct(&|query| query.wire[12..40].to_vec()) > 15, "spellings");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_is_drawn_from_many_and_used_for_some_queries() {
    let server = ScriptedUpstream::start(|query, _| vec![address_reply(query, 60, 1)]).await;
    let upstreams = upstreams(&[&server]);
    const QUERIES: usize = 400;
    for _ in 0..QUERIES {
        assert_eq!(ask(&upstreams, "a-rather-long-name.example.test").await, Ok(1));
    }
    let ports: Vec<u16> = server.seen().iter().map(|query| query.from.port()).collect();
    let mut uses = std::collections::HashMap::new();
    ports.iter().for_each(|port| *uses.entry(*port).or_insert(0) += 1);
    assert!((32..QUERIES / 2).contains(&uses.len()), "{} ports", uses.len());
    assert!(uses.values().all(|uses| *uses <= 32), "{uses:?}");
    let repeated = ports.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!(repeated < QUERIES / 8, "the next port cannot be told: {repeated}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_do_not_fit_are_dropped_and_the_true_one_is_waited_for() {
    let server = ScriptedUpstream::start(|query, _| {
        let truth = address_reply(query, 60, 1);
        let lie = address_reply(query, 60, 66);
        let mut other_id = lie.clone();
        other_id[0] ^= 0xff;
        let mut other_name = lie.clone();
        other_name[13] ^= 0x01;
        let mut other_type = lie.clone();
        let type_at = query.len() - 11 - 3;
        other_type[type_at] = 28;
        let mut no_response = lie.clone();
        no_response[2] &= 0x7f;
        let cut = lie[..lie.len() - 20].to_vec();
        vec![vec![], vec![1, 2, 3], other_id, other_name, other_type, no_response, cut, truth]
    })
    .await;
    let upstreams = upstreams(&[&server]);
    assert_eq!(ask(&upstreams, "www.example.test").await, Ok(1));
    let stats = upstreams.stats().remove(0);
    assert_eq!((stats.dropped, stats.failures, stats.queries), (7, 0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_spoofed_answers_are_as_good_as_none() {
    let server = ScriptedUpstream::start(|query, _| {
        let mut lie = address_reply(query, 60, 66);
        lie[1] ^= 1;
        vec![lie]
    })
    .await;
    assert_eq!(ask(&upstreams(&[&server]), "www.example.test").await, Err(UpstreamError::Timeout));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_answer_is_asked_for_over_tcp() {
    let server = ScriptedUpstream::start(|query, is_tcp| {
        let mut reply = address_reply(query, 60, if is_tcp { 2 } else { 1 });
        if !is_tcp {
            reply[2] |= 2;
        }
        vec![reply]
    })
    .await;
    let upstreams = upstreams(&[&server]);
    assert_eq!(ask(&upstreams, "www.example.test").await, Ok(2));
    assert_eq!(ask(&upstreams, "two.example.test").await, Ok(2));
    let ways: Vec<bool> = server.seen().iter().map(|query| query.is_tcp).collect();
    assert_eq!(ways, [false, true, false, true]);
    assert_eq!(server.connections.load(Ordering::SeqCst), 1, "the connection is used again");
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_over_tcp_too_is_a_failure() {
    let server = ScriptedUpstream::start(|query, _| {
        let mut reply = address_reply(query, 60, 1);
        reply[2] |= 2;
        vec![reply]
    })
    .await;
    assert_eq!(ask(&upstreams(&[&server]), "www.example.test").await, Err(UpstreamError::Unusable));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_closed_while_it_rested_is_replaced() {
    let server = ScriptedUpstream::start(|query, _| vec![address_reply(query, 60, 1)]).await;
    let address = server.address().to_string().replace("udp://", "tcp://");
    let upstreams = Upstreams::new(UpstreamOptions {
        servers: vec![address.parse::<UpstreamAddress>().unwrap()],
        ..UpstreamOptions::default()
    });
    for expected in 1..=3 {
        assert_eq!(ask(&upstreams, "www.example.test").await, Ok(1));
        assert_eq!(server.connections.load(Ordering::SeqCst), expected);
        server.close_connections().await;
    }
    assert_eq!(upstreams.stats()[0].failures, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_changes_the_case_is_checked_over_tcp_and_remembered() {
    let server = ScriptedUpstream::start(|query, _| {
        let lower = query.to_ascii_lowercase();
        let mut reply = address_reply(&lower, 60, 1);
        reply[..2].copy_from_slice(&query[..2]);
        vec![reply]
    })
    .await;
    let upstreams = upstreams(&[&server]);
    for name in ["one.long.example.test", "two.long.example.test"] {
        assert_eq!(ask(&upstreams, name).await, Ok(1));
    }
    let ways: Vec<bool> = server.seen().iter().map(|query| query.is_tcp).collect();
    assert_eq!(ways, [false, true, false], "the second query is in lower case at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_edns_is_asked_without() {
    let server = ScriptedUpstream::start(|query, _| {
        if query[11] == 0 {
            return vec![address_reply(query, 60, 1)];
        }
        let mut refusal = query[..12].to_vec();
        (refusal[2], refusal[3]) = (0x80, 1);
        refusal[4..12].fill(0);
        vec![refusal]
    })
    .await;
    let upstreams = upstreams(&[&server]);
    assert_eq!(ask(&upstreams, "a.test").await, Ok(1));
    assert_eq!(ask(&upstreams, "b.test").await, Ok(1));
    assert_eq!(server.seen().len(), 3, "remembered");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_server_answers_when_one_fails_or_is_slow() {
    let silent = ScriptedUpstream::start(|_, _| vec![]).await;
    let failing = ScriptedUpstream::start(|query, _| {
        let mut reply = address_reply(query, 60, 1);
        reply[3] = 0x82;
        vec![reply]
    })
    .await;
    let good = ScriptedUpstream::start(|query, _| vec![address_reply(query, 60, 3)]).await;
    let upstreams = upstreams(&[&failing, &silent, &good]);
    assert_eq!(ask(&upstreams, "a.test").await, Ok(3));
    assert_eq!(silent.seen().len(), 1);
    let alone = self::upstreams(&[&failing]);
    assert_eq!(ask(&alone, "a.test").await, Err(UpstreamError::Rcode(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_in_backoff_are_asked_all_the_same() {
    // The original answers SERVFAIL for 30 s after one timeout of its only server.
    let server = ScriptedUpstream::start(|_, _| vec![]).await;
    let upstreams = upstreams(&[&server]);
    assert_eq!(ask(&upstreams, "a.test").await, Err(UpstreamError::Timeout));
    assert!(upstreams.stats()[0].is_in_backoff);
    server.behave(|query, _| vec![address_reply(query, 60, 1)]);
    assert_eq!(ask(&upstreams, "a.test").await, Ok(1));
    assert!(!upstreams.stats()[0].is_in_backoff);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_finds_a_server_that_is_back() {
    let first = ScriptedUpstream::start(|_, _| vec![]).await;
    let second = ScriptedUpstream::start(|query, _| vec![address_reply(query, 60, 2)]).await;
    let upstreams = upstreams(&[&first, &second]);
    assert_eq!(ask(&upstreams, "a.test").await, Ok(2));
    testkit::until("the first attempt has timed out", async || {
        ask(&upstreams, "b.test").await.unwrap();
        upstreams.stats()[0].is_in_backoff.then_some(())
    })
    .await;
    let asked = first.seen().len();
    assert_eq!(ask(&upstreams, "c.test").await, Ok(2));
    assert_eq!(first.seen().len(), asked, "asked last");
    first.behave(|query, _| vec![address_reply(query, 60, 1)]);
    upstreams.probe().await;
    assert_eq!(ask(&upstreams, "d.test").await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hedged_query_hides_one_slow_answer() {
    let slow = ScriptedUpstream::start(|query, _| vec![address_reply(query, 60, 1)]).await;
    let other = ScriptedUpstream::start(|query, _| vec![address_reply(query, 60, 2)]).await;
    let upstreams = Upstreams::new(UpstreamOptions {
        servers: vec![slow.address(), other.address()],
        strategy: UpstreamStrategy::Fastest,
        timeout: Duration::from_secs(20),
        next_after: Duration::from_secs(10),
        ..UpstreamOptions::default()
    });
    for _ in 0..40 {
        ask(&upstreams, "a.test").await.unwrap();
    }
    // Both are fast now; whichever is first goes silent.
    let started = std::time::Instant::now();
    slow.behave(|_, _| vec![]);
    for _ in 0..3 {
        assert_eq!(ask(&upstreams, "b.test").await, Ok(2));
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}
