//! The way of a query: memory, store, upstreams; stale answers, failures, refresh, clear.

use std::time::Duration;

use dns::{
    FrontTable, HitResult, L1Options, QueryClient, QueryProtocol, RefreshPreset, Resolver,
    ResolverOptions, StaleOptions, UpstreamOptions,
};
use store::Store;
use testkit::{each_store, until};

use crate::support::{ScriptedUpstream, address_reply, packet, packet_with_opt, question};

fn options(upstream: &ScriptedUpstream) -> ResolverOptions {
    ResolverOptions {
        upstream: UpstreamOptions {
            servers: vec![upstream.address()],
            timeout: Duration::from_millis(150),
            ..UpstreamOptions::default()
        },
        refresh: RefreshPreset::Off,
        ..ResolverOptions::default()
    }
}

async fn open(store: &Store, upstream: &ScriptedUpstream) -> Resolver {
    Resolver::open(store.clone(), options(upstream)).await.unwrap()
}

/// Response code, TTL and last byte of the only address, if there is one.
type Told = (u8, Option<(u32, u8)>);

fn told(reply: &[u8]) -> Told {
    let question_end = crate::support::question_end(reply);
    let record = &reply[question_end..];
    let has_record = reply[7] == 1;
    let ttl = || u32::from_be_bytes(record[6..10].try_into().unwrap());
    (reply[3] & 0xf, has_record.then(|| (ttl(), record[15])))
}

async fn ask(resolver: &Resolver, name: &str) -> Told {
    let reply =
        resolver.answer(&packet(name), QueryClient::local(QueryProtocol::Udp)).await.unwrap();
    assert_eq!(reply[..2], packet(name)[..2]);
    told(&reply)
}

async fn answering(ttl: u32) -> ScriptedUpstream {
    ScriptedUpstream::start(move |query, _| vec![address_reply(query, ttl, 1)]).await
}

async fn is_stored(resolver: &Resolver, name: &str) {
    until("the answer is in the store", async || {
        let entry = resolver.l1().get(&question(name), resolver.now()).await.unwrap();
        entry.plain.is_some().then_some(())
    })
    .await;
}

