//! The alert rules and the Grafana dashboard in packaging/, tried with a real Prometheus that scrapes the
//! demo: every expression yields a series.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Tidegate, text};

const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus/alerts.yml");
const DASHBOARD: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/grafana/tidegate.json"));

/// A Prometheus of this test's own.
struct Prometheus {
    child: Child,
    base: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Starts it in a folder; it scrapes an instance every second.
    fn start(folder: &Path, gate: &Tidegate) -> Prometheus {
        let token = std::fs::read_to_string(gate.path().join("tidegate-data/admin-token")).unwrap();
        std::fs::write(folder.join("token"), token.trim()).unwrap();
        let target = gate.base.trim_start_matches("http://");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: ['{RULES}']\n\
             scrape_configs:\n  - job_name: tidegate\n    authorization: {{ credentials_file: token }}\n    \
             static_configs: [{{ targets: ['{target}'] }}]\n"
        );
        std::fs::write(folder.join("prometheus.yml"), config).unwrap();
        let port = testkit::reserve_port();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let child = Command::new("prometheus")
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("prometheus: {error}; apt-get install prometheus"));
        Prometheus { child, base: format!("http://127.0.0.1:{port}") }
    }

    /// Asks its API; `None` as long as it does not answer.
    fn get(&self, path: &str, query: &[(&str, &str)]) -> Option<Value> {
        let request =
            query.iter().fold(ureq::get(format!("{}{path}", self.base)), |request, (k, v)| {
                request.query(*k, *v)
            });
        let body = request.call().ok()?.body_mut().read_to_string().ok()?;
        serde_json::from_str(&body).ok()
    }

    /// The number of series that an expression yields now.
    fn series(&self, expression: &str) -> usize {
        let answer = self.get("/api/v1/query", &[("query", expression)]);
        answer.and_then(|answer| Some(answer["data"]["result"].as_array()?.len())).unwrap_or(0)
    }
}

/// The expressions of the dashboard, with its variables filled in.
fn panels() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let fill = |target: &Value| {
        let expression = target["expr"].as_str().unwrap();
        expression.replace("$job", "tidegate").replace("$__rate_interval", "1m")
    };
    targets.map(fill).collect()
}

/// The expressions of the rules, with comparisons that yield 0 or 1 instead of leaving series out: an
/// alert that does not fire must have something to watch all the same.
fn watched(prometheus: &Prometheus) -> Vec<String> {
    let rules = prometheus.get("/api/v1/rules", &[]).unwrap_or_default();
    let groups = rules["data"]["groups"].as_array().cloned().unwrap_or_default();
    let all =
        groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default());
    all.map(|rule| {
        let expression = rule["query"].as_str().unwrap().to_owned();
        ["==", ">"].iter().fold(expression, |expression, sign| {
            expression.replace(&format!(" {sign} "), &format!(" {sign} bool "))
        })
    })
    .collect()
}

#[test]
fn the_alert_rules_are_well_formed() {
    let checked = Command::new("promtool")
        .args(["check", "rules", RULES])
        .output()
        .unwrap_or_else(|error| panic!("promtool: {error}; apt-get install prometheus"));
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
}

#[test]
fn what_is_scraped_is_well_formed() {
    let gate = Tidegate::demo();
    let mut lint = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (_, scraped) = gate.get("/metrics");
    std::io::Write::write_all(&mut lint.stdin.take().unwrap(), scraped.as_bytes()).unwrap();
    let told = lint.wait_with_output().unwrap();
    let told = format!("{}{}", text(&told.stdout), text(&told.stderr));
    assert!(!told.contains("error while linting"), "{told}\n{scraped}");
}

/// A Redis client of a running demo.
struct StoreClient(String);

impl StoreClient {
    fn of(gate: &Tidegate) -> StoreClient {
        let address = gate.banner.split("redis://").nth(1).unwrap();
        let address = address.split_whitespace().next().unwrap().trim_end_matches('/');
        StoreClient(address.rsplit(':').next().unwrap().to_owned())
    }

    /// Asks for a number; nothing is 0.
    fn number(&self, words: &[&str]) -> f64 {
        let told = Command::new("redis-cli").args(["-p", &self.0]).args(words).output().unwrap();
        let told = text(&told.stdout);
        let told = told.trim().trim_start_matches("(integer) ");
        if told.is_empty() {
            0.0
        } else {
            told.parse().unwrap_or_else(|_| panic!("{words:?}: {told}"))
        }
    }
}

