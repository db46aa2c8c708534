//! Loops over damaged things from outside that the other tests do not reach: entries another writer
//! left in the store, and time that moves as it likes.

use std::time::Duration;

use dns::{
    L1, L1Options, Policy, QueryClient, QueryProtocol, RefreshPreset, Resolver, ResolverOptions,
    UpstreamOptions,
};
use store::{Store, redis};
use testkit::{dns_message::DnsMessage, each_store};

use crate::support::{ScriptedUpstream, address_message, address_reply, packet, question};

/// Puts damaged entries into a store and reads each: never an error, never a fresh answer that outlives
/// what the numbers say.
async fn read_damaged_entries(store: &Store, rounds: u32) {
    let l1 = L1::new(store, L1Options::default());
    let mut random = fastrand::Rng::with_seed(0xdead);
    let asked = question("www.example.com");
    let now = store.now();
    let numbers = [
        "",
        "0",
        "-1",
        "x",
        "1e9",
        "9223372036854775807",
        "-9223372036854775808",
        "99999999999999999999",
        "4294967296",
        " 5",
        "\u{0}",
    ];
    let mut answers = 0;
    for round in 0..rounds {
        let mut message = address_message(&asked, 300, 1);
        for _ in 0..random.usize(..4) {
            let at = random.usize(..message.len());
            message[at] = random.u8(..);
        }
        if random.u8(..4) == 0 {
            message.truncate(random.usize(..message.len()));
        }
        let mut number = |base: i64| match random.u8(..8) {
            0 => random.choice(numbers).unwrap().to_owned(),
            _ => (base + random.i64(-200..400)).to_string(),
        };
        let mut set = redis::cmd("HSET");
        set.arg("dns:www.example.com:1:1").arg("msg").arg(message);
        let at = now.as_secs();
        for (field, base) in [
            ("soft_expiry", at),
            ("stored_ttl", 200),
            ("auth_ttl", 200),
            ("created_at", at),
            ("soft_expiry_do", at),
        ] {
            set.arg(field).arg(number(base));
        }
        set.query_async::<()>(&mut store.clone()).await.unwrap();
        let entry = l1.get(&asked, now).await.unwrap_or_else(|error| panic!("{round}: {error}"));
        if let Some(stored) = entry.plain {
            answers += 1;
            assert!(stored.remaining(now) <= i64::from(i32::MAX), "{round}: {stored:?}");
            assert!(stored.hard_expiry(Duration::from_secs(3_600)) > now.as_secs());
        }
    }
    let some = 10..rounds - rounds / 5;
    assert!(some.contains(&answers), "{answers} got through: the loop tests one side only");
}

/// `DNS_FUZZ_CASES` sets another number of cases.
#[tokio::test]
async fn any_entry_of_another_writer_is_read_or_a_miss() {
    let cases = std::env::var("DNS_FUZZ_CASES").ok().and_then(|text| text.parse().ok());
    let store = Store::open("embedded:").await.unwrap();
    read_damaged_entries(&store, cases.unwrap_or(100_000)).await;
}

each_store! {
    async fn damaged_entries_are_misses(t: TestStore) {
        read_damaged_entries(&t.store, 400).await;
    }

    async fn no_ttl_ever_grows(t: TestStore) {
        let upstream =
            ScriptedUpstream::start(|query, _| vec![address_reply(query, 300, 1)]).await;
        let options = ResolverOptions {
            upstream: UpstreamOptions {
                servers: vec![upstream.address()],
                ..UpstreamOptions::default()
            },
            default_policy: Policy::default(),
            refresh: RefreshPreset::Off,
            ..ResolverOptions::default()
        };
        let resolver = Resolver::open(t.store.clone(), options.clone()).await.unwrap();
        let second = Resolver::open(t.another().await, options).await.unwrap();
        let mut random = fastrand::Rng::with_seed(0x77);
        let mut expires: Option<i64> = None;
        let mut asked = 0;
        for _ in 0..300 {
            t.clock.advance(Duration::from_secs(random.u64(..25)));
            let who = if random.bool() { &resolver } else { &second };
            let reply = who.answer(&packet("grow.test"), QueryClient::local(QueryProtocol::Udp)).await;
            let reply = DnsMessage::read(&reply.unwrap()).unwrap();
            let ttl = i64::from(reply.answers()[0].ttl);
            let end = t.store.now().as_secs() + ttl;
            let seen = upstream.seen().len();
            match expires {
                // The same answer ends when it always would; a second less by rounding.
                Some(known) if seen == asked => assert!(end <= known + 1, "{end} > {known}"),
                _ => expires = Some(end),
            }
            (asked, expires) = (seen, expires.map(|known| known.max(end)));
            assert!((1..=300).contains(&ttl));
        }
        assert!(asked >= 5, "asked {asked} times");
    }
}
