//! Rules of the tree that no compiler knows. Each failure names file, line and rule.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every file git knows or would add, as path relative to the root and content.
fn files() -> Vec<(String, String)> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "git ls-files failed");
    String::from_utf8(listed.stdout)
        .unwrap()
        .lines()
        .filter_map(|path| {
            let text = std::fs::read_to_string(root().join(path)).ok()?;
            Some((path.to_owned(), text))
        })
        .collect()
}

fn complain(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

/// Lines of files for which `wrong` holds.
fn lines(
    files: &[(String, String)],
    choose: impl Fn(&str) -> bool,
    wrong: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| choose(path)) {
        for (number, line) in text.lines().enumerate() {
            if wrong(line) {
                found.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    found
}

#[test]
fn no_file_names_a_place_of_one_machine() {
    // Spelled in parts, so that this file does not find itself.
    let words = [["/wo", "rk/"].concat(), ["/root", "/"].concat(), ["/home/", "user"].concat()];
    let found = lines(
        &files(),
        |path| !path.ends_with("Cargo.lock") && !path.ends_with("package-lock.json"),
        |line| words.iter().any(|word| line.contains(word.as_str())),
    );
    complain("the tree must not name a path of one machine", &found);
}

#[test]
fn keys_are_built_in_keys_rs_only() {
    let raw = ["Key::", "raw("].concat();
    let found = lines(
        &files(),
        |path| {
            path.ends_with(".rs")
                && !path.ends_with("/keys.rs")
                && !path.starts_with("crates/store/")
                && !path.contains("/tests/")
                && !path.starts_with("xtask/")
        },
        |line| line.contains(&raw),
    );
    complain("a key is built in a service's keys.rs, nowhere else", &found);
}

#[test]
fn nothing_is_identified_by_its_address() {
    // A `const` has no one address: each codegen unit may hold a copy of its own. What has an
    // identity has a number or a name.
    let words = ["ptr::eq", "ptr::from_ref", "ptr::addr", "as *const", "&raw const"];
    let found = lines(
        &files(),
        |path| path.ends_with(".rs") && path.starts_with("crates/"),
        |line| words.iter().any(|word| line.contains(word)) && !line.contains("Arc::ptr_eq"),
    );
    complain("tell things apart by a number or a name, not by an address", &found);
}

#[test]
fn modules_have_no_mod_rs_and_open_with_what_they_are() {
    let mut found = Vec::new();
    for (path, text) in files() {
        if !path.ends_with(".rs") || !path.contains("/src/") || path.ends_with("/tests.rs") {
            continue;
        }
        if path.ends_with("/mod.rs") {
            found.push(format!("{path}: use foo.rs with foo/ beside it"));
        }
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        if !first.starts_with("//!") && !first.starts_with("#![") {
            found.push(format!("{path}: opens with {first:?}, not with //!"));
        }
    }
    complain("a module opens with //! and is foo.rs, not foo/mod.rs", &found);
}

#[test]
fn only_the_clock_asks_what_time_it_is() {
    let call = ["SystemTime::", "now"].concat();
    let found = lines(
        &files(),
        |path| {
            path.ends_with(".rs")
                && path.starts_with("crates/")
                && path.contains("/src/")
                && !path.starts_with("crates/store/src/clock")
                && !path.starts_with("crates/testkit/")
        },
        |line| line.contains(&call) && !line.trim_start().starts_with("//"),
    );
    complain("time is an argument: ask store::Clock", &found);
}

/// Files with asserts on less than a minute of real time, how many, and why they stay.
const TIMED_TESTS: [(&str, usize, &str); 9] = [
    (
        "crates/dns/tests/it/faults.rs",
        1,
        "a query during an outage waits for 20 ms, not for the timeout of 1.8 s",
    ),
    ("crates/dns/tests/it/upstream.rs", 1, "a silent upstream costs less than its share of 10 s"),
    (
        "crates/jobs-web/tests/it/credentials.rs",
        1,
        "a revoked credential ends within a second: promised",
    ),
    (
        "crates/tidegate/tests/e2e/chat_crash.rs",
        1,
        "an agent whose instance died is offline after its lease: promised",
    ),
    (
        "crates/tidegate/tests/e2e/desk.rs",
        1,
        "connections of a dead instance are gone within 15 s: promised",
    ),
    (
        "crates/tidegate/tests/e2e/dns_faults.rs",
        3,
        "policies reach every instance within a second: promised; 10 s: UDP has no share in an attack",
    ),
    (
        "crates/tidegate/tests/e2e/tracing.rs",
        2,
        "less than the collector's own timeouts of 5 s and 10 s",
    ),
    ("crates/web/src/serve/http2.rs", 1, "virtual time"),
    ("crates/web/tests/it/access.rs", 1, "a revoked token ends within a second: promised"),
];

#[test]
fn tests_do_not_measure_the_machine() {
    let (files, mut unexpected, mut timed) = (files(), Vec::new(), BTreeMap::new());
    for (path, text) in files.iter().filter(|(path, _)| {
        path.starts_with("crates/") && path.ends_with(".rs") && !path.starts_with("crates/testkit/")
    }) {
        for (number, line) in text.lines().enumerate() {
            if is_timed_assert(line) {
                let found: &mut Vec<String> = timed.entry(path.as_str()).or_default();
                found.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    for (path, found) in timed {
        let listed = TIMED_TESTS.iter().find(|(listed, ..)| *listed == path);
        if listed.is_none_or(|(_, count, _)| found.len() > *count) {
            unexpected.extend(found);
        }
    }
    complain(
        "a test passes on a slow machine: wait for a condition, or list it with a reason",
        &unexpected,
    );
}

/// Does the line assert that something took less than some seconds, by the clock?
fn is_timed_assert(line: &str) -> bool {
    let measures = ["elapsed()", "took", "mean"].iter().any(|word| line.contains(word));
    let bound = line.split_once(" < ").or(line.split_once(" <= ")).map(|(_, bound)| bound);
    let bound = bound.or(line
        .split_once("..")
        .filter(|(_, range)| range.contains("contains(&took)"))
        .map(|(_, end)| end));
    line.contains("assert!(") && measures && bound.is_some_and(is_less_than_a_minute)
}

/// Is this a constant time of less than a minute?
fn is_less_than_a_minute(bound: &str) -> bool {
    let bound = bound.trim_start_matches("std::time::").trim_start_matches("Duration::");
    let bound = bound.trim_start_matches("from_secs(");
    let digits: String = bound.chars().take_while(char::is_ascii_digit).collect();
    bound.starts_with("from_millis(") || digits.parse::<u64>().is_ok_and(|seconds| seconds < 60)
}

#[test]
fn ports_are_reserved_and_not_found() {
    let closed = ["bind(\"127.0.0.1:0\").unwrap()", ".local_addr()"].concat();
    let found = lines(&files(), |path| path.starts_with("crates/"), |line| line.contains(&closed));
    complain(
        "a port that was free a moment ago is taken by the next connection: testkit::reserve_port",
        &found,
    );
}

/// The Lua scripts: crates/<service>/lua/<verb>.lua and lua/lib/<function>.lua.
fn scripts(files: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    files
        .iter()
        .filter(|(path, _)| {
            path.contains("/lua/") && path.ends_with(".lua") && !path.contains("/tests/")
        })
        .map(|(path, text)| (path.as_str(), text.as_str()))
}

#[test]
fn every_script_says_in_its_head_what_it_does() {
    let files = files();
    let mut found = Vec::new();
    for (path, text) in scripts(&files) {
        let name = Path::new(path).file_stem().unwrap().to_str().unwrap();
        let service = path.split('/').nth(1).unwrap_or_default();
        // A first line for Dragonfly may stand before the head.
        let mut head = text.lines().skip_while(|line| line.starts_with("--!"));
        let first = head.next().unwrap_or_default();
        let is_lib = path.contains("/lua/lib/");
        let expect = if is_lib { format!("-- {name}") } else { format!("-- {service}/{name} -- ") };
        if !first.starts_with(&expect) {
            found.push(format!("{path}: opens with {first:?}, not with {expect:?}"));
        }
        if !is_lib {
            // Names, numbers and order of keys and arguments are checked beside the declarations.
            if !text.lines().any(|line| line.starts_with("-- REPLY")) {
                found.push(format!("{path}: has no -- REPLY line"));
            }
        }
    }
    complain("a script's head tells name, keys, arguments and reply", &found);
}

#[test]
fn scripts_take_time_and_chance_as_arguments() {
    let files = files();
    let mut found = Vec::new();
    for (path, text) in scripts(&files) {
        for (number, line) in text.lines().enumerate() {
            let code = line.split("--").next().unwrap_or_default();
            let upper = code.to_uppercase();
            let wrong = upper.contains("'TIME'")
                || upper.contains("\"TIME\"")
                || code.contains("math.random")
                || code.contains("os.time")
                || code.contains("os.clock");
            if wrong {
                found.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    complain("a script takes time and chance as arguments", &found);
}

/// String literals of a line of Lua, comments left out.
fn lua_texts(line: &str) -> Vec<&str> {
    let mut texts = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find(['\'', '"', '-']) {
        let (mark, after) = (&rest[at..=at], &rest[at + 1..]);
        match mark {
            "-" if after.starts_with('-') => break,
            "-" => rest = after,
            quote => {
                let Some((text, after)) = after.split_once(quote) else { break };
                texts.push(text);
                rest = after;
            }
        }
    }
    texts
}

#[test]
fn scripts_spell_no_key() {
    let files = files();
    // Every word that stands before a colon in some key.
    let mut words = BTreeSet::new();
    for (_, text) in files.iter().filter(|(path, _)| path.ends_with("/src/keys.rs")) {
        let code = text.split("#[cfg(test)]").next().unwrap();
        for literal in code.split('"').skip(1).step_by(2) {
            let (parts, _) = literal.rsplit_once(':').unwrap_or_default();
            let is_word = |part: &&str| {
                part.len() > 1 && part.chars().all(|c| c.is_ascii_lowercase() || "_-".contains(c))
            };
            words.extend(parts.split(':').filter(is_word));
        }
    }
    assert!(["jobs", "ratelimit", "queue", "position"].iter().all(|word| words.contains(word)));
    let looks_like_key = |text: &str| {
        let parts = text.rsplit_once(':').map(|(parts, _)| parts);
        parts.is_some_and(|parts| parts.split([':', '{', '}']).any(|part| words.contains(part)))
    };
    assert!(looks_like_key("jobs:data:") && looks_like_key("queue:"));
    assert!(!looks_like_key("v:") && !looks_like_key("{\"position_id\":\""));
    let mut found = Vec::new();
    for (path, text) in scripts(&files) {
        for (number, line) in text.lines().enumerate() {
            if lua_texts(line).into_iter().any(looks_like_key) {
                found.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    complain("keys are spelled in keys.rs: pass them, or name them in SCRIPT_CONSTANTS", &found);
}

#[test]
fn every_script_is_declared_and_every_declaration_has_a_file() {
    let files = files();
    let services: BTreeSet<&str> =
        scripts(&files).filter_map(|(path, _)| path.split('/').nth(1)).collect();
    let mut found = Vec::new();
    for service in services {
        let source = format!("crates/{service}/src/");
        let code: String = files
            .iter()
            .filter(|(path, _)| path.starts_with(&source))
            .map(|(_, text)| text.as_str())
            .collect();
        for (path, _) in
            scripts(&files).filter(|(p, _)| p.starts_with(&format!("crates/{service}/lua/")))
        {
            let name = Path::new(path).file_stem().unwrap().to_str().unwrap();
            let declared = if path.contains("/lua/lib/") {
                code.contains(&format!("\"{name}\""))
            } else {
                code.contains(&format!("{name} {{"))
            };
            if !declared {
                found.push(format!("{path}: no script! names it"));
            }
        }
    }
    complain("a script is declared with script! under its file's name", &found);
}

/// Every crate, and the crates of the tree it may depend on.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("engine", &[]),
    ("store", &["engine"]),
    ("resp", &["store", "engine"]),
    ("room", &["store"]),
    ("jobs", &["store"]),
    ("dns", &["store"]),
    ("desk", &["store"]),
    ("web", &["store"]),
    ("room-web", &["web", "store", "room"]),
    ("jobs-web", &["web", "store", "jobs"]),
    ("dns-web", &["web", "store", "dns"]),
    ("desk-web", &["web", "store", "desk"]),
    ("tidegate", &["web", "room-web", "jobs-web", "dns-web", "desk-web", "resp", "store"]),
    ("testkit", &["store", "engine", "resp"]),
];

#[test]
fn crates_depend_in_one_direction() {
    let allowed = DEPENDENCIES;
    let listed = allowed.iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>();
    let there = std::fs::read_dir(root().join("crates")).unwrap();
    let there = there.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(there.collect::<BTreeSet<_>>(), listed, "every crate has its row here");
    let mut found = Vec::new();
    for (name, may) in allowed {
        let manifest =
            std::fs::read_to_string(root().join(format!("crates/{name}/Cargo.toml"))).unwrap();
        let normal = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for (other, _) in allowed {
            let depends = |line: &str| {
                let rest = line.strip_prefix(other).unwrap_or_default();
                rest.starts_with(".workspace") || rest.starts_with(" = ")
            };
            if normal.lines().any(depends) && !may.contains(other) {
                found.push(format!("{name} must not depend on {other}"));
            }
        }
    }
    complain("crates depend in the direction of ARCHITECTURE.md", &found);
}

#[test]
fn only_the_web_crates_know_the_web_framework() {
    let mut found = Vec::new();
    for (path, text) in files() {
        let Some(name) = path.strip_prefix("crates/").and_then(|path| path.split('/').next())
        else {
            continue;
        };
        if name == "web" || name.ends_with("-web") || !path.ends_with("Cargo.toml") {
            continue;
        }
        let normal = text.split("[dev-dependencies]").next().unwrap_or_default();
        for framework in ["axum", "maud", "utoipa"] {
            if normal.lines().any(|line| line.starts_with(framework)) {
                found.push(format!("{path}: {framework}"));
            }
        }
    }
    complain("only web and the -web crates know axum and what is built on it", &found);
}

/// Leaves out the examples of the OpenAPI document, which may show a service at work.
fn without_examples(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = code;
    while let Some((before, after)) = rest.split_once("example = json!(") {
        kept.push_str(before);
        let mut depth = 1;
        let end = after.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        rest = end.map_or("", |end| &after[end..]);
    }
    kept + rest
}

#[test]
fn only_the_list_of_services_names_a_service() {
    // As a text, which a list that repeats another would have; help and examples may show a service.
    let services = ["room", "jobs", "dns", "desk"];
    let mut found = Vec::new();
    for (path, text) in files() {
        let is_shared = ["crates/web/src/", "crates/tidegate/src/", "crates/store/src/"]
            .iter()
            .any(|folder| path.starts_with(folder));
        if !is_shared || !path.ends_with(".rs") || path.starts_with("crates/tidegate/src/services")
        {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in without_examples(code).lines() {
            let names = |service: &&str| {
                let crates = [format!("{service}::"), format!("{service}_web::")];
                let words = ["\"", ".", " ", ":", "/"].map(|end| format!("\"{service}{end}"));
                let is_word = |word: &String| line.contains(word.as_str());
                crates.iter().any(|word| line.starts_with(&format!("use {word}")))
                    || words.iter().any(is_word)
            };
            if !line.trim_start().starts_with("//") && services.iter().any(names) {
                found.push(format!("{path}: {}", line.trim()));
            }
        }
    }
    complain("the frame, the store and the binary know services by their list only", &found);
}

#[test]
fn background_tasks_have_an_owner() {
    let spawn = ["tokio::", "spawn("].concat();
    let found = lines(
        &files(),
        |path| {
            path.ends_with(".rs")
                && path.contains("/src/")
                && !path.contains("/cli/")
                // It outlives the app, to send what the last requests left; `TraceExport` awaits it.
                && path != "crates/web/src/otel.rs"
                && (path.starts_with("crates/web/") || path.contains("-web/"))
        },
        |line| line.contains(&spawn),
    );
    complain("spawn on the tasks of the app, which awaits them", &found);
}

#[test]
fn scripts_for_people_can_be_started() {
    use std::os::unix::fs::PermissionsExt;
    for path in ["test", ".ci/run"] {
        let mode = std::fs::metadata(root().join(path)).unwrap().permissions().mode();
        assert!(mode & 0o111 != 0, "{path} is not executable");
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        assert!(text.starts_with("#!/usr/bin/env bash\n"), "{path} must start with env bash");
    }
}

#[test]
fn benchmarks_are_built_with_the_profile_that_ships() {
    let profile = |manifest: &str| {
        let text = std::fs::read_to_string(root().join(manifest)).unwrap();
        let (_, rest) = text.split_once("\n[profile.release]\n").expect("a release profile");
        let settings = rest.split("\n[").next().unwrap_or(rest);
        settings
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    for bench in ["bench/Cargo.toml", "bench/jobs/Cargo.toml"] {
        assert_eq!(profile(bench), profile("Cargo.toml"), "{bench}");
    }
}

#[test]
fn guarantees_name_tests_that_exist() {
    let files = files();
    let page = files.iter().find(|(path, _)| path == "docs/guarantees.md").unwrap();
    let mut named = 0;
    let mut found = Vec::new();
    for row in page.1.lines().filter(|line| line.starts_with("| ")) {
        let shown = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let tests: Vec<&str> =
            shown.split('`').skip(1).step_by(2).filter(|word| word.contains('_')).collect();
        let modules = shown.contains("::*`");
        if tests.is_empty() && !modules && !row.starts_with("| Promise") {
            found.push(format!("docs/guarantees.md: no test in {row:?}"));
        }
        for test in tests {
            let name = test.rsplit("::").next().unwrap_or_default();
            let needle = match name.strip_suffix('*') {
                Some(start) => format!("fn {start}"),
                None => format!("fn {name}("),
            };
            named += 1;
            if !files.iter().any(|(path, text)| path.ends_with(".rs") && text.contains(&needle)) {
                found.push(format!("docs/guarantees.md: there is no test {test}"));
            }
        }
    }
    assert!(named > 20, "only {named} tests found in docs/guarantees.md");
    complain("a promise names tests of this tree", &found);
}

#[test]
fn every_page_is_in_the_summary() {
    let files = files();
    let summary = &files.iter().find(|(path, _)| path == "docs/SUMMARY.md").unwrap().1;
    let pages = files.iter().filter_map(|(path, _)| path.strip_prefix("docs/"));
    let found: Vec<String> = pages
        .filter(|page| page.ends_with(".md") && *page != "SUMMARY.md")
        .filter(|page| !summary.contains(&format!("({page})")))
        .map(ToOwned::to_owned)
        .collect();
    complain("a page of docs/ is listed in docs/SUMMARY.md", &found);
}

/// The pages for people who work on the tree.
fn is_map(path: &str) -> bool {
    matches!(path, "ARCHITECTURE.md" | "CONTRIBUTING.md")
        || path.starts_with("docs/adding-")
        || path.starts_with("docs/life-of-")
}

#[test]
fn the_map_names_files_that_exist() {
    let files = files();
    let mut found = Vec::new();
    let mut named = 0;
    for (path, text) in files.iter().filter(|(path, _)| is_map(path)) {
        for word in text.split('`').skip(1).step_by(2) {
            let place = word.trim_end_matches("/*");
            let is_path = ["crates/", "xtask/", "docs/", "bench/", "examples/"]
                .iter()
                .any(|start| place.starts_with(start));
            if !is_path || place.contains(['<', '*', '{', ' ']) {
                continue;
            }
            named += 1;
            if !root().join(place).exists() {
                found.push(format!("{path}: there is no {place}"));
            }
        }
    }
    assert!(named > 20, "only {named} files named");
    complain("ARCHITECTURE, CONTRIBUTING and the how-to pages name files that exist", &found);
}

#[test]
fn samples_of_services_are_from_the_service_that_compiles() {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let source = std::fs::read_to_string(root().join("crates/web/tests/it/service.rs")).unwrap();
    let source = squeeze(&source);
    let mut found = Vec::new();
    for page in ["docs/adding-a-service.md", "docs/adding-an-endpoint.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        for sample in text.split("```rust").skip(1).filter_map(|rest| rest.split("```").next()) {
            if !source.contains(&squeeze(sample)) {
                found.push(format!("{page}: {}", sample.trim()));
            }
        }
    }
    complain("samples are copied from crates/web/tests/it/service.rs", &found);
}

/// One step of a walk in ARCHITECTURE.md.
struct Step<'a> {
    number: &'a str,
    from: &'a str,
    file: &'a str,
    function: &'a str,
}

impl<'a> Step<'a> {
    fn parse(row: &'a str) -> Option<Step<'a>> {
        let cells: Vec<&str> = row
            .trim()
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().trim_matches('`'))
            .collect();
        match cells[..] {
            [number, from, file, function, _] if number.parse::<u32>().is_ok() => {
                Some(Step { number, from, file, function })
            }
            _ => None,
        }
    }

    fn crate_name(&self) -> &'a str {
        self.file.split('/').nth(1).unwrap_or_default()
    }
}

#[test]
fn the_walks_name_functions_that_exist_and_go_down() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, walks) = text.split_once("\n## Five walks\n").expect("the walks");
    let walks = walks.split("\n## ").next().unwrap();
    let may_call = |from: &str, to: &str| {
        let (_, may) = DEPENDENCIES.iter().find(|(name, _)| *name == from).expect("a crate");
        from == to || may.contains(&to)
    };
    let (mut tables, mut steps, mut found) = (0, 0, Vec::new());
    for table in walks.split("| Step | From |").skip(1) {
        let rows: Vec<Step<'_>> = table.lines().filter_map(Step::parse).collect();
        tables += 1;
        steps += rows.len();
        for (at, step) in rows.iter().enumerate() {
            let place = format!("walk {tables}, step {}", step.number);
            let source = std::fs::read_to_string(root().join(step.file)).unwrap_or_default();
            let is_there = ["(", "<"]
                .iter()
                .any(|next| source.contains(&format!("fn {}{next}", step.function)));
            if !is_there {
                found.push(format!("{place}: no fn {} in {}", step.function, step.file));
            }
            let Some(from) = step.from.split(' ').next().filter(|from| !from.is_empty()) else {
                continue;
            };
            let Some(caller) = rows.iter().take(at).find(|row| row.number == from) else {
                found.push(format!("{place}: there is no step {from} before it"));
                continue;
            };
            let goes_down = may_call(caller.crate_name(), step.crate_name());
            if goes_down == step.from.ends_with('↑') {
                let (from, to) = (caller.crate_name(), step.crate_name());
                found.push(format!("{place}: {from} calls {to}, and the arrow says otherwise"));
            }
        }
    }
    assert!(tables == 5 && steps > 40, "{tables} walks, {steps} steps");
    complain("the walks in ARCHITECTURE.md are true", &found);
}

/// A path in a package may not lead out of it: what is outside is not published with it.
fn leads_out(path: &str, included: &str) -> bool {
    let mut depth = path.split('/').count() - 3;
    for part in included.split('/') {
        match part {
            ".." if depth == 0 => return true,
            ".." => depth -= 1,
            "." => {}
            _ => depth += 1,
        }
    }
    false
}

#[test]
fn packages_are_named_described_and_whole() {
    assert!(leads_out("crates/a/src/b.rs", "../../c") && !leads_out("crates/a/src/b.rs", "../c"));
    let files = files();
    let mut found = Vec::new();
    for (folder, _) in DEPENDENCIES {
        let text_of = |name: &str| {
            let path = format!("crates/{folder}/{name}");
            files.iter().find(|(known, _)| *known == path).map(|(_, text)| text.as_str())
        };
        let manifest = text_of("Cargo.toml").unwrap();
        let name = match *folder {
            "tidegate" => "tidegate".to_owned(),
            folder => format!("tidegate-{folder}"),
        };
        if !manifest.contains(&format!("\nname = \"{name}\"\n")) {
            found.push(format!("crates/{folder}: the package is not called {name}"));
        }
        if manifest.contains("\npublish.workspace") {
            continue;
        }
        for field in ["description", "readme", "keywords"] {
            if !manifest.contains(&format!("\n{field} = ")) {
                found.push(format!("crates/{folder}/Cargo.toml: no {field}"));
            }
        }
        if text_of("README.md").is_none() {
            found.push(format!("crates/{folder}: no README.md"));
        }
    }
    for (path, text) in &files {
        if !path.starts_with("crates/") || !path.contains("/src/") || !path.ends_with(".rs") {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for line in code.lines() {
            let included = ["include_str!(\"", "include_bytes!(\""].iter().find_map(|call| {
                line.split_once(call).and_then(|(_, rest)| rest.split('"').next())
            });
            if included.is_some_and(|included| leads_out(path, included)) {
                found.push(format!("{path}: {}", line.trim()));
            }
            // Relative to the package, not to the file.
            if line.trim_start().starts_with("#[folder = \"..") {
                found.push(format!("{path}: {}", line.trim()));
            }
        }
    }
    complain("a package has its name, says what it is, and includes only what is in it", &found);
}
