//! The rules of the HTTP dialect, tried on the whole document: a new route obeys them or fails here.
//!
//! Everything starts from the golden form of the document, as a client would read it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::SERVICES;

/// An operation of the document.
struct DocumentedCall {
    at: String,
    path: String,
    method: String,
    operation: Value,
}

fn document() -> Value {
    serde_json::from_str(&web::document(SERVICES).to_json().unwrap()).unwrap()
}

fn calls(document: &Value) -> Vec<DocumentedCall> {
    let mut calls = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            calls.push(DocumentedCall {
                at: format!("{} {path}", method.to_uppercase()),
                path: path.clone(),
                method: method.clone(),
                operation: operation.clone(),
            });
        }
    }
    calls
}

impl DocumentedCall {
    fn parameters(&self, place: &str) -> Vec<&Value> {
        let all = self.operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().filter(|parameter| parameter["in"] == place).collect()
    }

    fn names(&self, place: &str) -> BTreeSet<&str> {
        self.parameters(place).iter().filter_map(|parameter| parameter["name"].as_str()).collect()
    }

    /// The schema of the body of the answer with this status, resolved.
    fn answer<'a>(&self, document: &'a Value, status: &str) -> Option<&'a Value> {
        let schema = &self.operation["responses"][status]["content"]["application/json"]["schema"];
        resolve(document, schema["$ref"].as_str()?)
    }
}

fn resolve<'a>(document: &'a Value, reference: &str) -> Option<&'a Value> {
    document.pointer(reference.strip_prefix('#')?)
}

fn schemas(document: &Value) -> impl Iterator<Item = (&String, &Value)> {
    document["components"]["schemas"].as_object().into_iter().flatten()
}

/// Every property of every schema: where it is, its name, its schema.
fn properties(document: &Value) -> Vec<(String, &str, &Value)> {
    let mut found = Vec::new();
    for (schema, value) in schemas(document) {
        for (name, property) in value["properties"].as_object().into_iter().flatten() {
            found.push((format!("{schema}.{name}"), name.as_str(), property));
        }
    }
    found
}

/// The types a schema allows, that of a referred schema included.
fn types(document: &Value, schema: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    match &schema["type"] {
        Value::String(one) => found.extend([one.clone()]),
        Value::Array(all) => {
            found.extend(all.iter().filter_map(|one| Some(one.as_str()?.to_owned())))
        }
        _ => {}
    }
    if let Some(reference) = schema["$ref"].as_str() {
        found.extend(types(document, resolve(document, reference).unwrap()));
    }
    for part in schema["oneOf"].as_array().into_iter().flatten() {
        found.extend(types(document, part));
    }
    found
}

fn is_timestamp(schema: &Value) -> bool {
    let refers = |schema: &Value| schema["$ref"] == "#/components/schemas/Timestamp";
    refers(schema) || schema["oneOf"].as_array().into_iter().flatten().any(refers)
}

#[test]
fn every_list_has_the_one_paging_dialect() {
    let document = document();
    let mut lists = 0;
    for call in calls(&document) {
        let streams = call.operation.to_string().contains("text/event-stream");
        let Some(answer) = call.answer(&document, "200") else { continue };
        let fields = &answer["properties"];
        for old in ["outcomes", "leases", "rows", "entries", "list", "next", "more_after"] {
            let is_list = fields[old]["type"] == "array" && fields.as_object().unwrap().len() < 4;
            assert!(!is_list, "{}: a list is items, not {old}", call.at);
        }
        let has_items = fields["items"]["type"] == "array";
        assert_eq!(
            has_items && call.method == "get",
            call.names("query").contains("limit") && !streams,
            "{}: a list takes limit and answers items",
            call.at
        );
        if call.method == "get" && has_items {
            lists += 1;
            assert!(call.names("query").is_superset(&["limit", "cursor"].into()), "{}", call.at);
            let required = answer["required"].as_array().unwrap();
            for name in ["items", "next_cursor"] {
                assert!(required.contains(&name.into()), "{}: {name} is always there", call.at);
            }
            assert_eq!(
                types(&document, &fields["next_cursor"]),
                ["null", "string"].map(String::from).into()
            );
        }
        let old = ["from", "offset", "page", "count", "most", "after", "before", "size", "start"];
        // A range of time goes from one moment to another; a list does not begin somewhere.
        let is_range = call.names("query").is_superset(&["from", "to"].into());
        for name in old.into_iter().filter(|name| !(is_range && *name == "from")) {
            assert!(!call.names("query").contains(name), "{}: {name} in the query", call.at);
        }
    }
    assert!(lists >= 14, "only {lists} lists found");
}