each_store! {
    async fn a_name_that_any_instance_knows_is_not_asked_for_again(t: TestStore) {
        let upstream = answering(300).await;
        let first = open(&t.store, &upstream).await;
        assert_eq!(ask(&first, "www.example.com").await, (0, Some((300, 1))));
        t.clock.advance(Duration::from_secs(100));
        assert_eq!(ask(&first, "WWW.Example.com").await, (0, Some((200, 1))), "from memory");
        is_stored(&first, "www.example.com").await;

        // A second instance, and the same one after a restart.
        let second = open(&t.another().await, &upstream).await;
        assert_eq!(ask(&second, "www.example.com").await, (0, Some((200, 1))), "from the store");
        assert_eq!(upstream.seen().len(), 1);
        t.clock.advance(Duration::from_secs(200));
        assert_eq!(ask(&second, "www.example.com").await, (0, Some((300, 1))), "expired");
        assert_eq!(upstream.seen().len(), 2);
    }

    async fn concurrent_misses_share_one_upstream_query(t: TestStore) {
        let upstream = answering(300).await;
        let resolver = open(&t.store, &upstream).await;
        let asked = (0..50).map(|_| ask(&resolver, "www.example.com"));
        for told in futures_util::future::join_all(asked).await {
            assert_eq!(told, (0, Some((300, 1))));
        }
        assert_eq!(upstream.seen().len(), 1);
    }

    async fn an_answer_with_ttl_0_is_passed_on_and_not_kept(t: TestStore) {
        let upstream = answering(0).await;
        let resolver = open(&t.store, &upstream).await;
        for _ in 0..2 {
            assert_eq!(ask(&resolver, "www.example.com").await, (0, Some((0, 1))));
        }
        assert_eq!(upstream.seen().len(), 2);
        assert_eq!(resolver.l0().stats().entries, 0);
    }

    async fn a_stale_answer_is_given_when_the_upstream_is_down(t: TestStore) {
        let upstream = answering(7_200).await;
        let mut options = options(&upstream);
        options.stale = StaleOptions {
            excluded: vec!["fresh.test".parse().unwrap()],
            ..StaleOptions::default()
        };
        let resolver = Resolver::open(t.store.clone(), options.clone()).await.unwrap();
        for name in ["www.example.com", "a.fresh.test"] {
            ask(&resolver, name).await;
            is_stored(&resolver, name).await;
        }
        upstream.behave(|_, _| vec![]);
        t.clock.advance(Duration::from_secs(7_300));
        let packet = packet_with_opt("www.example.com", 1_232, false);
        let reply = resolver.answer(&packet, QueryClient::local(QueryProtocol::Udp)).await.unwrap();
        assert_eq!(told(&reply), (0, Some((30, 1))));
        assert_eq!(reply[reply.len() - 6..], [0, 15, 0, 2, 0, 3], "Extended DNS Error 3: stale");
        assert_eq!(ask(&resolver, "a.fresh.test").await, (2, None), "excluded");
        // While there is a stale answer to give, the upstream is tried every 30 s.
        let tried = upstream.seen().len();
        t.clock.advance(Duration::from_secs(29));
        assert_eq!(ask(&resolver, "www.example.com").await, (0, Some((30, 1))));
        assert_eq!(upstream.seen().len(), tried);
        t.clock.advance(Duration::from_secs(1));
        assert_eq!(ask(&resolver, "www.example.com").await, (0, Some((30, 1))));
        assert_eq!(upstream.seen().len(), tried + 1);

        // From the store too, on an instance that has nothing in memory.
        let second = Resolver::open(t.another().await, options).await.unwrap();
        assert_eq!(ask(&second, "www.example.com").await, (0, Some((30, 1))));

        // An hour after its end of freshness it is too old.
        t.clock.advance(Duration::from_secs(3_500));
        assert_eq!(ask(&resolver, "www.example.com").await, (2, None));
    }

    async fn a_slow_upstream_does_not_keep_clients_waiting(t: TestStore) {
        let upstream = answering(300).await;
        let mut options = options(&upstream);
        options.upstream.timeout = Duration::from_secs(30);
        options.client_timeout = Duration::from_millis(100);
        let resolver = Resolver::open(t.store.clone(), options).await.unwrap();
        ask(&resolver, "www.example.com").await;
        upstream.behave(|_, _| vec![]);
        t.clock.advance(Duration::from_secs(400));
        assert_eq!(ask(&resolver, "www.example.com").await, (0, Some((30, 1))), "stale");
        assert_eq!(ask(&resolver, "other.example.com").await, (2, None));
    }

    async fn failures_are_remembered_for_a_second_and_then_longer(t: TestStore) {
        let upstream = ScriptedUpstream::start(|_, _| vec![]).await;
        let resolver = open(&t.store, &upstream).await;
        let asked_after = async |seconds| {
            t.clock.advance(Duration::from_secs(seconds));
            let before = upstream.seen().len();
            assert_eq!(ask(&resolver, "www.example.com").await, (2, None));
            upstream.seen().len() - before
        };
        assert_eq!(asked_after(0).await, 1);
        assert_eq!(asked_after(0).await, 0, "within a second");
        assert_eq!(asked_after(1).await, 1);
        assert_eq!(asked_after(1).await, 0, "twice as long");
        assert_eq!(asked_after(1).await, 1);
        upstream.behave(|query, _| vec![address_reply(query, 60, 1)]);
        t.clock.advance(Duration::from_secs(4));
        assert_eq!(ask(&resolver, "www.example.com").await, (0, Some((60, 1))));
    }

    async fn without_the_store_names_are_resolved_all_the_same(t: TestStore) {
        let upstream = answering(300).await;
        let resolver = open(&t.store, &upstream).await;
        t.faults.go_away();
        assert_eq!(ask(&resolver, "www.example.com").await, (0, Some((300, 1))));
        t.clock.advance(Duration::from_secs(10));
        assert_eq!(ask(&resolver, "www.example.com").await, (0, Some((290, 1))), "from memory");
        assert_eq!(upstream.seen().len(), 1);
        t.faults.come_back();
        assert_eq!(ask(&resolver, "two.example.com").await, (0, Some((300, 1))));
        is_stored(&resolver, "two.example.com").await;
    }

    async fn no_kind_of_answer_is_given_to_another_kind_of_query(t: TestStore) {
        let upstream = answering(300).await;
        let resolver = open(&t.store, &upstream).await;
        let mut unchecked = packet("www.example.com");
        unchecked[3] |= 0x10;
        let mut signed_unchecked = packet_with_opt("www.example.com", 1_232, true);
        signed_unchecked[3] |= 0x10;
        let kinds = [
            packet("www.example.com"),
            packet_with_opt("www.example.com", 1_232, true),
            unchecked,
            signed_unchecked,
        ];
        for (asked, packet) in kinds.iter().enumerate() {
            for _ in 0..2 {
                let reply = resolver.answer(packet, QueryClient::local(QueryProtocol::Udp)).await.unwrap();
                assert_eq!(told(&reply).1, Some((300, 1)));
                assert_eq!(upstream.seen().len(), asked + 1);
            }
            let sent = upstream.seen().pop().unwrap().wire;
            let dnssec_ok = sent[sent.len() - 4] & 0x80 != 0;
            assert_eq!((dnssec_ok, sent[3] & 0x10 != 0), (asked % 2 == 1, asked > 1));
        }
    }

    async fn a_query_with_edns_version_1_leaves_nothing_behind(t: TestStore) {
        // One such packet makes the original answer every client with an empty reply for 5 min.
        let upstream = answering(300).await;
        let resolver = open(&t.store, &upstream).await;
        let mut version = packet_with_opt("www.example.com", 1_232, false);
        let at = version.len() - 5;
        version[at] = 1;
        let reply = resolver.answer(&version, QueryClient::local(QueryProtocol::Udp)).await.unwrap();
        assert_eq!((reply[3] & 0xf, reply[reply.len() - 6]), (0, 1), "BADVERS");
        assert_eq!(upstream.seen().len(), 0);
        assert_eq!(ask(&resolver, "www.example.com").await, (0, Some((300, 1))));

        let mut no_recursion = packet("www.example.com");
        no_recursion[2] = 0;
        let reply = resolver.answer(&no_recursion, QueryClient::local(QueryProtocol::Udp)).await.unwrap();
        assert_eq!(told(&reply), (5, None), "no cache snooping");
        assert_eq!(resolver.answer(&reply, QueryClient::local(QueryProtocol::Udp)).await, None, "a response");
    }

    async fn hits_are_answered_without_waiting(t: TestStore) {
        let upstream = answering(300).await;
        let resolver = open(&t.store, &upstream).await;
        let mut front = FrontTable::new(64);
        let mut out = [0; 1_232];
        let packet = packet("www.example.com");
        let mut hit = || {
            let now = resolver.now();
            resolver.answer_hit(&mut front, &packet, QueryClient::local(QueryProtocol::Udp), now, &mut out)
        };
        assert_eq!(hit(), HitResult::Miss);
        let reply = resolver.answer(&packet, QueryClient::local(QueryProtocol::Udp)).await.unwrap();
        assert_eq!(hit(), HitResult::Reply(reply.len()));
        t.clock.advance(Duration::from_secs(300));
        assert_eq!(hit(), HitResult::Miss, "expired");
        assert_eq!(out[..reply.len()], reply);
    }

    async fn a_name_in_use_is_refreshed_once_before_it_expires(t: TestStore) {
        let upstream = answering(100).await;
        let mut options = options(&upstream);
        options.refresh = RefreshPreset::Balanced;
        let first = Resolver::open(t.store.clone(), options.clone()).await.unwrap();
        let second = Resolver::open(t.another().await, options).await.unwrap();
        ask(&first, "www.example.com").await;
        is_stored(&first, "www.example.com").await;
        for resolver in [&first, &second] {
            ask(resolver, "www.example.com").await;
        }
        t.clock.advance(Duration::from_secs(69));
        ask(&first, "www.example.com").await;
        assert_eq!(upstream.seen().len(), 1, "31 % are left");
        t.clock.advance(Duration::from_secs(1));
        upstream.behave(|query, _| vec![address_reply(query, 100, 2)]);
        assert_eq!(ask(&first, "www.example.com").await, (0, Some((30, 1))), "at once");
        until("the refreshed answer is in memory", async || {
            (ask(&first, "www.example.com").await.1 == Some((100, 2))).then_some(())
        })
        .await;
        until("the refreshed answer is in the store", async || {
            let entry = first.l1().get(&question("www.example.com"), first.now()).await.unwrap();
            (entry.plain.unwrap().remaining(first.now()) == 100).then_some(())
        })
        .await;
        // The second instance takes over what the first one stored.
        until("the second instance has it too", async || {
            (ask(&second, "www.example.com").await.1 == Some((100, 2))).then_some(())
        })
        .await;
        assert_eq!(upstream.seen().len(), 2, "one refresh for both");
    }

    async fn an_answer_that_another_instance_was_refreshing_is_looked_at_again(t: TestStore) {
        let upstream = answering(100).await;
        let mut options = options(&upstream);
        options.refresh = RefreshPreset::Balanced;
        let resolver = Resolver::open(t.store.clone(), options).await.unwrap();
        ask(&resolver, "www.example.com").await;
        is_stored(&resolver, "www.example.com").await;
        t.clock.advance(Duration::from_secs(75));
        let asked = question("www.example.com");
        let lock = resolver.l1().lock_refresh(&asked).await.unwrap().unwrap();
        assert_eq!(ask(&resolver, "www.example.com").await, (0, Some((25, 1))));
        // These calls wait behind that of the refresh, which finds the lock taken.
        for _ in 0..5 {
            resolver.l1().get(&asked, resolver.now()).await.unwrap();
        }
        assert_eq!(upstream.seen().len(), 1, "another instance refreshes it");
        upstream.behave(|query, _| vec![address_reply(query, 100, 2)]);
        resolver.l1().unlock_refresh(lock).await.unwrap();
        until("it is refreshed here, since nobody else did", async || {
            (ask(&resolver, "www.example.com").await.1 == Some((100, 2))).then_some(())
        })
        .await;
    }

    async fn the_sweep_refreshes_what_is_due_and_drops_what_is_cold(t: TestStore) {
        let upstream = answering(1_000).await;
        let mut options = options(&upstream);
        options.refresh = RefreshPreset::Balanced;
        options.l1 = L1Options {
            sweep_hit_window: Some(Duration::from_secs(2_000)),
            ..L1Options::default()
        };
        let resolver = Resolver::open(t.store.clone(), options).await.unwrap();
        for name in ["hot.test", "cold.test"] {
            ask(&resolver, name).await;
            is_stored(&resolver, name).await;
        }
        for _ in 0..3 {
            ask(&resolver, "hot.test").await;
        }
        t.clock.advance(Duration::from_secs(930));
        let report = resolver.sweep().await.unwrap();
        assert_eq!((report.refreshed, report.cold), (0, 0), "nothing is due");
        t.clock.advance(Duration::from_secs(20));
        let report = resolver.sweep().await.unwrap();
        assert_eq!((report.refreshed, report.cold), (2, 0), "both are younger than the window");
        t.clock.advance(Duration::from_secs(500));
        for _ in 0..3 {
            ask(&resolver, "hot.test").await;
        }
        t.clock.advance(Duration::from_secs(460));
        resolver.sweep().await.unwrap();
        t.clock.advance(Duration::from_secs(950));
        let before = upstream.seen().len();
        let report = resolver.sweep().await.unwrap();
        let left = resolver.l1().get(&question("hot.test"), resolver.now()).await.unwrap();
        assert_eq!(report.cold, 1, "{report:?}");
        assert!(left.plain.is_some());
        assert_eq!(upstream.seen().len() - before, 1);
    }

    async fn a_clear_empties_the_memory_of_every_instance(t: TestStore) {
        let upstream = answering(300).await;
        let first = open(&t.store, &upstream).await;
        let second = open(&t.another().await, &upstream).await;
        for resolver in [&first, &second] {
            ask(resolver, "www.example.com").await;
            is_stored(resolver, "www.example.com").await;
        }
        assert_eq!(upstream.seen().len(), 1);
        first.clear().await.unwrap();
        until("the other instance has cleared its memory", async || {
            (second.l0().stats().entries == 0).then_some(())
        })
        .await;
        ask(&second, "www.example.com").await;
        assert_eq!(upstream.seen().len(), 2);
        first.close().await;
        second.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_cut_for_udp_and_whole_for_tcp() {
    let upstream = ScriptedUpstream::start(|query, is_tcp| {
        let mut reply = address_reply(query, 60, 0);
        if !is_tcp {
            reply[2] |= 2;
            return vec![reply];
        }
        let record = reply[reply.len() - 16..].to_vec();
        for last in 1..100 {
            reply.extend_from_slice(&record[..15]);
            reply.push(last);
        }
        reply[7] = 100;
        vec![reply]
    })
    .await;
    let store = Store::open("embedded:").await.unwrap();
    let resolver = open(&store, &upstream).await;
    // Missed, then hit.
    for _ in 0..2 {
        let plain = resolver
            .answer(&packet("a.test"), QueryClient::local(QueryProtocol::Udp))
            .await
            .unwrap();
        assert!(plain.len() <= 512 && plain[2] & 2 != 0);
        let query = packet_with_opt("a.test", 4_096, false);
        let edns = resolver.answer(&query, QueryClient::local(QueryProtocol::Udp)).await.unwrap();
        assert!(edns.len() <= 1_232 && edns[2] & 2 != 0);
        let whole = resolver.answer(&query, QueryClient::local(QueryProtocol::Tcp)).await.unwrap();
        assert_eq!((whole[2] & 2, whole[7]), (0, 100));
    }
    assert_eq!(upstream.seen().len(), 2, "over UDP, then TCP");
}
