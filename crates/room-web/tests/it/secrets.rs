//! Keys with secrets are closed to the key browser.

use axum::http::StatusCode;
use room_web::RoomService;
use serde_json::{Value, json};
use store::redis;
use web::Settings;
use web::testing::{ADMIN, Fixture};

testkit::each_store! {
    async fn secrets_are_not_shown_to_anybody(t: TestStore) {
        let room = room::Room::open(t.store.clone(), room::Options::default()).await.unwrap();
        room.client_of("192.0.2.1".parse().unwrap()).await.unwrap();
        let f = Fixture::running(&t, Settings::default(), vec![RoomService::on(room, 600)]);
        f.app.auth().open_session(f.app.store(), ADMIN, &f.app.settings()).await.unwrap();
        f.admin("POST /api/v1/tokens", json!({"name": "a", "role": "viewer"})).await;
        let all: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut t.store.clone()).await.unwrap();
        assert!(all.iter().any(|key| key.starts_with("room:address-key:")), "{all:?}");
        let secret: Vec<&String> = all.iter().filter(|key| key.starts_with("tidegate:") || key.starts_with("room:")).collect();
        assert!(secret.len() >= 5, "{all:?}");
        for pattern in ["", "*", "room:*", "tidegate", "signing", "session"] {
            let page = f.admin(&format!("GET /api/v1/store/keys?limit=500&pattern={pattern}"), Value::Null).await;
            assert_eq!(page.status, StatusCode::OK);
            for key in &secret {
                assert!(!page.text.contains(key.as_str()), "{pattern} found {key}");
            }
        }
        for key in secret {
            for what in ["GET /api/v1/store/key", "DELETE /api/v1/store/key"] {
                let got = f.admin(&format!("{what}?key={key}"), Value::Null).await;
                assert_eq!((got.status.as_u16(), got.code().as_str()), (403, "PROTECTED_KEY"), "{what} {key}");
            }
            let page = f.admin(&format!("GET /store/key?key={key}"), Value::Null).await;
            assert_eq!(page.status, StatusCode::FORBIDDEN);
        }
    }
}
