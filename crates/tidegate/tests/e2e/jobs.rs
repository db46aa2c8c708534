//! The job queue from the command line.

use std::io::{BufRead, BufReader};
use std::process::{Child, Output, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::process::{Tidegate, command, run, text};
use crate::wait::{LONG, eventually, until};

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
        until(id, LONG, || self.show(id), what)
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
    let all = gate.jobs(&["retry", "--all", "--type", "code", "--text", "x7\"", "--yes"]);
    assert_eq!(text(&all.stdout), "1 job\n", "{}", text(&all.stderr));
    gate.until("x7", |view| view["status"] == "waiting");
    let done = gate.drain("code", "cat");
    assert_eq!(done.len(), 2);
    assert_eq!(gate.show("x100")["result"]["data"], json!([7]));
    let cancelled =
        gate.jobs(&["cancel", "--all", "--state", "delayed", "--reason", "enough", "--yes"]);
    assert_eq!(text(&cancelled.stdout), "1 job\n");
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
    // The lease is long: a cancellation does not wait for its renewal.
    let args =
        ["--concurrency", "2", "--lease", "1h", "--grace", "200ms", "--", "sh", "-c", script];
    let mut worker = gate.worker(&args);
    let (one, two) = (gate.dispatch(&["spin"]), gate.dispatch(&["spin"]));
    gate.until(&one, |view| view["log"][0].is_object());
    gate.until(&two, |view| view["log"][0].is_object());
    let started = Instant::now();
    let asked = gate.jobs(&["cancel", &one, "--reason", "wrong file"]);
    assert_eq!(text(&asked.stdout), format!("{one} asked\n"), "{}", text(&asked.stderr));
    let view = gate.until(&one, |view| view["status"] == "failed");
    let took = started.elapsed();
    assert!(took < testkit::HANG, "it took {took:?}");
    let error = &view["result"]["error"];
    assert_eq!((&error["name"], &error["message"]), (&json!("Cancelled"), &json!("wrong file")));
    let pid = view["log"][0]["line"].as_str().unwrap().to_owned();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it still runs");

    let (code, out) = worker.stop();
    assert_eq!(code, 0);
    assert!(out.contains(&format!("{two}  spin  attempt 1  released")), "{out}");
    let view = gate.show(&two);
    assert_eq!((&view["status"], &view["job"]["attempts"]), (&json!("waiting"), &json!(0)));
    assert_eq!(view["history"], json!([]));
}

