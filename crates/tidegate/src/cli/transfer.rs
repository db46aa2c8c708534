//! `tidegate store backup`, `restore` and `move`: data to a file, back, and from store to store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use store::key_map::KeyMaps;
use store::transfer::{
    self, BackupSource, MoveOptions, MoveStep, ServerHold, TransferProgress, WriteHold,
};
use store::{Millis, Options, Store};
use web::cli::client::{RUNNING, RunningServer};
use web::cli::{Context, Failure, Outcome, Progress, admin_token};
use web::config::Config;
use web::config::load::LoadedConfig;
use web::config::value::hide_password;
use web::error::chain;
use web::time::Timestamp;

use crate::services::SERVICES;
use crate::store_password;

/// `backup FILE`.
pub(crate) fn back_up(file: &Path, without_pause: bool, context: &Context<'_>) -> Outcome {
    let config = context.load()?.config;
    let url = config.store_url();
    let progress = TransferProgress::default();
    let report = block_on(async {
        let source = match (url.strip_prefix("embedded:"), config.store_folder()) {
            (Some(_), Some(folder)) => BackupSource::Folder(folder),
            (Some(_), None) => {
                return Err(Failure::usage(
                    "a store in memory only cannot be backed up from outside",
                )
                .next("--store embedded:FOLDER, or the URL of a server"));
            }
            (None, _) => BackupSource::Store {
                store: open(&url, &config).await?,
                shown: hide_password(&url),
                pause_writes: !without_pause,
            },
        };
        let _bar = bar(context, "backing up", &progress);
        transfer::back_up(source, file, &progress).await.map_err(failed)
    })?;
    let output = context.output;
    let paused_ms = report.paused.map(|paused| paused.as_millis() as u64);
    if output.json {
        return output.value(&json!({
            "file": file,
            "keys": report.keys,
            "commands": report.commands,
            "bytes": report.bytes,
            "consistent": report.consistent,
            "paused_ms": paused_ms,
        }));
    }
    output.line(&format!("{} keys, {} bytes: {}", report.keys, report.bytes, file.display()))?;
    match (report.consistent, paused_ms) {
        (true, Some(ms)) => output.line(&format!("as of one moment; writes waited for {ms} ms")),
        (true, None) => output.line("as of one moment; nobody had to wait"),
        (false, _) => output.line(
            "each key as of some moment during the backup: leave out --without-pause for one moment",
        ),
    }
}

/// `restore FILE`.
pub(crate) fn restore(file: &Path, context: &Context<'_>) -> Outcome {
    let loaded = context.load()?;
    let config = &loaded.config;
    let url = config.store_url();
    let progress = TransferProgress::default();
    let report = block_on(async {
        // Before the store is opened, which may make a folder.
        transfer::check_file(file).map_err(failed)?;
        let store = open(&url, config).await?;
        let _bar = bar(context, "restoring", &progress);
        transfer::restore(file, &store, &key_maps(&loaded), &progress).await.map_err(failed)
    })?;
    let output = context.output;
    if output.json {
        return output.value(&json!({
            "file": file,
            "store": hide_password(&url),
            "keys": report.keys,
            "keys_now": report.keys_now,
            "checksum": report.checksum.to_string(),
            "keys_of_other_programs": report.foreign,
        }));
    }
    output.line(&format!(
        "{} keys of the backup, {} in {} now; each was read back and is the same",
        report.keys,
        report.keys_now,
        hide_password(&url)
    ))
}

/// `check FILE`, of a backup.
pub(crate) fn check_file(file: &Path, context: &Context<'_>) -> Outcome {
    let report = transfer::check_file(file).map_err(failed)?;
    let created_at = json!(Timestamp::from(Millis(report.header.created_at_ms)));
    let output = context.output;
    if output.json {
        return output.value(&json!({
            "file": file,
            "keys": report.keys,
            "commands": report.commands,
            "bytes": report.bytes,
            "source": report.header.source,
            "layout": report.header.layout,
            "created_at": created_at,
            "consistent": report.header.consistent,
        }));
    }
    output.line(&format!(
        "{} keys, {} bytes, every record is whole; made of {} at {}",
        report.keys,
        report.bytes,
        report.header.source,
        created_at.as_str().unwrap_or_default()
    ))
}

