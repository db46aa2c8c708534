use crate::process::{Tidegate, text};

#[test]
fn the_demo_lives_and_leaves_nothing_behind() {
    let mut gate = Tidegate::demo();
    gate.until_json("/api/v1/admin/queues", |now| now.to_string().contains("summer-tour"));
    // The banner leads to the waiting page, and a link logs in once.
    let line = |label: &str| {
        let mut lines = gate.banner.lines();
        let found = lines.find_map(|line| line.trim().strip_prefix(label).map(str::trim));
        found.unwrap_or_else(|| panic!("no {label} in {}", gate.banner)).to_owned()
    };
    assert_eq!(line("Waiting page"), format!("{}/_wr/summer-tour", gate.base));
    let link = line("Log in");
    let status = |url: &str| {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .build()
            .into();
        let answer = agent.get(url).call().unwrap();
        (answer.status().as_u16(), answer.headers().contains_key("set-cookie"))
    };
    assert_eq!(status(&link), (303, true));
    assert_eq!(status(&link), (401, false), "it is good once");
    let code = link.rsplit('/').next().unwrap();
    assert!(!gate.log().contains(code), "the log has no code");
    let queue = "/api/v1/admin/queues/summer-tour/stats";
    let first = gate.until_json(queue, |now| {
        let number = |name: &str| now[name].as_u64().unwrap();
        number("total_waiting") > 20 && number("total_active") > 5
    });
    gate.until_json(queue, |now| {
        now["total_enqueued"].as_u64() > first["total_enqueued"].as_u64()
            && now["total_admitted"].as_u64() > first["total_admitted"].as_u64()
    });
    gate.until_json("/api/v1/jobs/stats", |now| {
        let number = |name: &str| now[name].as_u64().unwrap();
        number("processed") > 20 && number("failed") > 0 && number("schedules") == 3
    });
    let workers = gate.json("/api/v1/jobs/workers");
    assert_eq!(workers["items"].as_array().map(Vec::len), Some(5), "{workers}");
    // The household: twelve devices, filtered.
    let clients = gate.until_json("/api/v1/dns/clients", |now| {
        now["items"].as_array().is_some_and(|all| !all.is_empty())
    });
    assert_eq!(clients["items"].as_array().map(Vec::len), Some(12), "{clients}");
    gate.until_json("/api/v1/dns/statistics", |now| {
        let number = |name: &str| now[name].as_u64().unwrap();
        number("queries") > 20 && number("blocked") > 0 && number("memory_hits") > 0
    });
    // The shop's support: three agents at work, one of whom goes away; questions are asked and answered.
    assert_eq!(line("Shop"), format!("{}/demo/shop", gate.base));
    let presence = gate.until_json("/api/v1/presence", |now| {
        let there = now["items"].as_array().into_iter().flatten();
        there.filter(|one| one["status"] != "offline").count() >= 3
    });
    assert_eq!(presence["items"].as_array().map(Vec::len), Some(4), "{presence}");
    gate.until_json("/api/v1/conversations?status=open", |now| {
        let found = now["items"].as_array().into_iter().flatten();
        found.clone().any(|one| one["last_message"]["sender_role"] == "admin") && found.count() >= 4
    });
    let (status, page) = gate.get("/demo/shop");
    assert_eq!(status, 200);
    let told = |start: &str| {
        let after = page.split(start).nth(1).unwrap_or_else(|| panic!("{start} in {page}"));
        after.split("</code>").next().unwrap().to_owned()
    };
    let (email, password) = (told("log in as <code>"), told("with the password <code>"));
    let body = serde_json::json!({ "email": email, "password": password });
    let login = ureq::post(format!("{}/api/v1/agents/login", gate.base))
        .header("content-type", "application/json")
        .send(body.to_string())
        .unwrap();
    assert_eq!(login.status().as_u16(), 200, "a newcomer logs in as the page says");

    let paused = gate.json("/api/v1/admin/queues/members-presale");
    assert_eq!(paused["status"], "paused", "{paused}");

    gate.signal("-TERM");
    assert_eq!(gate.wait(), 0, "{}", gate.log());
    let left: Vec<String> = std::fs::read_dir(gate.path().join("tidegate-data"))
        .unwrap()
        .map(|entry| text(entry.unwrap().file_name().as_encoded_bytes()))
        .collect();
    // The folder was named by --data: the secrets, the resolver's files and the chat's archive may stay in it.
    let kept = ["admin-token", "dns", "room-secret", "store-password", "webhook-secret"];
    let may_stay = |name: &String| {
        kept.contains(&name.as_str()) || name.starts_with("desk.sqlite3") || name == "desk-files"
    };
    assert!(left.iter().all(may_stay), "data was left: {left:?}");
}
