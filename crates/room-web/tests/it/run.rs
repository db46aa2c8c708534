//! What operators need to run a queue: look-up, statistics with export, the preview of the waiting page.

use axum::http::StatusCode;
use serde_json::{Value, json};
use web::auth::Role;
use web::testing::Fixture;

use crate::api::{enqueue, fixture, queue};

/// A dashboard page as the admin sees it.
async fn page(f: &Fixture, path: &str) -> web::testing::Answer {
    f.admin(&format!("GET {path}"), Value::Null).await
}

testkit::each_store! {
    async fn a_visitor_is_looked_up_with_the_reason_to_wait(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        enqueue(&f).await;
        let (second, _) = enqueue(&f).await;
        let id = second["position_id"].as_str().unwrap();
        let found = f.admin(&format!("GET /api/v1/admin/queues/concert/find?text={id}"), Value::Null).await.json();
        assert_eq!(found["position"]["position_id"], id);
        assert_eq!(found["wait_reason"], "no_free_slot");
        assert_eq!(found["session"], Value::Null);
        let shown = page(&f, &format!("/room/concert?view=find&text={id}")).await.text;
        assert!(shown.contains("Why this visitor waits") && shown.contains("all 1 slots are taken"), "{shown}");

        let none = f.admin("GET /api/v1/admin/queues/concert/find?text=nobody", Value::Null).await;
        assert_eq!((none.status, none.code().as_str()), (StatusCode::NOT_FOUND, "POSITION_NOT_FOUND"));
        assert!(page(&f, "/room/concert?view=find&text=nobody").await.text.contains("Nobody found"));
        let odd = page(&f, "/room/concert?view=find&text=%3Cscript%3E").await.text;
        assert!(!odd.contains("<script>") && odd.contains("&lt;script&gt;"), "{odd}");
        let empty = f.admin("GET /api/v1/admin/queues/concert/find?text=", Value::Null).await;
        assert_eq!(empty.json()["error"]["details"]["field"], "text");
    }

    async fn the_palette_finds_queues_and_what_operators_may_do_with_them(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        let hits = async |token: &str, text: &str| -> Vec<String> {
            let found = f.call(token, &format!("GET /api/v1/search?text={text}"), Value::Null).await.json();
            let all = found["items"].as_array().unwrap().iter();
            all.map(|hit| format!("{} {} {}", hit["category"].as_str().unwrap(), hit["title"].as_str().unwrap(), hit["path"].as_str().unwrap())).collect()
        };
        let operator = f.token(Role::Operator).await;
        let found = hits(&operator, "pause%20conc").await;
        assert!(found.contains(&"action Pause concert /room/concert#pause".to_owned()), "{found:?}");
        assert!(hits(&operator, "conc").await.contains(&"queue concert /room/concert".to_owned()));
        // The link leads to the button that asks first.
        assert!(page(&f, "/room/concert").await.text.contains("id=\"pause\""));
        let viewer = f.token(Role::Viewer).await;
        let found = hits(&viewer, "concert").await;
        assert!(found.iter().any(|hit| hit.starts_with("queue ")), "{found:?}");
        assert!(!found.iter().any(|hit| hit.starts_with("action ")), "{found:?}");
        f.call(&operator, "POST /api/v1/admin/queues/concert/pause", json!({})).await;
        let found = hits(&operator, "concert").await;
        assert!(found.iter().any(|hit| hit.contains("Resume concert")), "{found:?}");
    }

    async fn statistics_are_listed_and_exported(t: TestStore) {
        let (f, keeper) = fixture(&t).await;
        queue(&f).await;
        assert!(page(&f, "/room/concert?view=statistics").await.text.contains("No numbers yet"));
        enqueue(&f).await;
        enqueue(&f).await;
        keeper.tick().await.unwrap();
        let path = "/api/v1/admin/queues/concert/stats/history";
        for step in ["hour", "day"] {
            let list = f.admin(&format!("GET {path}?step={step}"), Value::Null).await.json();
            assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
            assert_eq!(list["items"][0]["enqueued"], 2);
            assert_eq!(list["next_cursor"], Value::Null);

            let csv = page(&f, &format!("/room/concert/statistics/export?step={step}")).await;
            assert_eq!(csv.header("content-type"), "text/csv; charset=utf-8");
            let name = format!("attachment; filename=\"concert-by-{step}.csv\"");
            assert_eq!(csv.header("content-disposition"), name);
            let lines: Vec<&str> = csv.text.split("\r\n").collect();
            assert!(lines[0].starts_with("started_at,enqueued,admitted,"), "{}", csv.text);
            assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
            let midnight = if step == "day" { "T00:00:00.000Z,2," } else { ":00:00.000Z,2," };
            assert!(lines[1].contains(midnight), "{}", csv.text);

            let export = format!("/room/concert/statistics/export?step={step}&format=json");
            let json: Value = page(&f, &export).await.json();
            assert_eq!(json, list["items"]);
        }
        for wrong in ["step=week", "format=xml"] {
            let got = page(&f, &format!("/room/concert/statistics/export?{wrong}")).await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{wrong}");
        }
        let worker = f.token(Role::Worker).await;
        let denied = f.call(&worker, "GET /room/concert/statistics/export", Value::Null).await;
        assert!(denied.status.is_client_error() || denied.status.is_redirection(), "{}", denied.status);
    }

    async fn the_preview_shows_what_is_typed_and_can_do_nothing(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        let got = page(&f, "/room/concert/preview?name=Sale%20%3Cb%3E&color=%23ff0000&message=Doors%20open%20at%20eight").await;
        assert_eq!(got.status, StatusCode::OK);
        let text = &got.text;
        assert!(text.contains("Sale &lt;b&gt;") && text.contains("Doors open at eight"), "{text}");
        assert!(text.contains("/room/concert/preview.css?color=%23ff0000"), "{text}");
        assert!(!text.contains("<script") && text.contains(" inert"), "{text}");
        assert!(got.header("content-security-policy").contains("frame-ancestors 'self'"));
        assert_eq!(got.header("x-frame-options"), "SAMEORIGIN");
        let style = page(&f, "/room/concert/preview.css?color=%23ff0000").await;
        assert!(style.text.contains("--accent:#"), "{}", style.text);
        // A colour that is being typed, or a logo that is none, is left out.
        let half = page(&f, "/room/concert/preview?color=%23ff&logo=javascript:alert(1)").await;
        assert!(!half.text.contains("javascript:") && !half.text.contains("preview.css"), "{}", half.text);
        // Nothing was stored, and the real page stays closed to frames.
        let queue = f.admin("GET /api/v1/admin/queues/concert", Value::Null).await.json();
        assert_eq!((&queue["name"], &queue["brand_color"], &queue["message"]), (&json!("Concert"), &Value::Null, &json!({})));
        let real = f.get("/_wr/concert").await;
        assert_eq!(real.header("x-frame-options"), "DENY");
        assert_eq!(f.get("/room/concert/preview").await.status, StatusCode::SEE_OTHER);
    }

    async fn the_way_to_the_waiting_page_is_on_the_dashboard(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        let list = page(&f, "/room").await.text;
        assert!(list.contains(r#"href="/_wr/concert""#) && list.contains(r#"data-copy-link="/_wr/concert""#), "{list}");
        let request = axum::http::Request::get("/room/concert")
            .header("authorization", format!("Bearer {}", web::testing::ADMIN))
            .header("host", "tickets.example:8443")
            .body(axum::body::Body::empty())
            .unwrap();
        let one = f.send(request).await.text;
        assert!(one.contains("QR code of http://tickets.example:8443/_wr/concert"), "{one}");
        assert!(one.contains(r#"href="/_wr/concert""#) && one.contains(r#"data-copy-link="/_wr/concert""#));
    }
}
