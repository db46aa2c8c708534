//! Bytes on the wire: what is compressed, what is not, and how much a page weighs.

use serde_json::Value;
use web::testing::{ADMIN, Fixture};

/// The files that a page names, and the modules those import.
fn files(page: &str) -> Vec<String> {
    let named = page.split(['"', '\'']).filter(|text| text.starts_with("/assets/"));
    let mut files: Vec<String> = named.map(str::to_owned).collect();
    let folder = files[0].rsplit_once('/').unwrap().0.to_owned();
    for module in ["live", "act", "chart", "keyboard", "palette", "first", "time"] {
        files.push(format!("{folder}/{module}.js"));
    }
    files.sort();
    files.dedup();
    files
}

testkit::each_store! {
    async fn the_overview_weighs_at_most_60_kb_cold(t: TestStore) {
        let f = Fixture::new(&t);
        let page = f.admin("GET /", Value::Null).await.text;
        let mut sums = Vec::new();
        for (accepts, coding) in [("gzip", "gzip"), ("gzip, deflate, br, zstd", "br")] {
            let whole = f.weigh("/", ADMIN, accepts).await;
            assert_eq!(whole.coding, coding);
            let mut sum = whole.bytes;
            for file in files(&page) {
                let sent = f.weigh(&file, "", accepts).await;
                assert_eq!((sent.status, sent.coding.as_str()), (200, coding), "{file}");
                assert!(sent.cache.contains("immutable"), "{file}: {}", sent.cache);
                sum += sent.bytes;
            }
            assert!(sum <= 60_000, "{coding}: {sum} bytes");
            sums.push(sum);
        }
        assert!(sums[1] < sums[0], "{sums:?}");
    }

    async fn answers_with_secrets_and_streams_are_sent_as_they_are(t: TestStore) {
        let f = Fixture::new(&t);
        for (path, token) in [("/api/v1/me", ADMIN), ("/api/v1/tokens", ADMIN), ("/login", ""), ("/api/v1/audit", ADMIN)] {
            assert_eq!(f.weigh(path, token, "gzip, br").await.coding, "", "{path}");
        }
        assert_eq!(f.weigh("/docs/room", "", "gzip").await.coding, "gzip");
        assert_eq!(f.weigh("/docs/room", "", "gzip, br").await.coding, "br");
        assert_eq!(f.weigh("/docs/room", "", "identity").await.coding, "");
        let document = f.weigh("/api/openapi.json", ADMIN, "gzip").await;
        assert!(document.coding == "gzip" && document.bytes < 60_000, "{} bytes", document.bytes);
    }
}