/// Times that are called as people say it: blocked until, waiting since.
fn is_said_so(at: &str) -> bool {
    ["UserChange.until", "PresenceChoice.until", "ChatConversation.waiting_since"].contains(&at)
}

/// The schema's mean time to a response, in minutes, by its own name.
fn is_of_the_schema(at: &str) -> bool {
    at == "DeskDashboard.avg_response_time"
}

#[test]
fn times_are_rfc_3339_under_one_spelling() {
    let document = document();
    let mut times = 0;
    for (at, name, schema) in properties(&document) {
        // The clock of the answer itself is no time of a thing.
        let is_named = name.ends_with("_at") || name == "server_time" || is_said_so(&at);
        assert_eq!(is_named, is_timestamp(schema), "{at}: a time is …_at and a Timestamp");
        times += usize::from(is_named);
        let epoch = ["at_ms", "_time", "timestamp", "_date", "until", "_at_ms"];
        // Clients of another waiting room send theirs in a heartbeat; it is ignored.
        let known = name == "server_time"
            || at == "HeartbeatRequest.timestamp"
            || is_said_so(&at)
            || is_of_the_schema(&at);
        let old = epoch.iter().any(|end| name.ends_with(end)) && !known;
        assert!(!old, "{at}: a time is …_at");
    }
    assert!(times >= 20, "only {times} times found");
    let timestamp = &document["components"]["schemas"]["Timestamp"];
    assert_eq!((&timestamp["type"], &timestamp["format"]), (&"string".into(), &"date-time".into()));
}

#[test]
fn durations_are_whole_and_say_their_unit() {
    let document = document();
    let units = ["_ms", "_seconds"];
    // Words that mean a time span, without its unit. `timeout`, `delay` … must not stand alone.
    let bare = ["timeout", "delay", "ttl", "duration", "wait", "interval", "window", "took", "age"];
    let other = ["_us", "_ns", "_minutes", "_secs", "_sec", "_millis", "_s"];
    for (at, name, schema) in properties(&document) {
        if units.iter().any(|unit| name.ends_with(unit)) {
            let types = types(&document, schema);
            assert!(types.contains("integer"), "{at}: a duration is an integer, not {types:?}");
        }
        let number = types(&document, schema).iter().any(|one| one == "integer" || one == "number");
        assert!(!(number && bare.iter().any(|word| name.ends_with(word))), "{at}: say the unit");
        assert!(!other.iter().any(|unit| name.ends_with(unit)), "{at}: milliseconds or seconds");
    }
}

#[test]
fn states_and_kinds_are_enums() {
    let document = document();
    let closed =
        ["status", "state", "kind", "outcome", "role", "reason_code", "algorithm", "backoff"];
    let mut enums = 0;
    for (at, name, schema) in properties(&document) {
        // The status of an audit entry and of reported requests is that of HTTP; the role of an audit entry
        // is of a caller who may have none.
        if !closed.contains(&name)
            || ["AuditEntry.status", "AuditEntry.role", "ReportedRequests.status"]
                .contains(&at.as_str())
        {
            continue;
        }
        let refers = |schema: &Value| {
            let target = resolve(&document, schema["$ref"].as_str()?)?;
            target["enum"].as_array().map(Vec::len)
        };
        let parts = schema["oneOf"].as_array().into_iter().flatten();
        let found = refers(schema).or_else(|| parts.filter_map(refers).next());
        assert!(found.is_some(), "{at} has a closed set of values and is no enum: {schema}");
        enums += 1;
    }
    assert!(enums >= 12, "only {enums} enums found");
    for (name, schema) in schemas(&document) {
        for value in schema["enum"].as_array().into_iter().flatten() {
            let value = value.as_str().unwrap();
            let plain = value
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.".contains(&b));
            assert!(plain || name == "PassAlgorithm", "{name}: {value} is not what an answer says");
        }
    }
}

