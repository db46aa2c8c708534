use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Tidegate, text};

/// Asks until the answer is as wanted; shows the last one if it never is.
fn until(gate: &Tidegate, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = gate.json(path);
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{path} stays at {answer}\n{}", gate.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_demo_lives_and_leaves_nothing_behind() {
    let mut gate = Tidegate::demo();
    until(&gate, "/api/v1/admin/queues", |now| now.to_string().contains("summer-tour"));
    let queue = "/api/v1/admin/queues/summer-tour/stats";
    let first = until(&gate, queue, |now| {
        let number = |name: &str| now[name].as_u64().unwrap();
        number("total_waiting") > 20 && number("total_active") > 5
    });
    until(&gate, queue, |now| {
        now["total_enqueued"].as_u64() > first["total_enqueued"].as_u64()
            && now["total_admitted"].as_u64() > first["total_admitted"].as_u64()
    });
    until(&gate, "/api/v1/jobs/stats", |now| {
        let number = |name: &str| now[name].as_u64().unwrap();
        number("processed") > 20 && number("failed") > 0 && number("schedules") == 3
    });
    let workers = gate.json("/api/v1/jobs/workers");
    assert_eq!(workers["items"].as_array().map(Vec::len), Some(5), "{workers}");
    let paused = gate.json("/api/v1/admin/queues/members-presale");
    assert_eq!(paused["status"], "paused", "{paused}");

    gate.signal("-TERM");
    assert_eq!(gate.wait(), 0, "{}", gate.log());
    let left: Vec<String> = std::fs::read_dir(gate.path().join("tidegate-data"))
        .unwrap()
        .map(|entry| text(entry.unwrap().file_name().as_encoded_bytes()))
        .collect();
    let secrets = ["admin-token", "room-secret", "store-password"];
    assert!(left.iter().all(|name| secrets.contains(&name.as_str())), "data was left: {left:?}");
}