/// Processes whose command line has this word in it, but for those that are dead and not yet buried.
fn processes(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = text(&line).replace('\0', " ");
        if line.split_whitespace().any(|one| one == word) {
            found.push(format!("{} {line}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

#[test]
fn a_result_is_what_the_command_printed() {
    let gate = Tidegate::start("embedded:", &[]);
    let exact = r#"{"z":1,"a":123456789012345678901234567890,"c":1.10, "z":[ 1e999 ]}"#;
    gate.dispatch(&["echo", exact, "--id", "exact"]);
    assert_eq!(gate.drain("echo", "cat")[0]["outcome"], "completed");
    let (_, body) = gate.get("/api/v1/jobs/exact");
    assert!(body.contains(&format!("\"data\":{exact}")), "{body}");
    for json in [&[][..], &["--json"]] {
        let shown = gate.jobs(&[&["show", "exact"], json].concat());
        let shown = text(&shown.stdout);
        assert_eq!(shown.matches(exact).count(), 2, "{shown}");
    }

    // Texts, with what the shell would strip and JSON would escape; and bytes.
    for (id, script, kept) in [
        ("text", r"printf '  two\nlines \n\n'", json!("  two\nlines \n")),
        ("bytes", r"printf '\377\000\n'", json!({ "base64": "/wAK" })),
        ("none", "true", Value::Null),
    ] {
        gate.dispatch(&["print", "--id", id]);
        gate.drain("print", script);
        assert_eq!(gate.show(id)["result"]["data"], kept, "{id}");
    }
    let mut worker = gate.worker(&["--type", "wait", "--", "cat"]);
    let waited = gate.jobs(&["dispatch", "wait", exact, "--wait", "60s"]);
    assert_eq!(text(&waited.stdout).trim_end(), exact);
    worker.stop();
}

#[test]
fn a_result_that_does_not_fit_is_a_dead_letter_that_says_so() {
    let gate = Tidegate::start("embedded:", &["--set", "http.max_body=64kb"]);
    for (id, script) in [
        // Larger than the server's body with its escapes only; larger than a result may be, raw and
        // as JSON.
        ("escapes", "head -c 20000 /dev/zero"),
        ("body", "head -c 100000 /dev/zero | tr '\\0' x"),
        ("raw", "head -c 2000000 /dev/zero | tr '\\0' x"),
        ("json", "head -c 900000 /dev/zero"),
    ] {
        gate.dispatch(&["big", "--id", id, "--retries", "3"]);
        let done = gate.drain("big", script);
        assert_eq!((done.len(), &done[0]["outcome"]), (1, &json!("dead")), "{id}: {done:?}");
        let error = gate.show(id)["result"]["error"].clone();
        assert_eq!(error["name"], "BadResult", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("succeeded") && message.contains("bytes"), "{message}");
    }
    // Words that do not fit do not lose the failure either, nor does a flood of them the lease.
    gate.dispatch(&["loud", "--id", "loud", "--retries", "0"]);
    let script = "head -c 900000 /dev/zero | tr '\\0' '\\1' | fold -w 3000 >&2; sleep 1.5; exit 3";
    assert_eq!(gate.drain("loud", script)[0]["outcome"], "dead");
    assert_eq!(gate.show("loud")["result"]["error"]["name"], "Exit3");
}

#[test]
fn a_line_of_progress_never_ends_a_job() {
    let gate = Tidegate::start("embedded:", &[]);
    let id = gate.dispatch(&["work", "--retries", "0"]);
    let script = r#"for p in NaN inf -inf 1e999 x "" 150 -5; do echo "::progress $p" >&2; done
        head -c 100000 /dev/zero | tr '\0' x | sed 's/^/::progress 30 /' >&2; echo >&2
        sleep 1.5; echo "::progress 70% nearly" >&2; sleep 1.5; echo done"#;
    let done = gate.jobs(&["exec", "--type", "work", "--drain", "--", "sh", "-c", script]);
    let (out, error) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success() && out.contains("completed"), "{out}{error}");
    assert_eq!(error.matches("is not a percentage").count(), 1, "{error}");
    let view = gate.show(&id);
    assert_eq!(view["result"]["data"], "done");
    assert_eq!(view["progress"]["percent"], json!(70.0), "{view}");
}

/// A script whose process, child, and child in a session of its own carry a word; none of them heeds
/// SIGTERM, and all tell when they run.
fn stubborn(word: &str) -> String {
    format!(
        "trap '' TERM HUP INT
        sh -c 'trap \"\" TERM HUP INT; echo child >&2; while :; do sleep 0.1; done' {word} &
        setsid sh -c 'trap \"\" TERM HUP INT; echo other >&2; while :; do sleep 0.1; done' {word} &
        while :; do sleep 0.1; done"
    )
}

#[test]
fn no_process_of_a_job_outlives_its_worker() {
    let gate = Tidegate::start("embedded:", &[]);
    for (word, signal) in [("left-by-kill", "-KILL"), ("left-by-term", "-TERM")] {
        let id = gate.dispatch(&["spin"]);
        let script = stubborn(word);
        let args = ["--type", "spin", "--lease", "3s", "--kill-after", "300ms", "--grace", "100ms"];
        let mut worker = gate.worker(&[&args[..], &["--", "sh", "-c", &script, word]].concat());
        let pid = worker.0.id().to_string();
        gate.until(&id, |view| view["log"][1].is_object());
        assert!(processes(word).len() >= 4, "the worker and three more: {:?}", processes(word));
        let sent = std::process::Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(sent.success());
        worker.0.wait().unwrap();
        eventually("its processes are gone", || processes(word).is_empty());
        // It runs again, or is in line for that.
        gate.until(&id, |view| view["status"] != "active");
        assert_eq!(text(&gate.jobs(&["cancel", &id]).stdout), format!("{id} ended\n"));
    }
}

#[test]
fn what_a_command_leaves_running_ends_with_it() {
    let gate = Tidegate::start("embedded:", &[]);
    let id = gate.dispatch(&["leave"]);
    // The output of one that ends soon is part of the result; one that does not end is ended.
    let script = "(sleep 0.3; echo late) & setsid sh -c 'while :; do sleep 0.1; done' left-over & echo early";
    let done = gate.drain("leave", script);
    assert_eq!(done[0]["outcome"], "completed");
    assert_eq!(processes("left-over"), [""; 0]);
    assert_eq!(gate.show(&id)["result"]["data"], "early\nlate");
}

#[test]
fn a_command_does_not_get_the_token() {
    let gate = Tidegate::start("embedded:", &[]);
    let run = |more: &[&str]| {
        let id = gate.dispatch(&["env"]);
        let mut args = vec!["jobs", "exec", "--type", "env", "--drain", "--token-file", "worker"];
        args.extend(more);
        args.extend(["--", "env"]);
        std::fs::write(gate.path().join("worker"), gate.token()).unwrap();
        let mut command = command(gate.path(), &args);
        command.env("TIDEGATE_TOKEN", "secret-1").env("TIDEGATE_ROOM_SECRET", "secret-2");
        command.env("OTHER", "passed");
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        gate.show(&id)["result"]["data"].as_str().unwrap().to_owned()
    };
    let seen = run(&[]);
    assert!(seen.contains("OTHER=passed") && seen.contains("TIDEGATE_JOB_TYPE=env"), "{seen}");
    assert!(!seen.contains("secret"), "{seen}");
    let seen = run(&["--pass-env", "TIDEGATE_TOKEN"]);
    assert!(seen.contains("TIDEGATE_TOKEN=secret-1") && !seen.contains("secret-2"), "{seen}");
}

#[test]
fn a_worker_that_is_asked_to_log_names_the_attempt_on_each_line() {
    let gate = Tidegate::start("embedded:", &[]);
    let run = |level: Option<&str>| {
        let id = gate.dispatch(&["log"]);
        let args = ["jobs", "exec", "--type", "log", "--worker", "w1", "--drain", "--", "false"];
        let mut command = command(gate.path(), &args);
        if let Some(level) = level {
            command.env("TIDEGATE_LOG_LEVEL", level);
        }
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        (id, text(&done.stderr))
    };
    let (id, log) = run(Some("info"));
    let span = format!("attempt{{job={id} job_type=log attempt=1 worker=w1}}: ");
    for event in ["attempt started", "attempt ended outcome=\"retry\" exit=1 took_ms="] {
        assert!(log.lines().any(|line| line.contains(&format!("{span}{event}"))), "{event}: {log}");
    }
    let (_, log) = run(None);
    assert_eq!(log, "", "nothing is logged unasked");
}

#[test]
fn a_file_that_cannot_be_run_fails_the_worker_and_not_the_job() {
    use std::os::unix::fs::PermissionsExt;
    let gate = Tidegate::start("embedded:", &[]);
    let id = gate.dispatch(&["odd"]);
    let path = gate.path().join("odd.sh");
    std::fs::write(&path, "echo no first line\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    for drain in [&[][..], &["--drain"]] {
        let done = gate.jobs(&[&["exec", "--type", "odd"], drain, &["--", "./odd.sh"]].concat());
        let error = text(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{error}");
        assert!(error.contains("./odd.sh") && error.contains("format"), "{error}");
        let view = gate.show(&id);
        assert_eq!((&view["status"], &view["job"]["attempts"]), (&json!("waiting"), &json!(0)));
    }
}

#[test]
fn many_jobs_are_changed_only_when_that_is_meant() {
    let gate = Tidegate::start("embedded:", &[]);
    let ids: Vec<String> = (0..3).map(|_| gate.dispatch(&["mail"])).collect();
    gate.dispatch(&["dead", "--id", "d1"]);
    gate.drain("dead", "exit 100");
    for (args, would) in [
        (&["cancel", "--all"][..], "this would cancel 3 jobs in state waiting"),
        (&["replay", "--all", "--type", "dead"], "this would replay 1 job in state dead"),
        (&["retry", "--all"], "this would retry 0 jobs in state delayed"),
        (&["dead", "--remove"], "this would remove 1 job in state dead"),
    ] {
        let asked = gate.jobs(args);
        let error = text(&asked.stderr);
        assert_eq!(asked.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(would) && error.contains("--yes"), "{args:?}: {error}");
        let dry = gate.jobs(&[args, &["--dry-run"]].concat());
        assert!(dry.status.success());
        assert!(text(&dry.stderr).contains(would), "{}", text(&dry.stderr));
        assert_eq!(gate.jobs(&[args, &["--dry-run", "--yes"]].concat()).status.code(), Some(2));
    }
    let dry = text(&gate.jobs(&["cancel", "--all", "--dry-run"]).stdout);
    assert!(ids.iter().all(|id| dry.contains(&format!("{id}  mail"))), "{dry}");
    assert!(ids.iter().all(|id| gate.show(id)["status"] == "waiting"));
    assert_eq!(text(&gate.jobs(&["cancel", "--all", "--yes"]).stdout), "3 jobs\n");
    assert_eq!(text(&gate.jobs(&["dead", "--remove", "--yes"]).stdout), "1 job\n");
    assert_eq!(gate.jobs(&["show", "d1"]).status.code(), Some(3));
}

#[test]
fn lines_are_dispatched_once_and_a_run_that_stops_says_where() {
    let gate = Tidegate::start("embedded:", &[]);
    let lines = |bad: usize| -> String {
        let line =
            |n| if n == bad { "no JSON\n".to_owned() } else { "{\"type\":\"a\"}\n".to_owned() };
        (1..=1_200).map(line).collect()
    };
    let count = || value(&gate.jobs(&["stats", "--json"]))["waiting"].as_u64().unwrap();

    // A file is looked at before anything happens.
    std::fs::write(gate.path().join("many"), lines(1_101)).unwrap();
    let stopped = gate.jobs(&["dispatch", "--bulk", "many"]);
    let error = text(&stopped.stderr);
    assert_eq!(stopped.status.code(), Some(2));
    assert!(
        error.contains("line 1101 is not JSON") && error.contains("nothing was dispatched"),
        "{error}"
    );
    assert_eq!((text(&stopped.stdout).len(), count()), (0, 0));

    // A pipe is taken as it comes; what was said goes on from there, and nothing is doubled.
    let pipe = |input: String, args: &[&str]| {
        let mut all = vec!["jobs", "dispatch", "--bulk", "-", "--json"];
        all.extend(args);
        let mut command = command(gate.path(), &all);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::spawn(move || std::io::Write::write_all(&mut stdin, input.as_bytes()));
        child.wait_with_output().unwrap()
    };
    let stopped = pipe(lines(1_101), &[]);
    let error = text(&stopped.stderr);
    assert_eq!(stopped.status.code(), Some(2));
    assert!(error.contains("lines up to 1100 are done: 1100 dispatched, 0 refused"), "{error}");
    assert_eq!(count(), 1_100);
    let out = text(&stopped.stdout);
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!((&last["line"], &last["new"]), (&json!(1_100), &json!(true)));
    let mut told = error.split("--idempotency-key ").nth(1).unwrap().split_whitespace();
    let (key, flag, line) = (told.next().unwrap(), told.next().unwrap(), told.next().unwrap());
    assert_eq!((flag, line), ("--from-line", "1101"));
    assert!(pipe(lines(0), &["--key", key, "--from-line", "1001"]).status.success());
    assert_eq!(count(), 1_200);
    assert!(pipe(lines(0), &["--key", key]).status.success());
    assert_eq!(count(), 1_200);
    // Without a key each run is one of its own.
    assert!(gate.jobs(&["dispatch", "--bulk", "many", "--from-line", "1102"]).status.success());
    assert_eq!(count(), 1_299);
    let mixed = gate.jobs(&["dispatch", "--bulk", "many", "--priority", "3"]);
    assert_eq!(mixed.status.code(), Some(2));
    assert!(text(&mixed.stderr).contains("cannot be used with"), "{}", text(&mixed.stderr));
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
    let preview = gate.jobs(&["schedules", "preview", "0 0 1 1 *", "--limit", "2"]);
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
    // Of several, the one that is not there is named, and the others are done.
    let other = gate.dispatch(&["mail"]);
    let some = gate.jobs(&["cancel", "nope-1", &id, "nope-2", &other]);
    assert_eq!(some.status.code(), Some(3));
    assert_eq!(text(&some.stdout), format!("{id} ended\n{other} ended\n"));
    let error = text(&some.stderr);
    assert!(error.contains("nope-1: ") && error.contains("error: nope-2: "), "{error}");
    let mut wrong = command(gate.path(), &["jobs", "ls"]);
    let wrong = wrong.env("TIDEGATE_TOKEN", "tg_admin_nonsense").output().unwrap();
    assert_eq!(wrong.status.code(), Some(4));
    let error = text(&wrong.stderr);
    assert!(error.contains("the token in TIDEGATE_TOKEN is not valid"), "{error}");
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