#[test]
fn what_a_query_or_a_path_takes_is_an_enum_or_a_time_where_it_is_one() {
    let document = document();
    let closed = ["status", "state", "view", "sort", "order", "outcome", "protocol", "format"];
    let times = ["from", "to", "since", "until"];
    let mut found = 0;
    for call in calls(&document) {
        let own = ["query", "path"].iter().flat_map(|place| call.parameters(place));
        for parameter in own {
            let (name, schema) = (parameter["name"].as_str().unwrap(), &parameter["schema"]);
            let is_enum = |schema: &Value| {
                let referred = schema["$ref"].as_str().and_then(|name| resolve(&document, name));
                referred.unwrap_or(schema)["enum"].is_array()
            };
            let parts = || schema["oneOf"].as_array().into_iter().flatten();
            if closed.contains(&name) {
                assert!(is_enum(schema) || parts().any(is_enum), "{}: {name} is no enum", call.at);
                found += 1;
            }
            if times.contains(&name) {
                assert!(is_timestamp(schema), "{}: {name} is no Timestamp: {schema}", call.at);
                found += 1;
            }
        }
    }
    assert!(found >= 20, "only {found} found");
}

#[test]
fn names_are_such_that_generated_code_can_carry_them() {
    let document = document();
    for call in calls(&document) {
        let id = call.operation["operationId"].as_str().unwrap();
        let tag = call.operation["tags"][0].as_str().unwrap();
        let plain = id.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        assert!(plain && id.contains(|c: char| c != '_'), "{}: {id}", call.at);
        assert!(!id.starts_with(tag), "{}: {id} repeats its tag {tag}", call.at);
        let places = ["path", "query", "header"].map(|place| call.parameters(place).len());
        let names: BTreeSet<_> = ["path", "query", "header"]
            .iter()
            .flat_map(|place| call.names(place).into_iter().map(move |name| (place, name)))
            .collect();
        assert_eq!(places.iter().sum::<usize>(), names.len(), "{}: a name twice", call.at);
    }
    for (name, _) in schemas(&document) {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric());
        assert!(plain && name.starts_with(|c: char| c.is_ascii_uppercase()), "{name}");
        for end in ["View", "Row", "Body", "Dto", "Struct"] {
            assert!(
                !name.ends_with(end) || name == "ErrorBody",
                "{name} names our code, not the thing"
            );
        }
        for word in
            ["Row", "Rows", "Done", "Left", "Stop", "Choice", "Entry", "Change", "Changed", "Check"]
        {
            assert_ne!(name, word, "too general a name for generated code");
        }
    }
}

#[test]
fn every_property_and_every_parameter_is_described() {
    let document = document();
    for (at, _, schema) in properties(&document) {
        let text = schema["description"].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{at} has no description");
    }
    for (name, schema) in schemas(&document) {
        // A time needs no words of its own: every field that is one has them.
        let text = schema["description"].as_str().unwrap_or_default();
        assert!(!text.is_empty() || name == "Timestamp", "{name} has no description");
    }
    for call in calls(&document) {
        for place in ["path", "query", "header"] {
            for parameter in call.parameters(place) {
                let text = parameter["description"].as_str().unwrap_or_default();
                assert!(!text.is_empty(), "{}: {} has no description", call.at, parameter["name"]);
            }
        }
    }
}

