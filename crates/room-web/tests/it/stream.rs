//! Live streams of the waiting room: visitors' positions and operators' events, from any instance.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use room_web::RoomService;
use serde_json::{Value, json};
use testkit::TestStore;
use web::Settings;

use crate::api::{enqueue, fixture, queue};
use web::testing::{ADMIN, Events, Fixture};

/// A second instance on the same store.
async fn beside(t: &TestStore) -> Fixture {
    let store = t.another().await;
    let room = room::Room::open(store.clone(), room::Options::default()).await.unwrap();
    let services = vec![RoomService::on(room, 600)];
    Fixture::on(store, Settings::default(), services)
}

async fn listen(f: &Fixture, token: &str, path: &str, last: Option<&str>) -> Events {
    let mut request = Request::get(path).header("authorization", format!("Bearer {token}"));
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    f.listen(request.body(Body::empty()).unwrap()).await
}

const EVENTS: &str = "/api/v1/queues/concert/events";
const LIVE: &str = "/api/v1/admin/queues/concert/live";

testkit::each_store! {
    async fn a_visitor_hears_on_one_instance_what_happens_on_another(t: TestStore) {
        let (f, _) = fixture(&t).await;
        let other = beside(&t).await;
        queue(&f).await;
        enqueue(&f).await; // takes the one slot
        let (_, first) = enqueue(&f).await;
        let (_, token) = enqueue(&f).await;
        let mut events = listen(&other, &token, "/_wr/api/v1/queues/concert/events?lang=de", None).await;
        assert_eq!(events.status, StatusCode::OK);
        let (_, now) = events.next("position").await.unwrap();
        assert_eq!((&now["position"], &now["text"]["ahead"]), (&json!(2), &json!("1 Person vor Ihnen")));
        f.call(&first, "POST /api/v1/queues/concert/leave", Value::Null).await;
        let (id, now) = events.next("position").await.unwrap();
        assert_eq!(now["position"], 1);
        let base = "/api/v1/admin/queues/concert";
        f.admin(&format!("POST {base}/message"), json!({ "text": { "en": "soon" } })).await;
        assert_eq!(events.next("message").await.unwrap().1["message"]["en"], "soon");
        f.admin(&format!("POST {base}/pause"), Value::Null).await;
        assert_eq!(events.next("paused").await.unwrap().1["estimated_wait"]["reason"], "paused");
        f.admin(&format!("POST {base}/resume"), Value::Null).await;
        events.next("resumed").await.unwrap();

        // Coming back, here or elsewhere, begins with how it stands.
        let mut again = listen(&f, &token, EVENTS, Some(&id)).await;
        assert_eq!(again.next("position").await.unwrap().1["message"]["en"], "soon");
        f.admin(&format!("PATCH {base}"), json!({ "max_active": 2 })).await;
        f.admin(&format!("POST {base}/admit"), json!({ "count": 1 })).await;
        for events in [&mut events, &mut again] {
            assert_eq!(events.next("admitted").await.unwrap().1["admitted"], true);
            assert!(events.next("position").await.is_none(), "the stream ends with the wait");
        }
        let mut late = listen(&f, &token, EVENTS, None).await;
        late.next("admitted").await.unwrap();
        let gone = listen(&f, &first, EVENTS, None).await;
        assert_eq!(gone.status, StatusCode::GONE);
        assert_eq!(listen(&f, "nonsense", EVENTS, None).await.status, StatusCode::UNAUTHORIZED);
    }

    async fn an_open_stream_keeps_the_place_and_ends_with_it(t: TestStore) {
        let (f, keeper) = fixture(&t).await;
        queue(&f).await;
        enqueue(&f).await;
        let (_, token) = enqueue(&f).await;
        let mut events = listen(&f, &token, EVENTS, None).await;
        events.next("position").await.unwrap();
        let (position, _) = enqueue(&f).await;
        assert_eq!(position["position"], 2);
        assert_eq!(events.next("position").await.unwrap().1["behind"], 1, "who joins behind is told too");
        let base = "/api/v1/admin/queues/concert";
        let positions = f.admin(&format!("GET {base}/positions"), Value::Null).await.json();
        let first = positions["items"][0]["position_id"].as_str().unwrap().to_owned();
        f.admin(&format!("DELETE {base}/positions/{first}"), Value::Null).await;
        let (_, over) = events.next("expired").await.unwrap();
        assert_eq!((&over["status"], &over["reason"]), (&json!("revoked"), &json!("admin_revoked")));
        assert!(events.next("position").await.is_none());
        keeper.tick().await.unwrap();
    }

    async fn one_place_has_a_few_streams_and_far_from_the_front_there_is_none(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        enqueue(&f).await;
        let (_, token) = enqueue(&f).await;
        let mut streams = Vec::new();
        for _ in 0..5 {
            let mut events = listen(&f, &token, EVENTS, None).await;
            events.next("position").await.unwrap();
            streams.push(events);
        }
        assert!(streams[0].next("position").await.is_none(), "the oldest gives way");
        f.admin("PATCH /api/v1/admin/queues/concert", json!({ "admission": { "count": 1, "per_seconds": 86400 } })).await;
        let room = &room::Room::open(t.store.clone(), room::Options::default()).await.unwrap();
        let id = room::QueueId::parse("concert").unwrap();
        for _ in 0..100 {
            room.enqueue(&id, room::NewPosition::default()).await.unwrap();
        }
        let (position, far) = enqueue(&f).await;
        assert_eq!((&position["position"], &position["events_url"]), (&json!(102), &Value::Null));
        assert_eq!(listen(&f, &far, EVENTS, None).await.status, StatusCode::NO_CONTENT);
    }

    async fn an_operators_stream_resumes_where_it_broke_off(t: TestStore) {
        let (f, _) = fixture(&t).await;
        let other = beside(&t).await;
        queue(&f).await;
        let mut events = listen(&other, ADMIN, LIVE, None).await;
        assert_eq!(events.status, StatusCode::OK);
        enqueue(&f).await;
        let (first, enqueued) = events.next("position.enqueued").await.unwrap();
        assert_eq!(enqueued["type"], "waitingroom.position.enqueued.v1");
        events.next("position.admitted").await.unwrap();
        drop(events);
        f.admin("POST /api/v1/admin/queues/concert/pause", Value::Null).await;
        let mut again = listen(&f, ADMIN, LIVE, Some(&first)).await;
        again.next("position.admitted").await.unwrap();
        again.next("queue.paused").await.unwrap();
        f.admin("POST /api/v1/admin/queues/concert/resume", Value::Null).await;
        again.next("queue.resumed").await.unwrap();
        let mut all = listen(&f, ADMIN, &format!("{LIVE}?cursor=0-0"), None).await;
        all.next("queue.created").await.unwrap();
        assert_eq!(listen(&f, ADMIN, LIVE, Some("nonsense")).await.status, StatusCode::BAD_REQUEST);
        assert_eq!(listen(&f, "", LIVE, None).await.status, StatusCode::UNAUTHORIZED);
        f.admin("DELETE /api/v1/admin/queues/concert?confirm=concert", Value::Null).await;
        assert!(again.next("nothing").await.is_none(), "the stream of a queue that is gone ends");
    }

    async fn any_number_of_operators_hear_the_same_and_there_is_a_bound(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        let mut streams = Vec::new();
        for _ in 0..256 {
            streams.push(listen(&f, ADMIN, LIVE, None).await);
        }
        assert!(streams.iter().all(|events| events.status == StatusCode::OK));
        let refused = f.admin(&format!("GET {LIVE}"), Value::Null).await;
        assert_eq!((refused.status, refused.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "TOO_MANY_STREAMS"));
        // More than a listener may be behind: each reads the rest for itself, in order.
        for _ in 0..150 {
            enqueue(&f).await;
        }
        for events in [0, 100, 255] {
            let events: &mut Events = &mut streams[events];
            let mut last = String::new();
            for _ in 0..150 {
                let (id, _) = events.next("position.enqueued").await.unwrap();
                assert!(id.parse::<room::EventId>().unwrap() > last.parse().unwrap_or(room::EventId::START));
                last = id;
            }
        }
        streams.pop();
        let mut again = listen(&f, ADMIN, LIVE, None).await;
        f.admin("POST /api/v1/admin/queues/concert/pause", Value::Null).await;
        again.next("queue.paused").await.unwrap();
        streams[0].next("queue.paused").await.unwrap();
    }
}
