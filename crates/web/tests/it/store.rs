use axum::http::StatusCode;
use serde_json::{Value, json};
use store::redis;
use testkit::TestStore;

use web::testing::Fixture;

async fn fill(t: &TestStore) {
    let mut store = t.store.clone();
    redis::pipe()
        .cmd("SET")
        .arg("a:string")
        .arg("{\"x\":1}")
        .cmd("PEXPIRE")
        .arg("a:string")
        .arg(600_000)
        .cmd("RPUSH")
        .arg("a:list")
        .arg("one")
        .arg("two")
        .cmd("SADD")
        .arg("a:set")
        .arg("m")
        .cmd("ZADD")
        .arg("a:zset")
        .arg("1.5")
        .arg("m")
        .cmd("HSET")
        .arg("a:hash")
        .arg("f")
        .arg("v")
        .cmd("XADD")
        .arg("a:stream")
        .arg("1-1")
        .arg("k")
        .arg("v")
        .cmd("SET")
        .arg(b"bin\xff\x00")
        .arg(b"\xfe")
        .query_async::<()>(&mut store)
        .await
        .unwrap();
}

testkit::each_store! {
    async fn every_type_of_value_can_be_looked_at(t: TestStore) {
        fill(&t).await;
        let f = Fixture::new(&t);
        for (key, kind, entries) in [
            ("a:string", "string", json!([["{\"x\":1}"]])),
            ("a:list", "list", json!([["0", "one"], ["1", "two"]])),
            ("a:set", "set", json!([["m"]])),
            ("a:zset", "zset", json!([["1.5", "m"]])),
            ("a:hash", "hash", json!([["f", "v"]])),
            ("a:stream", "stream", json!([["1-1", "k=v"]])),
            ("bin%5Cxff%5Cx00", "string", json!([["\\xfe"]])),
        ] {
            let got = f.admin(&format!("GET /api/v1/store/key?key={key}"), Value::Null).await;
            assert_eq!(got.status, StatusCode::OK, "{key}: {}", got.text);
            assert_eq!(got.json()["type"], kind, "{key}");
            assert_eq!(got.json()["entries"], entries, "{key}");
            assert_eq!(got.json()["more"], false);
        }
        let string = f.admin("GET /api/v1/store/key?key=a:string", Value::Null).await.json();
        assert!((590_000..=600_000).contains(&string["ttl_ms"].as_i64().unwrap()));
        assert_eq!(f.admin("GET /api/v1/store/key?key=none", Value::Null).await.status, StatusCode::NOT_FOUND);
        assert_eq!(f.admin("GET /api/v1/store/key?key=%5Cq", Value::Null).await.status, StatusCode::BAD_REQUEST);
    }

    async fn keys_are_found_by_pattern_and_type_page_by_page(t: TestStore) {
        fill(&t).await;
        let f = Fixture::new(&t);
        let find = async |query: &str| {
            let got = f.admin(&format!("GET /api/v1/store/keys?{query}"), Value::Null).await.json();
            let keys: Vec<String> = got["items"].as_array().unwrap().iter()
                .map(|row| row["key"].as_str().unwrap().to_owned()).collect();
            keys
        };
        assert_eq!(find("pattern=a:*").await.len(), 6);
        assert_eq!(find("pattern=zse").await, ["a:zset"]);
        assert_eq!(find("type=hash").await, ["a:hash"]);
        assert_eq!(find("pattern=nothing").await, Vec::<String>::new());

        let mut store = t.store.clone();
        let mut pipe = redis::pipe();
        for number in 0..2000 {
            pipe.cmd("SET").arg(format!("many:{number}")).arg(1);
        }
        pipe.query_async::<()>(&mut store).await.unwrap();
        let mut seen = std::collections::BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let path = format!("GET /api/v1/store/keys?pattern=many:*&limit=100&cursor={cursor}");
            let page = f.admin(&path, Value::Null).await.json();
            seen.extend(page["items"].as_array().unwrap().iter().map(|row| row["key"].to_string()));
            cursor = page["next_cursor"].as_str().unwrap_or("0").to_owned();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(seen.len(), 2000);
        for bad in ["limit=0", "limit=1001", "type=what", "kind=hash", "cursor=x", "cursor=99999999999999999999"] {
            let got = f.admin(&format!("GET /api/v1/store/keys?{bad}"), Value::Null).await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{bad}");
        }
    }

    async fn a_long_value_is_shown_in_part(t: TestStore) {
        let f = Fixture::new(&t);
        let mut store = t.store.clone();
        redis::cmd("SET").arg("long").arg("x".repeat(100_000)).query_async::<()>(&mut store).await.unwrap();
        let mut push = redis::cmd("RPUSH");
        push.arg("deep");
        for number in 0..1000 {
            push.arg(number);
        }
        push.query_async::<()>(&mut store).await.unwrap();
        let long = f.admin("GET /api/v1/store/key?key=long", Value::Null).await.json();
        assert_eq!((long["length"].as_u64(), long["more"].as_bool()), (Some(100_000), Some(true)));
        assert_eq!(long["entries"][0][0].as_str().unwrap().len(), 16 * 1024);
        let deep = f.admin("GET /api/v1/store/key?key=deep", Value::Null).await.json();
        assert_eq!((deep["length"].as_u64(), deep["more"].as_bool()), (Some(1000), Some(true)));
        assert_eq!(deep["entries"].as_array().unwrap().len(), 100);
    }

    async fn only_an_admin_removes_a_key_and_it_is_on_record(t: TestStore) {
        fill(&t).await;
        let f = Fixture::new(&t);
        let operator = f.token(web::auth::Role::Operator).await;
        let path = "DELETE /api/v1/store/key?key=a:hash";
        assert_eq!(f.call(&operator, path, Value::Null).await.status, StatusCode::FORBIDDEN);
        assert_eq!(f.admin(path, Value::Null).await.status, StatusCode::OK);
        assert_eq!(f.admin(path, Value::Null).await.status, StatusCode::NOT_FOUND);
        let trail = f.admin("GET /api/v1/audit", Value::Null).await.json();
        assert_eq!(trail["items"][1]["action"], "key.delete");
        assert_eq!(trail["items"][1]["target"], "a:hash");
    }

    async fn the_store_tells_how_it_is(t: TestStore) {
        fill(&t).await;
        let f = Fixture::new(&t);
        let info = f.admin("GET /api/v1/store", Value::Null).await.json();
        assert_eq!(info["keys"], 8, "ours and the tokens: {info}");
        assert!(info["memory_bytes"].as_u64().unwrap() > 0, "{info}");
        assert_eq!(f.admin("GET /api/v1/store/slow", Value::Null).await.status, StatusCode::OK);
    }
}