#[test]
fn a_field_that_may_be_left_out_is_optional_in_generated_code() {
    let document = document();
    for (at, _, schema) in properties(&document) {
        // A generator counts a field with a default as always there, and asks for it in requests.
        assert!(schema.get("default").is_none(), "{at} has a default");
    }
    for call in calls(&document) {
        let body = &call.operation["requestBody"];
        for content in body["content"].as_object().into_iter().flatten().map(|(_, value)| value) {
            let reference = content["schema"]["$ref"].as_str();
            let schema = resolve(&document, reference.expect(&call.at)).unwrap();
            // `null` means "no body", which `required: false` says.
            assert_eq!(types(&document, schema), ["object".to_owned()].into(), "{}", call.at);
        }
    }
}

#[test]
fn a_body_names_all_its_fields_and_a_free_object_says_so() {
    let document = document();
    for call in calls(&document) {
        let content = &call.operation["requestBody"]["content"]["application/json"];
        let Some(reference) = content["schema"]["$ref"].as_str() else { continue };
        let schema = resolve(&document, reference).unwrap();
        assert_eq!(schema["additionalProperties"], false, "{}: {reference}", call.at);
    }
    let mut free = 0;
    let all = properties(&document).into_iter().map(|(at, _, schema)| (at, schema));
    for (at, schema) in all.chain(schemas(&document).map(|(name, schema)| (name.clone(), schema))) {
        let own = match &schema["type"] {
            Value::String(one) => one == "object",
            Value::Array(all) => all.contains(&"object".into()),
            _ => false,
        };
        if own && schema.get("properties").is_none() {
            let values = &schema["additionalProperties"];
            assert!(*values == true || values.is_object(), "{at}: what may be in it? {schema}");
            free += 1;
        }
    }
    assert!(free >= 5, "only {free} free objects found");
}

#[test]
fn every_body_has_an_example_that_fits_its_schema() {
    let document = document();
    let mut bodies = 0;
    for call in calls(&document) {
        for content in call.operation["requestBody"]["content"].as_object().into_iter().flatten() {
            let (_, content) = content;
            let example =
                content["example"].as_object().unwrap_or_else(|| panic!("{}: no example", call.at));
            let schema = resolve(&document, content["schema"]["$ref"].as_str().unwrap()).unwrap();
            for (name, value) in example {
                let property = schema["properties"].get(name);
                let property = property.unwrap_or_else(|| panic!("{}: no field {name}", call.at));
                let allowed = types(&document, property);
                let fits = match value {
                    Value::Null => allowed.contains("null"),
                    Value::Bool(_) => allowed.contains("boolean"),
                    Value::Number(_) => allowed.contains("integer") || allowed.contains("number"),
                    Value::String(_) => allowed.contains("string"),
                    Value::Array(_) => allowed.contains("array"),
                    Value::Object(_) => allowed.contains("object"),
                };
                assert!(
                    fits || allowed.is_empty(),
                    "{}: {name} is {allowed:?}, not {value}",
                    call.at
                );
            }
            let required = schema["required"].as_array().into_iter().flatten();
            for name in required.filter_map(Value::as_str) {
                assert!(example.contains_key(name), "{}: the example has no {name}", call.at);
            }
            bodies += 1;
        }
    }
    assert!(bodies >= 25, "only {bodies} bodies found");
}

#[test]
fn who_may_call_is_told_of_every_operation() {
    let document = document();
    assert!(document["servers"][0]["url"].is_string());
    let schemes = document["components"]["securitySchemes"].as_object().unwrap();
    let mut public = 0;
    for call in calls(&document) {
        let security = call.operation["security"].as_array();
        let security = security.unwrap_or_else(|| panic!("{}: no security", call.at));
        let is_public = PUBLIC.iter().any(|start| call.path.starts_with(start));
        let guarded = call.path.starts_with("/api/v1/") && !is_public;
        let optional = call.path == "/metrics";
        assert_eq!(guarded, !security.is_empty() && !optional, "{}: {security:?}", call.at);
        public += usize::from(security.is_empty());
        for name in security.iter().flat_map(|entry| entry.as_object().unwrap().keys()) {
            assert!(schemes.contains_key(name), "{}: {name}", call.at);
        }
    }
    assert!(public >= 12, "only {public} public operations found");
}