/// `move FROM TO`.
pub(crate) fn move_store(from: &str, to: &str, switch: bool, context: &Context<'_>) -> Outcome {
    let loaded = context.load()?;
    let config = &loaded.config;
    let output = context.output;
    if from == to {
        return Err(Failure::usage("source and target are the same store"));
    }
    if to == "embedded:" || from == "embedded:" {
        return Err(Failure::usage("a store in memory only ends with its process")
            .next("embedded:FOLDER, or the URL of a server"));
    }
    let source_name = hide_password(from);
    let report = block_on(async {
        let source = open_source(from, config).await?;
        let target = open(to, config).await?;
        let progress = TransferProgress::default();
        let _bar = bar(context, "moving", &progress);
        let hold = (switch || source.running.is_some()).then(|| ServerHold::new(&source.store));
        if let Some(pid) = source.running {
            output.note(&format!(
                "process {pid} uses {source_name}: it takes writes until the switch"
            ));
        }
        let maps = key_maps(&loaded);
        let on_step = |step| {
            if let Some(text) = describe(step) {
                output.note(&text);
            }
        };
        let options = MoveOptions {
            source: &source_name,
            hold: hold.as_ref().map(|hold| hold as &dyn WriteHold),
            maps: &maps,
            progress: &progress,
            on_step: &on_step,
        };
        let moved = transfer::move_store(&source.store, &target, options).await.map_err(failed)?;
        if let Some(folder) = &source.folder {
            leave_forward(folder, to)?;
        }
        if source.running.is_some() {
            end_server(&source.store).await;
        }
        Ok(moved)
    })?;
    let held_ms = report.held.map(|held| held.as_millis() as u64);
    if output.json {
        return output.value(&json!({
            "from": source_name,
            "to": hide_password(to),
            "keys": report.keys,
            "checksum": report.checksum.to_string(),
            "keys_of_other_programs": report.foreign,
            "held_ms": held_ms,
        }));
    }
    output.line(&format!(
        "{} keys moved; every key was compared, checksum {}",
        report.keys, report.checksum
    ))?;
    if report.foreign > 0 {
        output.line(&format!(
            "{} keys belong to no service and were copied as they are",
            report.foreign
        ))?;
    }
    if let Some(ms) = held_ms {
        output
            .line(&format!("writes were refused for {ms} ms so far, and stay so at the source"))?;
    }
    output.line(&format!("start servers with --store '{}' from now on", hide_password(to)))
}

fn describe(step: MoveStep) -> Option<String> {
    Some(match step {
        MoveStep::Copying(false) => "copying all keys".to_owned(),
        MoveStep::Copying(true) => "continuing an interrupted move".to_owned(),
        MoveStep::CatchingUp(0) => return None,
        MoveStep::CatchingUp(keys) => format!("{keys} keys changed meanwhile; copying them"),
        MoveStep::Comparing => "comparing all keys".to_owned(),
        MoveStep::Holding => "the switch begins: writes are refused now".to_owned(),
        MoveStep::Finishing(keys) => format!("copying and comparing the last {keys} keys"),
    })
}

/// A store to move from.
struct MoveSource {
    store: Store,
    /// The folder of a built-in store.
    folder: Option<PathBuf>,
    /// The process that uses it, if it is in use.
    running: Option<u32>,
}

/// Opens the source: a server, a folder, or the running server of a folder in use.
async fn open_source(url: &str, config: &Config) -> Outcome<MoveSource> {
    let Some(folder) = url.strip_prefix("embedded:").map(PathBuf::from) else {
        return Ok(MoveSource { store: open(url, config).await?, folder: None, running: None });
    };
    if !folder.join("manifest").exists() {
        return Err(Failure::usage(format!("there is no store in {}", folder.display())));
    }
    if let Some(to) = forward_of(&folder) {
        return Err(was_moved(&folder, &to));
    }
    match Store::open_with(url, transfer::options()).await {
        Ok(store) => Ok(MoveSource { store, folder: Some(folder), running: None }),
        Err(store::Error::Locked { .. }) => {
            let note = std::fs::read_to_string(config.server.data.join(RUNNING)).ok();
            let note = note.and_then(|text| serde_json::from_str::<RunningServer>(&text).ok());
            let is_ours = config.store_folder().is_some_and(|ours| same_folder(&ours, &folder));
            let (Some(note), true) = (note, is_ours) else {
                return Err(Failure::failed(format!(
                    "{} is in use by a server that is not of this data folder",
                    folder.display()
                ))
                .next("name its data folder with --data, or stop it first"));
            };
            let resp = note.resp.filter(|resp| resp.starts_with("redis://")).ok_or_else(|| {
                Failure::failed("the running server has no RESP listener to copy from")
                    .next("stop it first, or start it with resp.listen and without resp.tls")
            })?;
            let password = std::fs::read_to_string(store_password::path(&config.server.data))
                .map_err(|error| Failure::failed(format!("cannot read the password: {error}")))?;
            let login = format!("redis://{}:{}@", store_password::USER, password.trim());
            let store = open(&resp.replacen("redis://", &login, 1), config).await?;
            Ok(MoveSource { store, folder: Some(folder), running: Some(note.pid) })
        }
        Err(error) => Err(failed(error)),
    }
}

