//! `tidegate doctor`: looks at everything that could go wrong, and says how to fix each.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use store::redis;
use web::error::chain;

use crate::serve::open_store;
use web::cli::Context;
use web::cli::admin_token;
use web::cli::client::{RUNNING, RunningServer};
use web::cli::{Exit, Failure, Outcome};
use web::cli::{Output, Tone};
use web::config::Config;
use web::doctor::{Diagnosis, Finding, FindingState, check_address};

pub(crate) fn run(context: &Context<'_>) -> Outcome {
    let output = context.output;
    let loaded = context.load()?;
    let config = &loaded.config;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start the runtime: {error}")))?;
    let running = running(&config.server.data);
    let mut findings = vec![
        Finding::good(
            "configuration",
            loaded.file.as_ref().map_or_else(
                || "no file; defaults, environment and flags".to_owned(),
                |path| path.display().to_string(),
            ),
        ),
        folder(&config.server.data),
        token(&config.server.data),
        disk(&config.server.data),
        files(config.http.max_connections),
        check_address(config.http.listen, "http.listen", running.as_ref()),
    ];
    let diagnosis = Diagnosis { config, values: &loaded.values, running: running.as_ref() };
    findings.extend(runtime.block_on(web::service::diagnose(context.services, &diagnosis)));
    // Only the built-in store is served on this port.
    if let Some(address) = config.resp.listen.0
        && config.store.url.0.starts_with("embedded:")
    {
        findings.push(check_address(address, "resp.listen", running.as_ref()));
    }
    findings.extend(runtime.block_on(store(config, running.as_ref())));
    findings.extend(runtime.block_on(web::otel::check(&config.otel)));

    report(output, &findings)?;
    let bad = findings.iter().filter(|finding| finding.state == FindingState::Bad).count();
    if bad > 0 {
        return Err(Failure::new(
            Exit::Failed,
            format!("{bad} of {} checks failed", findings.len()),
        ));
    }
    Ok(())
}

fn report(output: &Output, findings: &[Finding]) -> Outcome {
    if output.json {
        return output.value(&findings);
    }
    for finding in findings {
        let mark = match finding.state {
            FindingState::Good => output.paint(Tone::Good, "ok  "),
            FindingState::Warning => output.paint(Tone::Warn, "warn"),
            FindingState::Bad => output.paint(Tone::Bad, "FAIL"),
        };
        output.line(&format!("{mark}  {:<14} {}", finding.what, finding.found))?;
        if let Some(fix) = &finding.fix {
            output.line(&format!("      {:<14} fix: {fix}", ""))?;
        }
    }
    Ok(())
}

/// The server that says it runs on this folder, if its process is there.
fn running(data: &Path) -> Option<RunningServer> {
    let text = std::fs::read_to_string(data.join(RUNNING)).ok()?;
    let running: RunningServer = serde_json::from_str(&text).ok()?;
    // A process that has ended may be listed until somebody asks how: `pid (name) Z …`.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", running.pid)).ok()?;
    let state = stat.rsplit_once(')')?.1.trim_start();
    (!state.starts_with(['Z', 'X'])).then_some(running)
}

fn folder(data: &Path) -> Finding {
    let shown = data.display();
    match std::fs::metadata(data) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::good("data folder", format!("{shown} will be made at first start"))
        }
        Err(error) => Finding::bad("data folder", format!("{shown}: {error}"), "set --data"),
        Ok(meta) if !meta.is_dir() => {
            Finding::bad("data folder", format!("{shown} is not a folder"), "set --data")
        }
        Ok(meta) if meta.permissions().mode() & 0o077 != 0 => Finding::warning(
            "data folder",
            format!("{shown} is open to other users"),
            format!("chmod 700 {shown}"),
        ),
        Ok(_) => match tempfile_in(data) {
            Ok(()) => Finding::good("data folder", format!("{shown}, private and writable")),
            Err(error) => Finding::bad(
                "data folder",
                format!("cannot write in {shown}: {error}"),
                "run as the folder's owner, or chown it",
            ),
        },
    }
}

fn tempfile_in(data: &Path) -> std::io::Result<()> {
    let path = data.join(format!(".doctor-{}", std::process::id()));
    std::fs::write(&path, b"x")?;
    std::fs::remove_file(path)
}

fn token(data: &Path) -> Finding {
    let path = admin_token::path(data);
    match std::fs::metadata(&path) {
        Err(_) if !data.exists() => Finding::good("admin token", "will be made at first start"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::good("admin token", "will be made at next start")
        }
        Err(error) => Finding::bad("admin token", error.to_string(), "run as the folder's owner"),
        Ok(meta) if meta.permissions().mode() & 0o077 != 0 => Finding::bad(
            "admin token",
            format!("{} can be read by others", path.display()),
            format!("chmod 600 {}", path.display()),
        ),
        Ok(_) => Finding::good("admin token", format!("{}, private", path.display())),
    }
}