/// The value of a series in a scrape.
fn value(scraped: &str, series: &str) -> Option<f64> {
    let line = scraped
        .lines()
        .find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    line?.rsplit(' ').next()?.parse().ok()
}

/// Counters of the demo, and where the store has them.
const COUNTERS: [(&str, &[&str]); 6] = [
    (
        "tidegate_room_enqueued_total{queue=\"summer-tour\"}",
        &["HGET", "queue:summer-tour:state", "total_enqueued"],
    ),
    (
        "tidegate_room_admissions_total{queue=\"summer-tour\"}",
        &["HGET", "queue:summer-tour:state", "total_admitted"],
    ),
    (
        "tidegate_room_sessions_started_total{queue=\"summer-tour\"}",
        &["HGET", "queue:summer-tour:state", "total_claimed"],
    ),
    (
        "tidegate_room_enqueued_total{queue=\"members-presale\"}",
        &["HGET", "queue:members-presale:state", "total_enqueued"],
    ),
    ("tidegate_jobs_completed_total", &["GET", "bridge:metrics:jobs:processed"]),
    ("tidegate_jobs_failed_attempts_total", &["GET", "bridge:metrics:jobs:failed"]),
];

/// Gauges of the demo that stand still for seconds at a time, and where the store has them.
const GAUGES: [(&str, &[&str]); 3] = [
    (
        "tidegate_room_waiting{queue=\"members-presale\"}",
        &["ZCARD", "queue:members-presale:positions"],
    ),
    ("tidegate_jobs_workers", &["SCARD", "bridge:workers:active"]),
    ("tidegate_jobs_schedules", &["ZCARD", "bridge:jobs:cron"]),
];

#[test]
fn what_is_scraped_is_what_the_store_holds() {
    let gate = Tidegate::demo();
    let store = StoreClient::of(&gate);
    let truth = |rows: &[(&str, &[&str])]| -> Vec<f64> {
        rows.iter().map(|(_, words)| store.number(words)).collect()
    };
    let scraped = |rows: &[(&str, &[&str])]| -> Option<Vec<f64>> {
        let (_, answer) = gate.get("/metrics");
        rows.iter().map(|(series, _)| value(&answer, series)).collect()
    };
    // Until there is something to compare.
    let deadline = Instant::now() + Duration::from_secs(60);
    while truth(&COUNTERS).iter().any(|count| *count < 3.0) {
        assert!(Instant::now() < deadline, "{:?}\n{}", truth(&COUNTERS), gate.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    // Counters only grow: a scrape of after a look at the store and before another lies between them. What is
    // scraped may be a second old, so it is scraped until it has caught up.
    let before = truth(&COUNTERS);
    let counted = loop {
        let now = scraped(&COUNTERS).expect("every counter is there");
        if now.iter().zip(&before).all(|(now, before)| now >= before) {
            break now;
        }
        assert!(Instant::now() < deadline, "stays at {now:?}, the store has {before:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let after = truth(&COUNTERS);
    for (((series, _), now), after) in COUNTERS.iter().zip(&counted).zip(&after) {
        assert!(now <= after, "{series} is {now}, the store has {after}");
    }
    // Gauges are equal as soon as nothing has changed for as long as a scrape may be old.
    loop {
        let before = truth(&GAUGES);
        std::thread::sleep(Duration::from_millis(1_100));
        let now = scraped(&GAUGES);
        let after = truth(&GAUGES);
        if before == after {
            assert_eq!(now.as_ref(), Some(&after), "{GAUGES:?}");
            return;
        }
        assert!(Instant::now() < deadline, "the demo never stands still: {before:?} {after:?}");
    }
}

#[test]
fn every_expression_of_rules_and_dashboard_yields_a_series_of_the_demo() {
    let gate = Tidegate::demo();
    let folder = tempfile::tempdir().unwrap();
    let prometheus = Prometheus::start(folder.path(), &gate);
    let deadline = Instant::now() + Duration::from_secs(150);
    let (mut rules, mut missing) = (Vec::new(), panels());
    assert!(missing.len() > 30, "only {} expressions in the dashboard", missing.len());
    loop {
        if rules.is_empty() {
            rules = watched(&prometheus);
            missing.extend(rules.iter().cloned());
        }
        missing.retain(|expression| prometheus.series(expression) == 0);
        if missing.is_empty() && rules.len() >= 15 {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "of {} rules, no series for:\n{}\n{}",
            rules.len(),
            missing.join("\n"),
            std::fs::read_to_string(folder.path().join("log")).unwrap_or_default()
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}
