//! Answers that are kept: found, deleted, cleared.

use serde_json::{Value, json};

use crate::support::Server;

async fn tiers(s: &Server) -> Vec<String> {
    let found = s.f.admin("GET /api/v1/dns/cache/answers?name=Shop.Example.", Value::Null).await;
    assert_eq!(found.status, 200, "{}", found.text);
    let items = found.json()["items"].as_array().unwrap().clone();
    items.iter().map(|item| item["tier"].as_str().unwrap().to_owned()).collect()
}

async fn wait_for_tiers(s: &Server, expected: &[&str]) {
    let seen = async {
        while tiers(s).await != expected {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let deadline = std::time::Duration::from_secs(20);
    tokio::time::timeout(deadline, seen).await.unwrap_or_else(|_| panic!("no {expected:?}"));
}

testkit::each_store! {
    async fn answers_of_a_name_are_found_and_deleted(t: TestStore) {
        let s = Server::start(&t).await;
        assert!(tiers(&s).await.is_empty());
        s.ask("shop.example").await;
        wait_for_tiers(&s, &["memory", "store"]).await;
        let found = s.f.admin("GET /api/v1/dns/cache/answers?name=shop.example&type=a", Value::Null).await;
        let first = &found.json()["items"][0];
        assert_eq!((&first["name"], &first["type"]), (&json!("shop.example"), &json!("A")));
        assert_eq!(first["records"][0]["data"], "192.0.2.7");
        let other = s.f.admin("GET /api/v1/dns/cache/answers?name=shop.example&type=AAAA", Value::Null).await;
        assert_eq!(other.json()["items"], json!([]));

        let gone = s.f.admin("DELETE /api/v1/dns/cache/answers/shop.example", Value::Null).await;
        assert_eq!((gone.status.as_u16(), &gone.json()["deleted"]), (200, &json!(1)));
        assert!(tiers(&s).await.is_empty());
        let entry = &s.f.trail().await[0];
        assert_eq!(entry["action"], "cache.delete");
        s.stop().await;
    }

    async fn a_deleted_answer_leaves_the_memory_of_other_instances(t: TestStore) {
        let (one, two) = (Server::named(&t, "one").await, Server::named(&t, "two").await);
        one.ask("shop.example").await;
        wait_for_tiers(&one, &["memory", "store"]).await;
        two.ask("shop.example").await;
        wait_for_tiers(&two, &["memory", "store"]).await;
        one.f.admin("DELETE /api/v1/dns/cache/answers/shop.example?type=A", Value::Null).await;
        wait_for_tiers(&two, &[]).await;
        one.stop().await;
        two.stop().await;
    }

    async fn a_clear_empties_both_tiers(t: TestStore) {
        let s = Server::start(&t).await;
        s.ask("shop.example").await;
        wait_for_tiers(&s, &["memory", "store"]).await;
        let cleared = s.f.admin("POST /api/v1/dns/cache/clear", Value::Null).await;
        assert_eq!((cleared.status.as_u16(), &cleared.json()["deleted"]), (200, &json!(1)), "answers, not keys: {}", cleared.text);
        assert!(tiers(&s).await.is_empty());
        let stats = s.f.admin("GET /api/v1/dns/cache", Value::Null).await.json();
        assert_eq!((&stats["memory_answers"], &stats["store_answers"]), (&json!(0), &json!(0)));
        s.stop().await;
    }

    async fn hits_and_refreshes_are_counted_by_freshness_and_cause(t: TestStore) {
        let s = Server::start(&t).await;
        s.ask("shop.example").await;
        wait_for_tiers(&s, &["memory", "store"]).await;
        s.ask("shop.example").await;
        let cache = s.wait_for("GET /api/v1/dns/cache", |cache| cache["fresh_hits"] == 1).await;
        for (name, expected) in [
            ("stale_hits", 0), ("misses", 1), ("memory_stale_answers", 0), ("hot_refreshes", 0), ("warm_refreshes", 0), ("sweep_refreshes", 0),
        ] {
            assert_eq!(cache[name], expected, "{name}: {cache}");
        }
        // Hits decay. The upstream's TTL is 300 s: one hit of late, with little of it left.
        for _ in 0..2 {
            s.f.admin("POST /api/v1/dns/cache/sweep", json!({})).await;
        }
        t.clock.advance(std::time::Duration::from_secs(290));
        s.ask("shop.example").await;
        let cache = s.wait_for("GET /api/v1/dns/cache", |cache| cache["warm_refreshes"] == 1).await;
        assert_eq!((&cache["hot_refreshes"], &cache["sweep_refreshes"]), (&json!(0), &json!(0)), "{cache}");
        // And then two.
        t.clock.advance(std::time::Duration::from_secs(200));
        s.ask("shop.example").await;
        t.clock.advance(std::time::Duration::from_secs(30));
        s.ask("shop.example").await;
        let cache = s.wait_for("GET /api/v1/dns/cache", |cache| cache["hot_refreshes"] == 1).await;
        assert_eq!((&cache["warm_refreshes"], &cache["sweep_refreshes"]), (&json!(1), &json!(0)), "{cache}");
        t.clock.advance(std::time::Duration::from_secs(310));
        let cache = s.f.admin("GET /api/v1/dns/cache", Value::Null).await.json();
        assert_eq!(cache["memory_stale_answers"], 1, "{cache}");
        let page = s.f.admin("GET /dns/cache", Value::Null).await;
        assert!(page.text.contains("Refreshes of this instance"), "{}", page.text);
        s.stop().await;
    }

    async fn names_and_types_that_cannot_be_are_refused_by_field(t: TestStore) {
        let s = Server::start(&t).await;
        for (query, field) in [("name=a..b", "name"), ("name=a&type=nonsense", "type"), ("name=a&limit=0", "limit")] {
            let refused = s.f.admin(&format!("GET /api/v1/dns/cache/answers?{query}"), Value::Null).await;
            assert_eq!(refused.status, 400, "{query}: {}", refused.text);
            assert_eq!(refused.json()["error"]["details"]["field"], field);
        }
        s.stop().await;
    }
}
