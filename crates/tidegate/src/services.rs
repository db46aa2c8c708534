//! The services of the product: the one list.

use desk_web::DeskService;
use dns_web::DnsService;
use jobs_web::JobsService;
use room_web::RoomService;
use web::service::Services;
use web::store::StoreService;

/// Every service, in the order of the menu. A new one is added here and nowhere else in this crate.
pub(crate) const SERVICES: Services =
    &[&RoomService, &JobsService, &DnsService, &DeskService, &StoreService];

#[cfg(test)]
mod dialect;
#[cfg(test)]
mod metrics;

#[cfg(test)]
mod tests {
    //! The OpenAPI document is the routes of all services: the golden copy must equal it, and every
    //! guarded path must refuse a caller without a credential.

    use serde_json::{Value, json};
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
            // Visitors of the waiting room are asked for their tokens where there is a queue, or a session.
            f.admin("POST /api/v1/admin/queues", json!({ "id": "q" })).await;
            let held = f.call("", "POST /api/v1/queues/q/enqueue", json!({})).await.json();
            let token = held["token"].as_str().unwrap();
            let started = f.call(token, "POST /api/v1/queues/q/start-session", json!({})).await;
            assert_eq!(started.status, 200, "{}", started.text);
            let session = started.json()["session_id"].as_str().unwrap().to_owned();
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
                    let path = path.replace("{queue_id}", "q").replace("{session_id}", &session);
                    let what = format!("{} {}", method.to_uppercase(), path.replace(['{', '}'], ""));
                    for token in ["", "tg_admin_wrong"] {
                        let got = f.call(token, &what, Value::Null).await;
                        assert_eq!(got.status, 401, "{what}");
                    }
                }
            }
            assert!(guarded >= 5, "only {guarded} guarded operations found");
        }

        async fn an_unknown_name_or_a_wrong_value_is_refused_by_name_on_every_route(t: TestStore) {
            let f = fixture(&t).await;
            let made = f.admin("POST /api/v1/admin/queues", json!({ "id": "q" })).await;
            assert_eq!(made.status, 201, "{}", made.text);
            let held = f.call("", "POST /api/v1/queues/q/enqueue", json!({})).await;
            let visitor = held.json()["token"].as_str().unwrap().to_owned();
            // The widget's calls want a user's session, which opens nothing else.
            let opened = f.admin("POST /api/v1/users/eva/sessions", json!({ "device_id": "phone" })).await;
            assert_eq!(opened.status, 201, "{}", opened.text);
            let user = opened.json()["token"].as_str().unwrap().to_owned();
            let document: Value = f.get("/api/openapi.json").await.json();
            let schema_of = |reference: &str| document.pointer(reference.trim_start_matches('#')).unwrap();
            let (mut queries, mut bodies) = (0, 0);
            for (path, item) in document["paths"].as_object().unwrap() {
                for (method, operation) in item.as_object().unwrap() {
                    let token = match path.as_str() {
                        path if path.starts_with("/api/v1/queues/") => visitor.as_str(),
                        path if path.starts_with("/api/v1/widget/") => user.as_str(),
                        _ => web::testing::ADMIN,
                    };
                    let id = "019b76da-a800-7241-91a2-4cdb40e9cca9";
                    let path = path.replace("{queue_id}", "q").replace("{session_id}", id);
                    let path = path.replace("{position_id}", id).replace(['{', '}'], "");
                    let what = format!("{} {path}", method.to_uppercase());
                    let refused = async |query: &str, body: Value, field: &str| {
                        let got = f.call(token, &format!("{what}{query}"), body.clone()).await;
                        let told = format!("{what}{query} {body}: {} {}", got.status, got.text);
                        assert_eq!(got.status, 400, "{told}");
                        let error = &got.json()["error"];
                        assert_eq!((&error["code"], &error["details"]["field"]), (&json!("INVALID_REQUEST"), &json!(field)), "{told}");
                        let message = error["message"].as_str().unwrap();
                        for rust in ["struct", "u8", "u32", "u64", "usize", "i64", "f64", "expected", "deserialize", "::", "`", "variant", "map", "sequence"] {
                            assert!(!message.split(|c: char| !c.is_alphanumeric() && c != ':' && c != '`' && c != '_').any(|word| word == rust), "{told}");
                        }
                    };
                    let body = &operation["requestBody"]["content"]["application/json"];
                    let example = body["example"].clone();
                    refused("?no_such_name=1", example.clone(), "no_such_name").await;
                    queries += 1;
                    for parameter in operation["parameters"].as_array().into_iter().flatten() {
                        let schema = parameter["schema"].to_string();
                        if parameter["in"] == "query" && (schema.contains("integer") || schema.contains("enum")) {
                            let name = parameter["name"].as_str().unwrap();
                            refused(&format!("?{name}=many"), example.clone(), name).await;
                        }
                    }
                    let Some(reference) = body["schema"]["$ref"].as_str() else {
                        refused("", json!({ "no_such_field": 1 }), "no_such_field").await;
                        continue;
                    };
                    bodies += 1;
                    let with = |name: &str, value: Value| {
                        let mut body = example.clone();
                        body[name] = value;
                        body
                    };
                    refused("", with("no_such_field", json!(1)), "no_such_field").await;
                    for (name, property) in schema_of(reference)["properties"].as_object().unwrap() {
                        let parts = property["oneOf"].as_array().into_iter().flatten();
                        let inner = std::iter::once(property).chain(parts).find_map(|part| part["$ref"].as_str());
                        let kind = match inner {
                            Some(inner) => schema_of(inner),
                            None => property,
                        };
                        let kinds = kind["type"].to_string();
                        // A field that takes any JSON refuses none.
                        if kinds == "null" {
                            continue;
                        }
                        let wrong = if kinds.contains("string") { json!(7) } else { json!("many") };
                        refused("", with(name, wrong), name).await;
                        if inner.is_some() && kind["additionalProperties"] == false {
                            let mut inside = json!({ "no_such_field": 1 });
                            for needed in kind["required"].as_array().into_iter().flatten() {
                                let needed = needed.as_str().unwrap();
                                let shown = example[name].get(needed).cloned();
                                inside[needed] = shown.unwrap_or_else(|| json!(1));
                            }
                            refused("", with(name, inside), &format!("{name}.no_such_field")).await;
                        }
                    }
                }
            }
            assert!(queries > 80 && bodies > 25, "only {queries} queries and {bodies} bodies");
        }
    }
}
