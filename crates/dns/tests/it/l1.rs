//! The cache in the store: what it writes, what it reads of others, the cap and the clear.

use std::{collections::HashMap, time::Duration};

use dns::{L1, L1Options, StoredEntry, wire::AnswerKind};
use store::PubsubMessage;
use testkit::{each_store, standalone_keys};

use crate::support::{address_message, metadata, question, run, stored, write_bytes};

const KEY: &str = "dns:www.example.com:1:1";

fn open(t: &testkit::TestStore) -> L1 {
    L1::new(&t.store, L1Options::default())
}

each_store! {
    async fn an_answer_has_the_fields_types_and_ttl_of_the_seed(t: TestStore) {
        let (l1, asked) = (open(&t), question("WWW.example.com."));
        let now = t.store.now();
        let answer = stored(&asked, 300, 7, now);
        l1.put(&asked, AnswerKind::Plain, &answer, &StoredEntry::default(), now).await.unwrap();

        assert_eq!(run::<String>(&t.store, &["TYPE", KEY]).await, "hash");
        let fields: HashMap<String, Vec<u8>> = run(&t.store, &["HGETALL", KEY]).await;
        let text = |name: &str| String::from_utf8(fields[name].clone()).unwrap();
        assert_eq!(fields["msg"], answer.answer.as_wire());
        assert_eq!(text("soft_expiry"), (now.as_secs() + 300).to_string());
        assert_eq!(text("created_at"), now.as_secs().to_string());
        assert_eq!((text("stored_ttl"), text("auth_ttl")), ("300".into(), "300".into()));
        assert_eq!(fields.len(), 5);
        let ttl: i64 = run(&t.store, &["TTL", KEY]).await;
        assert!((598..=600).contains(&ttl), "ttl + min(ttl, grace), not {ttl}");
        let index = metadata(&t.store, "expiry:index");
        let score: f64 = run(&t.store, &["ZSCORE", &index, KEY]).await;
        assert_eq!(score as i64, now.as_secs() + 300);

        // A refresh keeps the time of the first store; the grace period has an upper limit.
        t.clock.advance(Duration::from_secs(200));
        let now = t.store.now();
        let answer = stored(&asked, 7_200, 8, now);
        let known = l1.get(&asked, now).await.unwrap();
        l1.put(&asked, AnswerKind::Plain, &answer, &known, now).await.unwrap();
        let created: i64 = run(&t.store, &["HGET", KEY, "created_at"]).await;
        assert_eq!(created, now.as_secs() - 200);
        let ttl: i64 = run(&t.store, &["TTL", KEY]).await;
        assert!((10_798..=10_800).contains(&ttl), "{ttl}");
    }

    async fn a_second_instance_reads_what_the_first_stored(t: TestStore) {
        let asked = question("www.example.com");
        let now = t.store.now();
        let answer = stored(&asked, 300, 7, now);
        open(&t).put(&asked, AnswerKind::Plain, &answer, &StoredEntry::default(), now).await.unwrap();

        let other = L1::new(&t.another().await, L1Options::default());
        t.clock.advance(Duration::from_secs(100));
        let now = t.store.now();
        let entry = other.get(&asked, now).await.unwrap();
        let found = entry.of_kind(AnswerKind::Plain).unwrap();
        assert_eq!(found.answer.as_wire(), answer.answer.as_wire());
        assert_eq!((found.remaining(now), found.age(now)), (200, 100));
        assert_eq!(entry.created_at, Some(now.as_secs() - 100));
        assert!(entry.of_kind(AnswerKind::Signed).is_none());
        assert!(entry.of_kind(AnswerKind::Unchecked).is_none());

        // Stale until the end of the grace period, then gone, whatever the server's clock says.
        t.clock.advance(Duration::from_secs(499));
        let entry = other.get(&asked, t.store.now()).await.unwrap();
        assert_eq!(entry.plain.unwrap().remaining(t.store.now()), -299);
        t.clock.advance(Duration::from_secs(1));
        assert!(other.get(&asked, t.store.now()).await.unwrap().plain.is_none());
    }

    async fn kinds_of_answers_share_a_key_and_nothing_else(t: TestStore) {
        let (l1, asked) = (open(&t), question("www.example.com"));
        let now = t.store.now();
        let (plain, signed) = (stored(&asked, 60, 1, now), stored(&asked, 600, 2, now));
        l1.put(&asked, AnswerKind::Signed, &signed, &StoredEntry::default(), now).await.unwrap();
        let entry = l1.get(&asked, now).await.unwrap();
        assert!(entry.plain.is_none() && entry.signed.is_some());
        l1.put(&asked, AnswerKind::Plain, &plain, &entry, now).await.unwrap();
        let entry = l1.get(&asked, now).await.unwrap();
        assert_eq!(entry.plain.unwrap().answer.as_wire(), plain.answer.as_wire());
        assert_eq!(entry.signed.unwrap().answer.as_wire(), signed.answer.as_wire());
        let ttl: i64 = run(&t.store, &["TTL", KEY]).await;
        assert!((1_198..=1_200).contains(&ttl), "as long as the longer lived: {ttl}");
        let index = metadata(&t.store, "expiry:index");
        let score: f64 = run(&t.store, &["ZSCORE", &index, KEY]).await;
        assert_eq!(score as i64, now.as_secs() + 60, "due with the shorter lived");

        let other = question("cd.example.com");
        let answer = stored(&other, 60, 1, now);
        for kind in [AnswerKind::Unchecked, AnswerKind::SignedUnchecked] {
            l1.put(&other, kind, &answer, &StoredEntry::default(), now).await.unwrap();
        }
        let exists: u64 = run(&t.store, &["EXISTS", "dns:cd.example.com:1:1"]).await;
        assert_eq!(exists, 0, "answers to CD queries are not stored");
    }

    async fn an_answer_with_ttl_0_is_not_stored(t: TestStore) {
        let (l1, asked) = (open(&t), question("www.example.com"));
        let now = t.store.now();
        let answer = stored(&asked, 0, 1, now);
        l1.put(&asked, AnswerKind::Plain, &answer, &StoredEntry::default(), now).await.unwrap();
        assert_eq!(run::<u64>(&t.store, &["EXISTS", KEY]).await, 0);
    }

    async fn an_answer_of_the_original_is_read(t: TestStore) {
        // As it writes them: names not compressed, with the OPT record of the upstream, a floor of
        // 300 s above the source's TTL.
        let (l1, asked) = (open(&t), question("www.example.com"));
        let now = t.store.now();
        write_bytes(&t.store, &["HSET", KEY, "msg"], &address_message(&asked, 60, 9)).await;
        let soft_expiry = (now.as_secs() + 250).to_string();
        let created_at = (now.as_secs() - 50).to_string();
        run::<()>(&t.store, &[
            "HSET", KEY, "soft_expiry", &soft_expiry, "created_at", &created_at,
            "stored_ttl", "300", "auth_ttl", "60",
        ]).await;
        let found = l1.get(&asked, now).await.unwrap().plain.unwrap();
        assert_eq!((found.remaining(now), found.age(now)), (250, 50));
        assert_eq!((found.stored_ttl, found.auth_ttl), (300, 60));
        assert!(found.answer.as_wire().len() < address_message(&asked, 60, 9).len());

        // The three fields of the seed are enough.
        run::<()>(&t.store, &["HDEL", KEY, "stored_ttl", "auth_ttl", "created_at"]).await;
        let found = l1.get(&asked, now).await.unwrap().plain.unwrap();
        assert_eq!((found.remaining(now), found.stored_ttl), (250, 250));
    }

    async fn a_name_stored_with_its_last_dot_is_found(t: TestStore) {
        let (l1, asked) = (open(&t), question("www.example.com"));
        let dotted = "dns:www.example.com.:1:1";
        let now = t.store.now();
        write_bytes(&t.store, &["HSET", dotted, "msg"], &address_message(&asked, 60, 9)).await;
        let soft_expiry = (now.as_secs() + 60).to_string();
        run::<()>(&t.store, &["HSET", dotted, "soft_expiry", &soft_expiry]).await;
        let index = metadata(&t.store, "expiry:index");
        run::<()>(&t.store, &["ZADD", &index, &soft_expiry, dotted]).await;

        assert!(l1.get(&asked, now).await.unwrap().plain.is_none(), "not looked for by default");
        assert!(l1.detect_dotted_names().await.unwrap());
        assert!(l1.get(&asked, now).await.unwrap().plain.is_some());
        let due = l1.due(None, now + Duration::from_secs(60), 10).await.unwrap();
        assert_eq!(due[0].question, asked);
    }

    async fn a_legacy_string_is_read_and_rewritten(t: TestStore) {
        let (l1, asked) = (open(&t), question("www.example.com"));
        let message = address_message(&asked, 60, 9);
        let now = t.store.now();
        write_bytes(&t.store, &["SETEX", KEY, "40"], &message).await;
        let found = l1.get(&asked, now).await.unwrap().plain.unwrap();
        assert!((39..=40).contains(&found.remaining(now)), "{}", found.remaining(now));
        assert_eq!(run::<String>(&t.store, &["TYPE", KEY]).await, "hash");
        assert!(l1.get(&asked, now).await.unwrap().plain.is_some());

        // Without a TTL nothing is known of its age: it is stale.
        run::<()>(&t.store, &["DEL", KEY]).await;
        write_bytes(&t.store, &["SET", KEY], &message).await;
        assert_eq!(l1.get(&asked, now).await.unwrap().plain.unwrap().remaining(now), 0);

        run::<()>(&t.store, &["DEL", KEY]).await;
        write_bytes(&t.store, &["SET", KEY], b"garbage").await;
        assert!(l1.get(&asked, now).await.unwrap().plain.is_none());
        assert_eq!(run::<u64>(&t.store, &["EXISTS", KEY]).await, 0);
    }

    async fn what_is_no_answer_is_a_miss_and_removed(t: TestStore) {
        let (l1, asked) = (open(&t), question("www.example.com"));
        let now = t.store.now();
        run::<()>(&t.store, &["RPUSH", KEY, "a", "list"]).await;
        assert!(l1.get(&asked, now).await.unwrap().plain.is_none());
        assert_eq!(run::<u64>(&t.store, &["EXISTS", KEY]).await, 0, "another type");

        run::<()>(&t.store, &["RPUSH", KEY, "a", "list"]).await;
        let answer = stored(&asked, 60, 1, now);
        for exists in [0, 1] {
            let known = StoredEntry::default();
            l1.put(&asked, AnswerKind::Plain, &answer, &known, now).await.unwrap();
            assert_eq!(run::<u64>(&t.store, &["HEXISTS", KEY, "msg"]).await, exists);
        }

        let soft_expiry = (now.as_secs() + 60).to_string();
        let other = address_message(&question("evil.example.com"), 60, 6);
        for damaged in [&b"garbage"[..], b"", &other] {
            write_bytes(&t.store, &["HSET", KEY, "soft_expiry", &soft_expiry, "msg"], damaged).await;
            assert!(l1.get(&asked, now).await.unwrap().plain.is_none());
            assert_eq!(run::<u64>(&t.store, &["EXISTS", KEY]).await, 0, "{damaged:?}");
        }

        // A damaged answer of one kind leaves the other alone.
        let answer = stored(&asked, 60, 1, now);
        l1.put(&asked, AnswerKind::Signed, &answer, &StoredEntry::default(), now).await.unwrap();
        write_bytes(&t.store, &["HSET", KEY, "soft_expiry", &soft_expiry, "msg"], b"garbage").await;
        let entry = l1.get(&asked, now).await.unwrap();
        assert!(entry.plain.is_none() && entry.signed.is_some());
        assert_eq!(run::<u64>(&t.store, &["HEXISTS", KEY, "msg"]).await, 0);
    }

    async fn odd_numbers_of_another_writer_are_a_miss(t: TestStore) {
        let (l1, asked) = (open(&t), question("www.example.com"));
        let now = t.store.now();
        let good = (now.as_secs() + 60).to_string();
        let ms = (now.0 + 60_000).to_string();
        write_bytes(&t.store, &["HSET", KEY, "msg"], &address_message(&asked, 60, 1)).await;
        assert!(l1.get(&asked, now).await.unwrap().plain.is_none(), "no soft expiry");
        for (field, value, usable) in [
            ("soft_expiry", "-5", false),
            ("soft_expiry", "0", false),
            ("soft_expiry", "99999999999999999999999", false),
            ("soft_expiry", "9223372036854775807", false),
            ("soft_expiry", &ms, false),
            ("soft_expiry", "soon", false),
            ("soft_expiry", &good, true),
            ("stored_ttl", "-1", false),
            ("stored_ttl", "4294967296", false),
            ("stored_ttl", "60", true),
            ("auth_ttl", "x", false),
            ("auth_ttl", "60", true),
            ("created_at", "x", true),
        ] {
            run::<()>(&t.store, &["HSET", KEY, field, value]).await;
            let found = l1.get(&asked, now).await.unwrap().plain;
            assert_eq!(found.is_some(), usable, "{field} {value}");
        }
    }

    async fn one_instance_refreshes_an_answer(t: TestStore) {
        let (l1, asked) = (open(&t), question("www.example.com"));
        let other = L1::new(&t.another().await, L1Options::default());
        let lock = l1.lock_refresh(&asked).await.unwrap().unwrap();
        assert!(other.lock_refresh(&asked).await.unwrap().is_none());
        let key = metadata(&t.store, &format!("refresh:{KEY}"));
        assert_eq!(run::<String>(&t.store, &["GET", &key]).await, "1");
        let ttl: i64 = run(&t.store, &["TTL", &key]).await;
        assert!((9..=10).contains(&ttl), "{ttl}");
        assert!(l1.unlock_refresh(lock).await.unwrap());
        assert!(other.lock_refresh(&asked).await.unwrap().is_some());
    }

    async fn a_lock_that_may_be_anothers_is_left_alone(t: TestStore) {
        let asked = question("www.example.com");
        // Ends at once by the own clock, while the store keeps it for a second.
        let options = L1Options { lock_ttl: Duration::ZERO, ..L1Options::default() };
        let slow = L1::new(&t.store, options);
        let lock = slow.lock_refresh(&asked).await.unwrap().unwrap();
        assert!(!slow.unlock_refresh(lock).await.unwrap());
        let key = metadata(&t.store, &format!("refresh:{KEY}"));
        assert_eq!(run::<u64>(&t.store, &["EXISTS", &key]).await, 1);
    }

    async fn hits_are_written_in_batches(t: TestStore) {
        let options =
            L1Options { sweep_hit_window: Some(Duration::from_secs(900)), ..L1Options::default() };
        let (l1, asked) = (L1::new(&t.store, options), question("www.example.com"));
        assert!(l1.add_hits(&asked, 3) && l1.add_hits(&asked, 4));
        assert_eq!(l1.hits(&asked).await.unwrap(), 0);
        assert_eq!(l1.flush_hits().await.unwrap(), 2);
        assert_eq!(l1.hits(&asked).await.unwrap(), 7);
        for (kind, window) in [("hit", 300), ("hit:sweep", 900)] {
            let key = metadata(&t.store, &format!("{kind}:{KEY}"));
            assert_eq!(run::<u64>(&t.store, &["GET", &key]).await, 7);
            let ttl: i64 = run(&t.store, &["TTL", &key]).await;
            assert!((window - 2..=window).contains(&ttl), "{kind}: {ttl}");
        }
    }

    async fn the_index_tells_what_is_due_and_is_reconciled(t: TestStore) {
        let l1 = open(&t);
        let now = t.store.now();
        for (name, ttl) in [("late.test", 3_000), ("soon.test", 30), ("sooner.test", 10)] {
            let asked = question(name);
            let answer = stored(&asked, ttl, 1, now);
            l1.put(&asked, AnswerKind::Plain, &answer, &StoredEntry::default(), now).await.unwrap();
        }
        l1.add_hits(&question("soon.test"), 5);
        l1.flush_hits().await.unwrap();
        let index = metadata(&t.store, "expiry:index");
        run::<()>(&t.store, &["ZADD", &index, "1", "not a key", "2", "dns:gone.test:1:1"]).await;

        let due = l1.due(None, now + Duration::from_secs(60), 10).await.unwrap();
        let names: Vec<_> = due.iter().map(|due| (due.question.name.to_string(), due.hits)).collect();
        let expected = [("gone.test", 0), ("sooner.test", 0), ("soon.test", 5)];
        assert_eq!(names, expected.map(|(name, hits)| (name.to_owned(), hits)));
        let due = l1.due(Some(now + Duration::from_secs(20)), now + Duration::from_secs(60), 10).await.unwrap();
        assert_eq!(due.len(), 1, "what expired before is left out: {due:?}");
        assert_eq!(l1.reconcile().await.unwrap(), 1, "the one whose answer is gone");
        let left: Vec<String> = run(&t.store, &["ZRANGE", &index, "0", "-1"]).await;
        assert_eq!(left, ["dns:sooner.test:1:1", "dns:soon.test:1:1", "dns:late.test:1:1"]);
    }

    async fn the_cap_evicts_the_fewest_hits_then_the_oldest(t: TestStore) {
        let l1 = L1::new(&t.store, L1Options { max_keys: 3, ..L1Options::default() });
        for name in ["old.test", "hot.test", "young.test", "younger.test", "youngest.test"] {
            let (asked, now) = (question(name), t.store.now());
            let answer = stored(&asked, 3_600, 1, now);
            l1.put(&asked, AnswerKind::Plain, &answer, &StoredEntry::default(), now).await.unwrap();
            t.clock.advance(Duration::from_secs(1));
        }
        l1.add_hits(&question("hot.test"), 2);
        l1.add_hits(&question("old.test"), 1);
        l1.flush_hits().await.unwrap();
        run::<()>(&t.store, &["SET", "unrelated", "1"]).await;

        let evicted = l1.evict(t.store.now()).await.unwrap();
        assert_eq!(evicted, [question("young.test"), question("younger.test")]);
        assert_eq!(l1.count_keys(t.store.now()).await.unwrap(), 3);
        assert!(l1.evict(t.store.now()).await.unwrap().is_empty());
        let index = metadata(&t.store, "expiry:index");
        assert_eq!(run::<u64>(&t.store, &["ZCARD", &index]).await, 3);

        // Answers of a writer that keeps no index count too.
        for name in ["a", "b"] {
            run::<()>(&t.store, &["HSET", &format!("dns:{name}:1:1"), "created_at", "5"]).await;
        }
        run::<()>(&t.store, &["DEL", &index]).await;
        t.clock.advance(Duration::from_secs(31));
        assert_eq!(l1.evict(t.store.now()).await.unwrap(), [question("a"), question("b")]);
    }

    async fn without_a_cap_nothing_is_evicted(t: TestStore) {
        let l1 = L1::new(&t.store, L1Options { max_keys: 0, ..L1Options::default() });
        for name in ["a.test", "b.test"] {
            let (asked, now) = (question(name), t.store.now());
            let answer = stored(&asked, 60, 1, now);
            l1.put(&asked, AnswerKind::Plain, &answer, &StoredEntry::default(), now).await.unwrap();
        }
        assert!(l1.evict(t.store.now()).await.unwrap().is_empty());
    }

    async fn a_clear_deletes_the_cache_and_tells_every_instance(t: TestStore) {
        let l1 = open(&t);
        let other = L1::new(&t.another().await, L1Options::default());
        let mut clears = other.subscribe_clears().await.unwrap();
        let now = t.store.now();
        for number in 0..50 {
            let asked = question(&format!("n{number}.test"));
            let answer = stored(&asked, 60, 1, now);
            l1.put(&asked, AnswerKind::Plain, &answer, &StoredEntry::default(), now).await.unwrap();
            l1.add_hits(&asked, 1);
        }
        l1.flush_hits().await.unwrap();
        run::<()>(&t.store, &["SET", "resolver:policy", "1"]).await;
        run::<()>(&t.store, &["SET", "dnsmasq", "1"]).await;

        assert_eq!(other.generation().await.unwrap(), 0);
        assert_eq!(l1.clear().await.unwrap(), 50, "answers, without counters and index");
        let message = tokio::time::timeout(Duration::from_secs(60), clears.recv()).await.unwrap();
        assert!(matches!(message, Some(PubsubMessage::Published { .. })), "{message:?}");
        assert_eq!(other.generation().await.unwrap(), 1);
        let mut left: Vec<String> = run(&t.store, &["KEYS", "*"]).await;
        left.sort();
        assert_eq!(left, ["dnsmasq", "resolver:cache:generation", "resolver:policy"]);
        assert_eq!(other.count_keys(now).await.unwrap(), 0);
    }

    async fn a_store_that_is_away_is_told_apart_from_a_miss(t: TestStore) {
        let (l1, asked) = (open(&t), question("www.example.com"));
        t.faults.go_away();
        let error = l1.get(&asked, t.store.now()).await.unwrap_err();
        assert!(matches!(error, dns::Error::Store(error) if error.is_unavailable()));
    }
}

standalone_keys! {
    async fn a_write_that_is_lost_halfway_leaves_answer_and_index_alike(t: TestStore) {
        // One transaction where both live on one server.
        let (l1, asked) = (open(&t), question("www.example.com"));
        let now = t.store.now();
        let answer = stored(&asked, 60, 1, now);
        t.faults.refuse_next(1);
        assert!(l1.put(&asked, AnswerKind::Plain, &answer, &StoredEntry::default(), now).await.is_err());
        let both: (u64, u64) = (
            run(&t.store, &["EXISTS", KEY]).await,
            run(&t.store, &["ZCARD", "dnsmeta:expiry:index"]).await,
        );
        assert_eq!(both, (0, 0));
    }
}
