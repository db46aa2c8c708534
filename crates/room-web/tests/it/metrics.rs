//! `/metrics` during traffic, compared with what is in the store.

use std::time::Duration;

use room_web::RoomService;
use serde_json::{Value, json};
use web::Settings;
use web::testing::Fixture;

testkit::each_store! {
    async fn figures_of_queues_are_those_of_the_store_on_every_instance(t: TestStore) {
        let room = room::Room::open(t.store.clone(), room::Options::default()).await.unwrap();
        let keeper = room::RoomMaintenance::new(room.clone());
        let open = || Fixture::running(&t, Settings::default(), vec![RoomService::on(room.clone(), 0)]);
        let (a, b) = (open(), open());
        let settings = json!({ "id": "figures", "max_active": 3, "max_queue_size": 6,
            "admission": { "count": 1, "per_seconds": 2, "burst": 2 } });
        let made = a.admin("POST /api/v1/admin/queues", settings).await;
        assert_eq!(made.status, 201, "{}", made.text);
        let enqueue = async || a.call("", "POST /api/v1/queues/figures/enqueue", json!({})).await;
        let mut tokens = Vec::new();
        for _ in 0..8 {
            let enqueued = enqueue().await;
            assert_eq!(enqueued.status, 201, "{}", enqueued.text);
            tokens.push(enqueued.json()["token"].as_str().unwrap().to_owned());
        }
        // Two were admitted at once, six wait, and there is no room for more.
        assert_eq!(enqueue().await.status, 503);
        let start = "POST /api/v1/queues/figures/start-session";
        let started = a.call(&tokens[0], start, Value::Null).await;
        assert!(started.status.is_success(), "{}", started.text);
        t.clock.advance(Duration::from_secs(8));
        // By hand, because all of them come from one address.
        let id = room::QueueId::parse("figures").unwrap();
        assert_eq!(room.admit_by_hand(&id, 5).await.unwrap().ids.len(), 1);

        let queue = room.queue(&id).await.unwrap();
        assert_eq!((queue.waiting, queue.admitted, queue.active), (5, 2, 1));
        for f in [&a, &b] {
            let scraped = f.admin("GET /metrics", Value::Null).await;
            for (name, value) in [
                ("waiting", 5.0),
                ("admitted", 2.0),
                ("active", 1.0),
                ("free_slots", 0.0),
                ("open", 1.0),
                ("rate_per_second", 0.5),
                ("enqueued_total", 8.0),
                ("admissions_total", 3.0),
                ("no_shows_total", 0.0),
                ("sessions_started_total", 1.0),
                ("wait_seconds_count", 3.0),
            ] {
                let series = format!("tidegate_room_{name}{{queue=\"figures\"}}");
                assert_eq!(scraped.series(&series), Some(value), "{series} in\n{}", scraped.text);
            }
            let waited = scraped.series("tidegate_room_wait_seconds_sum{queue=\"figures\"}").unwrap();
            assert!((7.9..8.5).contains(&waited), "{waited}");
            let actual = scraped.series("tidegate_room_admissions_per_second{queue=\"figures\"}");
            assert!(actual.is_some_and(|rate| rate > 0.0), "{actual:?}");
            let refused = "tidegate_room_refused_total{queue=\"figures\",reason=\"full\"}";
            assert_eq!(scraped.series(refused), Some(1.0), "{}", scraped.text);
        }
        // Visitors who do not come lose their admission, and a queue that is gone is not told of.
        t.clock.advance(Duration::from_secs(130));
        keeper.tick().await.unwrap();
        room.delete_queue(&queue.id).await.unwrap();
        let c = open();
        let scraped = c.admin("GET /metrics", Value::Null).await;
        assert!(!scraped.text.contains("tidegate_room_waiting{queue=\"figures\"}"), "{}", scraped.text);
    }
}