/// Calls of the API that need no credential: those with which a position is taken or a session opened, and
/// what everybody may know.
const PUBLIC: [&str; 9] = [
    "/api/v1/agents/accept",
    "/api/v1/agents/login",
    "/api/v1/queues/{queue_id}/enqueue",
    "/api/v1/queues/{queue_id}/now",
    "/api/v1/widget/availability",
    "/api/v1/widget/config",
    "/api/v1/widget/files/",
    "/api/v1/widget/return",
    "/api/v1/widget/sessions",
];

#[test]
fn delete_has_no_body_and_keys_are_told_where_they_work() {
    let document = document();
    let mut with_key = BTreeSet::new();
    for call in calls(&document) {
        assert!(
            call.method != "delete" || call.operation.get("requestBody").is_none(),
            "{}",
            call.at
        );
        let creates = call.operation["responses"].get("201").is_some();
        let takes_key = call.names("header").contains("Idempotency-Key");
        assert!(takes_key || !creates, "{} creates and takes no Idempotency-Key", call.at);
        if takes_key {
            assert!(creates || CREATES_WITHOUT_201.contains(&call.at.as_str()), "{}", call.at);
            with_key.insert(call.at);
        }
    }
    assert!(with_key.len() >= 8, "only {with_key:?} found");
}

/// Calls that may create and answer otherwise: many at once, a change of what may be there, and those
/// whose repetition would do their work twice: admit more visitors, run a schedule once more, replace a
/// secret that was just handed out, send an e-mail. All other calls are safe to repeat by what they mean, or need the lease
/// they were given.
const CREATES_WITHOUT_201: [&str; 23] = [
    "POST /api/v1/agents/{agent_id}/invitation",
    "POST /api/v1/conversations/{id}/transcript",
    "POST /api/v1/widget/conversations/{id}/transcript",
    "POST /api/v1/admin/keys/rotate",
    "POST /api/v1/admin/queues/{queue_id}/admit",
    "POST /api/v1/jobs/bulk",
    "POST /api/v1/jobs/schedules/{id}/run",
    "POST /api/v1/webhooks/{id}/secret",
    "POST /api/v1/webhooks/{id}/test",
    "PUT /api/v1/jobs/schedules/{id}",
    "POST /api/v1/dns/groups/{id}/service-windows",
    "POST /api/v1/dns/groups/{id}/windows",
    "POST /api/v1/dns/lists/{id}/windows",
    "POST /api/v1/dns/pauses",
    "POST /api/v1/dns/records",
    "POST /api/v1/dns/rules",
    "POST /api/v1/dns/timed-rules",
    "POST /api/v1/dns/upstreams",
    "PUT /api/v1/dns/clients/{id}",
    "PUT /api/v1/dns/groups/{group}/services/{id}",
    "PUT /api/v1/dns/groups/{id}",
    "PUT /api/v1/dns/lists/{id}",
    "PUT /api/v1/dns/services/{id}",
];

#[test]
fn what_the_waiting_room_reports_is_what_the_document_lists() {
    // Scripts and calls name their events as texts; all of them are in the enum, and none besides.
    let document = document();
    let listed: BTreeSet<&str> = document["components"]["schemas"]["RoomEventType"]["enum"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let room = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../room");
    let mut reported = BTreeSet::new();
    let mut folders = vec![room.join("lua"), room.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for quoted in text.split(['\'', '"']) {
                let Some((subject, word)) = quoted.split_once('.') else { continue };
                let plain =
                    word.bytes().all(|b| b.is_ascii_lowercase()) && word.ends_with(['d', 'e']);
                if ["position", "session", "queue"].contains(&subject) && plain {
                    reported.insert(format!("waitingroom.{quoted}.v1"));
                }
            }
        }
    }
    assert_eq!(reported.iter().map(String::as_str).collect::<BTreeSet<_>>(), listed);
}
