use api::auth::Role;
use serde_json::{Value, json};

use crate::fixture::Fixture;

testkit::each_store! {
    async fn every_change_is_in_the_trail_with_who_and_what(t: TestStore) {
        let f = Fixture::new(&t);
        let made = f.admin("POST /api/v1/tokens", json!({"name": "a", "role": "viewer"})).await;
        f.admin("POST /api/v1/tokens", json!({"name": "", "role": "viewer"})).await;
        let viewer = f.token(Role::Viewer).await;
        f.call(&viewer, "POST /api/v1/tokens", json!({"name": "b", "role": "admin"})).await;
        f.admin("GET /api/v1/tokens", Value::Null).await;

        let trail = f.admin("GET /api/v1/audit", Value::Null).await.json();
        let entries = trail["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 2, "{trail:#}");
        assert_eq!(entries[0]["outcome"], "refused");
        assert_eq!(entries[1]["outcome"], "ok");
        assert_eq!(entries[1]["action"], "token.create");
        assert_eq!(entries[1]["who"], "admin token");
        assert_eq!(entries[1]["target"], made.json()["token"]["id"]);
        assert_eq!(entries[1]["request_id"], made.header("x-request-id"));
        assert_eq!(entries[1]["after"]["name"], "a");
        assert!(!trail.to_string().contains(made.json()["secret"].as_str().unwrap()));
    }

    async fn the_trail_is_read_page_by_page(t: TestStore) {
        let f = Fixture::new(&t);
        for name in ["a", "b", "c"] {
            f.admin("POST /api/v1/tokens", json!({"name": name, "role": "viewer"})).await;
        }
        let mut names = Vec::new();
        let mut path = "GET /api/v1/audit?limit=2".to_owned();
        loop {
            let page = f.admin(&path, Value::Null).await.json();
            names.extend(page["entries"].as_array().unwrap().iter().map(|e| e["after"]["name"].clone()));
            let Some(next) = page["next"].as_str() else { break };
            path = format!("GET /api/v1/audit?limit=2&before={next}");
        }
        assert_eq!(names, ["c", "b", "a"]);
        for bad in ["limit=0", "limit=501", "limit=x", "before=1", "before=-", "before=1-2-3"] {
            let got = f.admin(&format!("GET /api/v1/audit?{bad}"), Value::Null).await;
            assert_eq!(got.status.as_u16(), 400, "{bad}");
        }
    }
}