/// Free space where the data is.
fn disk(data: &Path) -> Finding {
    let folder = data.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match rustix::fs::statvfs(folder) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize) / (1 << 20);
            let found = format!("{free} MB free");
            match free {
                0..100 => Finding::bad(
                    "disk",
                    found,
                    "make room: the built-in store refuses writes when full",
                ),
                100..1024 => Finding::warning("disk", found, "make room before the disk is full"),
                _ => Finding::good("disk", found),
            }
        }
        Err(error) => Finding::warning("disk", error.to_string(), "check the data folder's disk"),
    }
}

/// Files that a server may open, which raises its own limit as far as it can, against the connections it is
/// set to take.
fn files(connections: usize) -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let Some(most) = limit.maximum else { return Finding::good("open files", "no limit") };
    let needed = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(256);
    if most >= needed {
        return Finding::good("open files", format!("limit {most}"));
    }
    Finding::warning(
        "open files",
        format!("limit {most}, but http.max_connections is {connections}"),
        format!(
            "LimitNOFILE={needed} in systemd, ulimit -Hn {needed} as root, or a lower \
             http.max_connections"
        ),
    )
}

async fn store(config: &Config, running: Option<&RunningServer>) -> Vec<Finding> {
    if config.store.url.0.starts_with("embedded:") {
        return built_in(config.store_folder().as_deref(), running);
    }
    let opened = tokio::time::timeout(Duration::from_secs(5), open_store(config)).await;
    let store = match opened {
        Ok(Ok(store)) => store,
        Ok(Err(failure)) => {
            let fix = failure.next.unwrap_or_else(|| "check store.url".to_owned());
            return vec![Finding::bad("store", failure.message, fix)];
        }
        Err(_) => {
            return vec![Finding::bad(
                "store",
                "did not open within 5 s",
                "check store.url and the network",
            )];
        }
    };
    let health = store.health();
    let kind = match health.kind {
        store::StoreKind::Embedded => "built in",
        store::StoreKind::Single => "one server",
        store::StoreKind::Sentinel => "the server that Sentinels name",
        store::StoreKind::Cluster => "a cluster",
    };
    let answers = match store.ping().await {
        Ok(()) => Finding::good("store", format!("{kind} at {}", health.address)),
        Err(error) => Finding::bad("store", chain(&error), "is the server up?"),
    };
    vec![answers, clock(&store).await]
}

/// Looks at the files of the built-in store, without opening it: that would mend them.
fn built_in(folder: Option<&Path>, running: Option<&RunningServer>) -> Vec<Finding> {
    let Some(folder) = folder else {
        return vec![
            Finding::warning(
                "store",
                "built in, in memory only: gone with the process",
                "--store embedded:FOLDER",
            ),
            Finding::good("clock", "nothing kept to compare it with"),
        ];
    };
    let shown = folder.display();
    let store = match running {
        Some(running) => {
            Finding::good("store", format!("built in, held by process {}", running.pid))
        }
        None if !folder.join("manifest").exists() => {
            Finding::good("store", format!("built in, {shown} will be filled at first start"))
        }
        None => match store::embedded::check(folder) {
            Ok(report) => match report.damage {
                Some(damage) => Finding::bad(
                    "store",
                    damage,
                    format!("tidegate store check {shown} --repair NEW_FOLDER keeps what is good"),
                ),
                None => Finding::good("store", format!("built in, {} keys, whole", report.keys)),
            },
            Err(error) => Finding::bad("store", chain(&error), "set --store or --data"),
        },
    };
    vec![store, clock_since(folder)]
}

/// Checks that this machine's clock is not behind the store's files: what it counts down by the
/// clock would stand still until then.
fn clock_since(folder: &Path) -> Finding {
    let written = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.metadata().ok()?.modified().ok())
        .max();
    let now = u64::try_from(store::Clock::system().now().0).unwrap_or(0);
    let now = std::time::UNIX_EPOCH + Duration::from_millis(now);
    match written.map(|written| written.duration_since(now)) {
        None => Finding::good("clock", "nothing kept to compare it with"),
        Some(Ok(ahead)) if ahead > Duration::from_secs(5) => Finding::bad(
            "clock",
            format!("{} s behind the last write to {}", ahead.as_secs(), folder.display()),
            "set the clock, and run a time service (chrony)",
        ),
        Some(_) => Finding::good("clock", "not behind the store's last write"),
    }
}

/// Compares this machine's clock with the server's.
async fn clock(store: &store::Store) -> Finding {
    let asked = redis::cmd("TIME").query_async::<(i64, i64)>(&mut store.clone()).await;
    match asked {
        Ok((seconds, micros)) => {
            let here = store::Clock::system().now().0;
            let apart = (here - (seconds * 1000 + micros / 1000)).abs();
            let found = format!("{apart} ms from the server's");
            match apart {
                0..1000 => Finding::good("clock", found),
                1000..30_000 => Finding::warning("clock", found, "run a time service (chrony)"),
                _ => Finding::bad("clock", found, "run a time service (chrony)"),
            }
        }
        Err(error) => {
            Finding::warning("clock", error.to_string(), "the server did not tell its time")
        }
    }
}