fn same_folder(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Opens a store to copy from or to.
async fn open(url: &str, config: &Config) -> Outcome<Store> {
    let options = Options { fsync: config.store.fsync, ..transfer::options() };
    let url = store_password::fill_in(url, config);
    Store::open_with(&url, options).await.map_err(|error| {
        let told = format!("cannot open {}: {}", hide_password(&url), chain(&error));
        match error {
            store::Error::Unavailable { .. } => {
                Failure::unreachable(told).next("is the server up?")
            }
            store::Error::Locked { .. } => Failure::failed(told).next("stop that process first"),
            _ => Failure::failed(told).next("`tidegate serve --help` shows the kinds of URLs"),
        }
    })
}

/// Stops the server whose store was moved; it goes on with the target by itself.
async fn end_server(store: &Store) {
    let mut shutdown = store.clone();
    // The end of the connection is the answer.
    let ending = store::redis::cmd("SHUTDOWN").query_async::<()>(&mut shutdown).await;
    tracing::debug!(?ending, "the server was asked to end");
}

/// The keys of all services in both layouts.
pub(crate) fn key_maps(loaded: &LoadedConfig) -> KeyMaps {
    KeyMaps(SERVICES.iter().filter_map(|service| service.key_map(&loaded.values)).collect())
}

/// Name of the file in the folder of a built-in store that was moved, with the URL of its new place.
const FORWARD: &str = "moved-to";

/// Leaves in the folder of a store where its data is now.
fn leave_forward(folder: &Path, to: &str) -> Outcome {
    let to = match to.strip_prefix("embedded:") {
        Some(path) => std::path::absolute(path)
            .map(|path| format!("embedded:{}", path.display()))
            .unwrap_or_else(|_| to.to_owned()),
        None => to.to_owned(),
    };
    Ok(admin_token::write_private(&folder.join(FORWARD), &to)?)
}

/// The URL of the store that the data of this folder was moved to.
pub(crate) fn forward_of(folder: &Path) -> Option<String> {
    let text = std::fs::read_to_string(folder.join(FORWARD)).ok()?;
    Some(text.trim().to_owned()).filter(|url| !url.is_empty())
}

/// The failure to use a folder whose data is elsewhere now.
pub(crate) fn was_moved(folder: &Path, to: &str) -> Failure {
    let file = folder.join(FORWARD);
    Failure::failed(format!("the data of {} was moved to {}", folder.display(), hide_password(to)))
        .next(format!(
            "--store '{}', or remove {} to use the old data",
            hide_password(to),
            file.display()
        ))
}

fn bar(context: &Context<'_>, what: &'static str, progress: &TransferProgress) -> Progress {
    let progress = progress.clone();
    Progress::of_keys(context.output, what, move || (progress.done(), progress.total()))
}

fn failed(error: store::Error) -> Failure {
    match &error {
        store::Error::Unavailable { .. } => Failure::unreachable(chain(&error))
            .next("run the same command again: it goes on where it was"),
        store::Error::Locked { .. } => {
            Failure::failed(chain(&error)).next("stop that process first")
        }
        _ => Failure::failed(chain(&error)),
    }
}

fn block_on<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_secs(5));
    done
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use store::Layout;
    use web::config::Values;

    use super::*;

    /// A key of docs/keys.md with something in place of what varies.
    fn sample(pattern: &str) -> String {
        let mut text = pattern.to_owned();
        for (name, value) in [
            ("<namespace>", "bridge"),
            ("<queue>", "sale"),
            ("<base>", "ha:"),
            ("<prefix>", "ha:"),
            ("<policy>", "#login"),
            ("<user_id>", "123"),
            ("<session_id>", "MTIz~00000000000000000000000000000000"),
            ("<answer>", "dns:example.com:1:1"),
        ] {
            text = text.replace(name, value);
        }
        while let Some((start, rest)) = text.split_once('<') {
            let (_, rest) = rest.split_once('>').unwrap();
            text = format!("{start}x1{rest}");
        }
        text
    }

    #[test]
    fn every_documented_key_is_converted_between_the_layouts() {
        let values = Values::defaults(SERVICES);
        let mut maps: Vec<Arc<dyn store::key_map::KeyMap>> =
            SERVICES.iter().filter_map(|service| service.key_map(&values)).collect();
        maps.push(Arc::new(dns::DnsKeyMap));
        maps.push(Arc::new(desk::DeskKeyMap::default()));
        let scopes = [b"sale".to_vec()];
        let candidates = |key: &str, to| {
            let found = maps.iter().find_map(|map| map.place(key.as_bytes(), to, &scopes));
            found.map(|place| format!("{place:?}")).unwrap_or_default()
        };
        let shown = |key: &str| format!("{:?}", key.as_bytes());
        let mut converted = 0;
        for line in include_str!("../../../../docs/keys.md").lines() {
            let cells: Vec<&str> = line.split(" | ").collect();
            let [one, other, kind, ..] = cells.as_slice() else { continue };
            let Some(one) = one.strip_prefix("| `").and_then(|one| one.strip_suffix('`')) else {
                continue;
            };
            // Channels hold nothing, and most keys are spelled the same.
            if kind.starts_with("channel") || !other.starts_with('`') {
                continue;
            }
            let (one, other) = (sample(one), sample(other.trim_matches('`')));
            let there = candidates(&one, Layout::Cluster);
            assert!(there.contains(&shown(&other)), "{one} is {other} in a cluster, not {there}");
            let back = candidates(&other, Layout::Standalone);
            assert!(back.contains(&shown(&one)), "{other} is {one} on one server, not {back}");
            converted += 1;
        }
        assert!(converted > 80, "{converted}");
    }
}
