//! The services of the product: the one list.

use jobs_web::JobsService;
use room_web::RoomService;
use web::service::Services;
use web::store::StoreService;

/// Every service, in the order of the menu. A new one is added here and nowhere else in this crate.
pub(crate) const SERVICES: Services = &[&RoomService, &JobsService, &StoreService];

#[cfg(test)]
mod tests {
    //! The OpenAPI document is the routes of all services: the golden copy must equal it, and every
    //! guarded path must refuse a caller without a credential.

    use serde_json::Value;
    use testkit::TestStore;
    use web::Settings;
    use web::config::{Config, Values};
    use web::service::{OpenService, Opening};
    use web::testing::Fixture;

    use super::*;

    async fn fixture(t: &TestStore) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let values = Values::defaults(SERVICES);
        let mut config = Config::read(&values).unwrap();
        config.server.data = folder.path().to_owned();
        let mut open = Vec::new();
        for service in SERVICES.iter().filter(|service| service.is_optional()) {
            let opening =
                Opening { store: &t.store, config: &config, values: &values, instance: "test" };
            open.push(OpenService {
                service: *service,
                running: service.open(opening).await.unwrap(),
            });
        }
        Fixture::running(t, Settings::default(), open)
    }

    #[test]
    fn the_golden_copy_is_up_to_date() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        let made = web::document(SERVICES).to_pretty_json().unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(golden, &made).unwrap();
        }
        let kept = std::fs::read_to_string(golden).unwrap_or_default();
        assert!(
            kept == made,
            "crates/tidegate/openapi.json is out of date: run `cargo xtask codegen` and look at the diff"
        );
    }

    #[test]
    fn the_document_is_complete() {
        let document: Value =
            serde_json::from_str(&web::document(SERVICES).to_json().unwrap()).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let mut ids = std::collections::BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let at = format!("{method} {path}");
                assert!(
                    operation["summary"].as_str().is_some_and(|s| !s.is_empty()),
                    "{at}: no summary"
                );
                assert!(
                    operation["tags"].as_array().is_some_and(|t| t.len() == 1),
                    "{at}: one tag"
                );
                let id = operation["operationId"].as_str().unwrap().to_owned();
                assert!(ids.insert(id.clone()), "{at}: operation id {id} is used twice");
            }
        }
    }

    testkit::each_store! {
        async fn every_guarded_path_refuses_strangers(t: TestStore) {
            let f = fixture(&t).await;
            let document: Value = f.get("/api/openapi.json").await.json();
            let mut guarded = 0;
            for (path, item) in document["paths"].as_object().unwrap() {
                for (method, operation) in item.as_object().unwrap() {
                    let needs = operation["security"].as_array().is_some_and(|list| {
                        !list.is_empty() && list.iter().all(|entry| !entry.as_object().unwrap().is_empty())
                    });
                    if !needs {
                        continue;
                    }
                    guarded += 1;
                    let what = format!("{} {}", method.to_uppercase(), path.replace(['{', '}'], ""));
                    for token in ["", "tg_admin_wrong"] {
                        let got = f.call(token, &what, Value::Null).await;
                        assert_eq!(got.status, 401, "{what}");
                    }
                }
            }
            assert!(guarded >= 5, "only {guarded} guarded operations found");
        }
    }
}
