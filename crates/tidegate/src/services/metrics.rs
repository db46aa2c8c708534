//! The metrics of all services: their names follow rules, and docs/metrics.md lists them.

use std::collections::BTreeSet;

use web::metrics::{MetricKind, reference, tables};

use super::SERVICES;

#[test]
fn the_page_of_metrics_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let made = reference::page(SERVICES);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(kept == made, "docs/metrics.md is out of date: run `cargo xtask codegen`");
}

#[test]
fn names_of_metrics_follow_rules_and_are_unique() {
    let mut names = BTreeSet::new();
    for info in tables(SERVICES) {
        let name = info.name;
        assert!(names.insert(name), "{name} is declared twice");
        assert!(name.starts_with("tidegate_"), "{name}");
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!(name.bytes().all(plain), "{name}");
        assert_eq!(info.kind == MetricKind::Counter, name.ends_with("_total"), "{name}");
        if let MetricKind::Histogram(bounds) = info.kind {
            assert!(name.ends_with("_seconds"), "{name}");
            assert!(bounds.is_sorted() && bounds.len() <= 20, "{name}");
        }
        assert!(info.help.ends_with('.') && !info.help.contains('\n'), "{name}: {}", info.help);
    }
    // Every name that some crate reports by is declared.
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    for name in
        ["web", "room", "room-web", "jobs", "jobs-web", "store", "resp", "dns-web", "desk-web"]
    {
        for text in sources(&std::path::Path::new(crates).join(name).join("src")) {
            for part in text.split("!(\"tidegate_").skip(1).map(|part| part.split('"').next()) {
                let used = format!("tidegate_{}", part.unwrap_or_default());
                assert!(names.contains(used.as_str()), "{used} of {name} is not declared");
            }
        }
    }
}

/// The texts of all Rust files in a folder.
fn sources(folder: &std::path::Path) -> Vec<String> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            texts.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            texts.push(std::fs::read_to_string(&path).unwrap());
        }
    }
    texts
}
