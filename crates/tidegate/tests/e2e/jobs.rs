//! The job queue from the command line.

use std::io::{BufRead, BufReader};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{Tidegate, command, run, text};

fn value(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

impl Tidegate {
    fn jobs(&self, args: &[&str]) -> Output {
        let mut all = vec!["jobs"];
        all.extend(args);
        self.run(&all)
    }

    fn dispatch(&self, args: &[&str]) -> String {
        let mut all = vec!["dispatch"];
        all.extend(args);
        let made = self.jobs(&all);
        assert!(made.status.success(), "{}", text(&made.stderr));
        text(&made.stdout).trim().to_owned()
    }

    fn show(&self, id: &str) -> Value {
        value(&self.jobs(&["show", id, "--json"]))
    }

    /// Runs a shell script for every job of a type until there are none, and says what came of each.
    fn drain(&self, kind: &str, script: &str) -> Vec<Value> {
        let done =
            self.jobs(&["exec", "--type", kind, "--drain", "--json", "--", "sh", "-c", script]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// A worker that goes on until it is stopped.
    fn worker(&self, args: &[&str]) -> Ended {
        let mut all = vec!["jobs", "exec"];
        all.extend(args);
        let mut command = command(self.path(), &all);
        Ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn until(&self, id: &str, what: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let view = self.show(id);
            if what(&view) {
                return view;
            }
            assert!(Instant::now() < deadline, "{view}");
        }
    }
}

/// A process that does not outlive its test.
struct Ended(Child);

impl Ended {
    fn stop(&mut self) -> (i32, String) {
        let pid = self.0.id().to_string();
        assert!(
            std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success()
        );
        self.end()
    }

    fn end(&mut self) -> (i32, String) {
        let mut out = String::new();
        std::io::Read::read_to_string(self.0.stdout.as_mut().unwrap(), &mut out).unwrap();
        (self.0.wait().unwrap().code().unwrap_or(-1), out)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_job_goes_from_dispatch_to_its_result() {
    let gate = Tidegate::start("embedded:", &[]);
    assert!(text(&gate.jobs(&["ls"]).stderr).contains("no jobs"));
    let id =
        gate.dispatch(&["mail", r#"{"to":"ann","n":1.0}"#, "--priority", "8", "--meta", "a=b"]);
    let list = text(&gate.jobs(&["ls", "--state", "waiting", "--type", "mail"]).stdout);
    assert!(list.contains(&id) && list.contains("waiting"), "{list}");
    assert_eq!(value(&gate.jobs(&["ls", "--text", "nobody", "--json"])), json!([]));
    let unroutable = value(&gate.jobs(&["stats", "--json"]));
    assert_eq!((&unroutable["waiting"], &unroutable["unroutable"]), (&json!(1), &json!(1)));

    // The payload comes as it was given, byte for byte.
    let script = r#"cat; echo "attempt $TIDEGATE_JOB_ATTEMPT of $TIDEGATE_JOB_ID" >&2"#;
    let done = gate.drain("mail", script);
    assert_eq!(
        (&done[0]["id"], &done[0]["outcome"], &done[0]["exit"]),
        (&json!(id), &json!("completed"), &json!(0))
    );
    let view = gate.show(&id);
    assert_eq!((&view["status"], &view["result"]["data"]["n"]), (&json!("completed"), &json!(1.0)));
    assert_eq!(view["log"][0]["line"], format!("attempt 1 of {id}"));
    let told = text(&gate.jobs(&["show", &id]).stdout);
    assert!(told.contains("completed") && told.contains("attempt 1 of"), "{told}");

    // The same again, waited for, with a text as the result.
    let mut worker =
        gate.worker(&["--type", "mail", "--worker", "w1", "--", "sh", "-c", "echo hello there"]);
    let waited = gate.jobs(&["dispatch", "mail", "--wait", "60s"]);
    assert_eq!(text(&waited.stdout).trim(), "\"hello there\"", "{}", text(&waited.stderr));
    let workers = value(&gate.jobs(&["workers", "--json"]));
    assert_eq!((&workers[0]["id"], &workers[0]["alive"]), (&json!("w1"), &json!(true)));
    assert_eq!(worker.stop().0, 0);
    assert_eq!(value(&gate.jobs(&["workers", "--json"])), json!([]));
    let events =
        text(&gate.jobs(&["tail", "--after", "0", "--lines", "3", "--json", "--job", &id]).stdout);
    let names: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].clone())
        .collect();
    assert_eq!(names, ["dispatched", "started", "completed"]);
}

#[test]
fn the_exit_code_decides() {
    let gate = Tidegate::start("embedded:", &[]);
    let retry = ["--retries", "1", "--backoff", "fixed", "--retry-delay", "1h"];
    let add = |id: &str| {
        let mut args = vec!["code", "--id", id];
        args.extend(retry);
        gate.dispatch(&args);
    };
    for code in ["0", "7", "75", "100", "101"] {
        add(&format!("x{code}"));
    }
    let done = gate.drain("code", "echo said >&2; exit ${TIDEGATE_JOB_ID#x}");
    let outcome = |id: &str| done.iter().find(|row| row["id"] == id).unwrap()["outcome"].clone();
    let got: Vec<Value> = ["x0", "x7", "x75", "x100", "x101"].map(outcome).into();
    assert_eq!(got, ["completed", "retry", "snoozed", "dead", "stopped"]);
    let state = |id: &str| {
        let view = gate.show(id);
        (
            view["status"].as_str().unwrap().to_owned(),
            view["result"]["error"]["name"].clone(),
            view["job"]["attempts"].clone(),
        )
    };
    assert_eq!(state("x0"), ("completed".to_owned(), Value::Null, json!(0)));
    assert_eq!(state("x7"), ("delayed".to_owned(), json!("Exit7"), json!(1)));
    assert_eq!(state("x75"), ("delayed".to_owned(), Value::Null, json!(0)));
    assert_eq!(state("x100"), ("dead".to_owned(), json!("Exit100"), json!(0)));
    assert_eq!(state("x101").0, "failed");
    assert_eq!(gate.show("x100")["result"]["error"]["message"], "said");

    // Dead letters are seen, and run again with another payload; the delayed one runs at once.
    let dead = text(&gate.jobs(&["dead"]).stdout);
    assert!(dead.contains("x100") && dead.contains("Exit100: said"), "{dead}");
    assert!(gate.jobs(&["replay", "x100", "--payload", "[7]"]).status.success());
    let all = gate.jobs(&["retry", "--all", "--type", "code", "--text", "x7\""]);
    assert_eq!(text(&all.stdout), "1 jobs\n", "{}", text(&all.stderr));
    gate.until("x7", |view| view["status"] == "waiting");
    let done = gate.drain("code", "cat");
    assert_eq!(done.len(), 2);
    assert_eq!(gate.show("x100")["result"]["data"], json!([7]));
    let cancelled = gate.jobs(&["cancel", "--all", "--state", "delayed", "--reason", "enough"]);
    assert_eq!(text(&cancelled.stdout), "1 jobs\n");
    assert_eq!(gate.show("x75")["result"]["error"]["message"], "enough");

    // Killed, too slow, and too talkative.
    gate.dispatch(&["end", "--id", "killed", "--retries", "0"]);
    gate.dispatch(&["end", "--id", "slow", "--retries", "0", "--timeout", "200ms"]);
    let script = r#"if [ $TIDEGATE_JOB_ID = slow ]; then sleep 60; else kill -9 $$; fi"#;
    gate.drain("end", script);
    assert_eq!(gate.show("killed")["result"]["error"]["name"], "Signal9");
    assert_eq!(gate.show("slow")["result"]["error"]["name"], "Timeout");
}

#[test]
fn a_cancelled_command_is_stopped_and_a_stopped_worker_hands_back() {
    let gate = Tidegate::start("embedded:", &[]);
    let script =
        r#"echo $$ >&2; trap 'echo told to stop >&2; exit 3' TERM; while :; do sleep 0.1; done"#;
    let args =
        ["--concurrency", "2", "--lease", "3s", "--grace", "200ms", "--", "sh", "-c", script];
    let mut worker = gate.worker(&args);
    let (one, two) = (gate.dispatch(&["spin"]), gate.dispatch(&["spin"]));
    gate.until(&one, |view| view["log"][0].is_object());
    gate.until(&two, |view| view["log"][0].is_object());
    let asked = gate.jobs(&["cancel", &one]);
    assert_eq!(text(&asked.stdout), format!("{one} asked\n"), "{}", text(&asked.stderr));
    let view = gate.until(&one, |view| view["status"] == "failed");
    assert_eq!(view["result"]["error"]["name"], "Cancelled");
    let pid = view["log"][0]["line"].as_str().unwrap().to_owned();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it still runs");

    let (code, out) = worker.stop();
    assert_eq!(code, 0);
    assert!(out.contains(&format!("{two}  spin  attempt 1  released")), "{out}");
    let view = gate.show(&two);
    assert_eq!((&view["status"], &view["job"]["attempts"]), (&json!("waiting"), &json!(0)));
    assert_eq!(view["history"], json!([]));
}

#[test]
fn types_pause_schedules_run_and_lines_of_json_are_dispatched() {
    let gate = Tidegate::start("embedded:", &[]);
    std::fs::write(
        gate.path().join("many"),
        "{\"type\":\"a\"}\n\n{\"type\":\"b\",\"priority\":99}\n{\"type\":\"a\"}\n",
    )
    .unwrap();
    let bulk = gate.jobs(&["dispatch", "--bulk", "many"]);
    assert_eq!(bulk.status.code(), Some(2), "one was refused");
    assert_eq!(text(&bulk.stdout).lines().count(), 2);
    assert!(text(&bulk.stderr).contains("line 3: "), "{}", text(&bulk.stderr));
    assert!(gate.jobs(&["pause", "a"]).status.success());
    assert_eq!(gate.drain("a", "cat"), [Value::Null; 0]);
    assert!(text(&gate.jobs(&["stats"]).stdout).contains("paused"));
    assert!(gate.jobs(&["resume", "a"]).status.success());
    assert_eq!(gate.drain("a", "cat").len(), 2);

    let put = ["schedules", "put", "tick", "--cron", "* * * * * *", "tick", "{\"n\":1}"];
    assert_eq!(text(&gate.jobs(&put).stdout), "tick stored\n");
    let list = value(&gate.jobs(&["schedules", "--json"]));
    assert_eq!(
        (&list[0]["job"]["id"], &list[0]["job"]["payload"]),
        (&json!("tick"), &json!({ "n": 1 }))
    );
    let mut worker = gate.worker(&["--type", "tick", "--", "cat"]);
    let mut lines = BufReader::new(worker.0.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        assert!(line.starts_with("tick  tick  attempt 1  completed"), "{line}");
    }
    assert_eq!(text(&gate.jobs(&["schedules", "pause", "tick"]).stdout), "tick paused\n");
    assert!(text(&gate.jobs(&["schedules"]).stdout).contains("paused"));
    assert_eq!(text(&gate.jobs(&["schedules", "resume", "tick"]).stdout), "tick resumed\n");
    assert_eq!(text(&gate.jobs(&["schedules", "rm", "tick"]).stdout), "tick removed\n");
    let preview = gate.jobs(&["schedules", "preview", "0 0 1 1 *", "--count", "2"]);
    let preview = text(&preview.stdout);
    assert_eq!(
        preview.lines().filter(|line| line.contains("-01-01T00:00:00Z")).count(),
        2,
        "{preview}"
    );
}

#[test]
fn what_goes_wrong_is_told_with_what_to_do() {
    let gate = Tidegate::start("embedded:", &[]);
    for (args, code, told) in [
        (&["show", "nope"][..], 3, "tidegate jobs ls"),
        (&["cancel", "nope"], 3, "tidegate jobs ls"),
        (&["schedules", "rm", "nope"], 3, "schedules ls"),
        (&["dispatch", "mail", "{to"], 2, "not JSON"),
        (&["dispatch", "ma il"], 2, "job type"),
        (&["dispatch", "mail", "--delay", "soon"], 2, "not a time"),
        (&["ls", "--state", "odd"], 2, "state"),
        (&["replay"], 2, "--all"),
        (&["exec", "--", "no-such-command-here"], 2, "no command"),
        (&["exec"], 2, "COMMAND"),
        (&["stats", "--server", "http://127.0.0.1:1"], 5, "--server"),
        (&["exec", "--server", "http://127.0.0.1:1", "--", "cat"], 5, "--server"),
    ] {
        let got = gate.jobs(args);
        let error = text(&got.stderr);
        assert_eq!(got.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(told), "{args:?}: {error}");
    }
    let id = gate.dispatch(&["mail"]);
    let wrong = gate.jobs(&["replay", &id]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("the job is waiting"), "{}", text(&wrong.stderr));
    let late = gate.jobs(&["dispatch", "mail", "--wait", "10ms"]);
    assert_eq!(late.status.code(), Some(1));

    // A reader that has seen enough is no failure.
    let mut tail = command(gate.path(), &["jobs", "tail", "--after", "0"]);
    let mut tail = Ended(tail.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(tail.0.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("dispatched"));
    drop(lines);
    gate.dispatch(&["mail"]);
    assert_eq!(tail.0.wait().unwrap().code(), Some(0));

    // A token for some types only.
    let made = gate.run(&[
        "token",
        "create",
        "--role",
        "worker",
        "--name",
        "w",
        "--scope",
        "jobs:type=sms",
    ]);
    std::fs::write(gate.path().join("scoped"), &made.stdout).unwrap();
    let with = |args: &[&str]| {
        let mut all = vec!["jobs"];
        all.extend(args);
        all.extend(["--token-file", "scoped"]);
        run(gate.path(), &all)
    };
    assert_eq!(with(&["dispatch", "mail"]).status.code(), Some(4));
    assert!(with(&["dispatch", "sms"]).status.success());
    assert_eq!(with(&["ls"]).status.code(), Some(4));
}
