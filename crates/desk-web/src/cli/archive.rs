//! `tidegate desk archive`, `export` and `import`: tools on the archive itself, which need no server.
//!
//! They open the archive that `desk.archive` names, on this machine. All but `move` may run beside the server.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use desk::UserId;
use desk::archive::{Archive, ArchivePlace, ArchiveSync};
use desk::chat::{ExportScope, ImportReport, export_archive, import_archive};
use serde_json::{Value, json};
use store::Millis;
use web::cli::client::{self, Client, RUNNING};
use web::cli::{Context, Exit, Failure, Outcome, Output, segment};
use web::format;

use crate::chat;
use crate::config::DeskSettings;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum ArchiveSubcommand {
    /// Check the archive: tables, sequences, references, files, search index
    #[command(before_help = "Examples:
  tidegate desk archive check
  tidegate desk archive check --json | jq .is_sound")]
    Check,
    /// Write a backup into a new folder, archive and files, while chats go on
    #[command(before_help = "Examples:
  tidegate desk archive backup /backup/desk-2026-11-17")]
    Backup {
        /// Folder, which is made; an interrupted backup into it is finished
        folder: PathBuf,
    },
    /// Move the archive to Postgres, or to a SQLite file, and compare; stop the servers first
    #[command(before_help = "Examples:
  tidegate desk archive move postgres://tidegate:secret@db.example/desk
  tidegate desk archive move /srv/desk.sqlite3")]
    Move {
        /// An empty archive: postgres://user:password@host/database, or a file
        to: String,
    },
}

/// An archive and its files, as the settings name them.
struct OwnArchive {
    place: ArchivePlace,
    files: PathBuf,
    sync: ArchiveSync,
    default_capacity: u32,
    data: PathBuf,
}

impl OwnArchive {
    fn of(context: &Context<'_>) -> Outcome<OwnArchive> {
        let loaded = context.load()?;
        let settings = DeskSettings::read(&loaded.values)
            .map_err(|problem| Failure::usage(problem.to_string()))?;
        let data = &loaded.config.server.data;
        let place = ArchivePlace::parse(&chat::in_folder(&settings.archive, data))
            .map_err(|error| Failure::usage(error.to_string()))?;
        Ok(OwnArchive {
            place,
            files: chat::in_folder(&settings.files, data).into(),
            sync: chat::sync_of(&loaded.config),
            default_capacity: settings.default_capacity,
            data: data.clone(),
        })
    }

    async fn open(&self) -> Outcome<Archive> {
        Archive::open_existing(&self.place, self.sync).await.map_err(failed)
    }
}

fn failed(error: desk::Error) -> Failure {
    match error {
        desk::Error::Invalid { .. } => Failure::usage(error.to_string()),
        desk::Error::NotFound { .. } => Failure::new(Exit::NotFound, error.to_string()),
        error => Failure::failed(error.to_string()),
    }
}

fn now() -> Millis {
    store::Clock::system().now()
}

fn told_bytes(bytes: u64) -> String {
    let (number, unit) = format::bytes(bytes as f64);
    format!("{number} {unit}")
}

/// Runs a tool to its end.
fn wait<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::failed(format!("cannot start the runtime: {error}")))?;
    runtime.block_on(work)
}

pub(crate) fn run(verb: ArchiveSubcommand, context: &Context<'_>) -> Outcome {
    let own = OwnArchive::of(context)?;
    let output = context.output;
    match verb {
        ArchiveSubcommand::Check => wait(check(&own, output)),
        ArchiveSubcommand::Backup { folder } => wait(backup(&own, &folder, output)),
        ArchiveSubcommand::Move { to } => {
            let to = ArchivePlace::parse(&to).map_err(|error| Failure::usage(error.to_string()))?;
            if own.data.join(RUNNING).exists() && client::ready(context).is_ok() {
                return Err(Failure::usage(
                    "the server is running: an archive is moved while nobody writes",
                )
                .next("stop every server that uses the archive, then try again"));
            }
            wait(move_to(&own, &to, output))
        }
    }
}

async fn check(own: &OwnArchive, output: &Output) -> Outcome {
    let archive = own.open().await?;
    let found = archive.inspect(&own.files).await.map_err(failed)?;
    if output.json {
        let results: Vec<Value> = found
            .results
            .iter()
            .map(|one| json!({ "name": one.name, "seen": one.seen, "faults": one.faults }))
            .collect();
        output.value(&json!({
            "archive": own.place.to_string(), "is_sound": found.is_sound(), "results": results,
        }))?;
    } else {
        let rows: Vec<Vec<String>> = found
            .results
            .iter()
            .map(|one| {
                let outcome = match one.faults.len() {
                    0 => "good".to_owned(),
                    1 => "1 fault".to_owned(),
                    many => format!("{many} faults"),
                };
                vec![one.name.to_owned(), one.seen.clone(), outcome]
            })
            .collect();
        output.table(&["CHECK", "SEEN", "OUTCOME"], &rows)?;
        for fault in found.results.iter().flat_map(|one| &one.faults) {
            output.note(fault);
        }
    }
    if found.is_sound() {
        return Ok(());
    }
    Err(Failure::failed(format!("the archive {} has faults", own.place))
        .next("make a copy of it as it is, then restore the last good backup"))
}

async fn backup(own: &OwnArchive, folder: &Path, output: &Output) -> Outcome {
    let archive = own.open().await?;
    let done = archive.backup(&own.files, folder, now()).await.map_err(failed)?;
    if output.json {
        output.value(&json!({
            "archive": done.archive, "archive_bytes": done.archive_bytes, "files": done.files,
            "missing": done.missing,
        }))?;
    } else {
        output.pairs(&[
            ("archive", format!("{} ({})", done.archive.display(), told_bytes(done.archive_bytes))),
            ("files", done.files.to_string()),
        ])?;
    }
    for name in done.missing.iter().take(20) {
        output.note(&format!(
            "{name}: its contents are missing or damaged, or it was deleted meanwhile"
        ));
    }
    output.note("to restore it: stop the server, and put the file and the folder where desk.archive and desk.files say");
    Ok(())
}

async fn move_to(own: &OwnArchive, to: &ArchivePlace, output: &Output) -> Outcome {
    let from = own.open().await?;
    let target = Archive::open_target(to, own.sync).await.map_err(failed)?;
    let report = from.move_to(&target).await.map_err(failed)?;
    if output.json {
        let tables: Vec<Value> = report
            .tables
            .iter()
            .map(|one| {
                json!({ "table": one.table, "from": one.from, "to": one.to, "is_same": one.is_same })
            })
            .collect();
        output.value(
            &json!({ "to": to.to_string(), "is_equal": report.is_equal(), "tables": tables }),
        )?;
    } else {
        let rows: Vec<Vec<String>> = report
            .tables
            .iter()
            .map(|one| {
                let outcome = if one.from == one.to && one.is_same { "equal" } else { "DIFFERENT" };
                vec![
                    one.table.to_owned(),
                    one.from.to_string(),
                    one.to.to_string(),
                    outcome.to_owned(),
                ]
            })
            .collect();
        output.table(&["TABLE", "FROM", "TO", "CONTENTS"], &rows)?;
    }
    if !report.is_equal() {
        return Err(Failure::failed("the copy differs, and the archive was not moved")
            .next("try again; the target is started over"));
    }
    output
        .note(&format!("moved; set desk.archive to {to} (with its password) and start the server"));
    output.note(
        "the old archive is kept, and no server starts on it; files of chats stay where they are",
    );
    Ok(())
}

/// `tidegate desk export`.
pub(crate) fn export(context: &Context<'_>, user: Option<&str>, to: Option<&Path>) -> Outcome {
    let own = OwnArchive::of(context)?;
    let output = context.output;
    let scope = match user {
        None => ExportScope::All,
        Some(id) => {
            ExportScope::User(UserId::parse(id).map_err(|error| Failure::usage(error.to_string()))?)
        }
    };
    let more = user.map(|id| lines_of_server(context, id)).transpose()?.unwrap_or_default();
    let cannot = |error: io::Error| Failure::failed(format!("cannot write the export: {error}"));
    let mut writer: Box<dyn Write + Send> = match to {
        None => Box::new(BufWriter::new(io::stdout())),
        Some(path) => {
            let file = File::options().write(true).create_new(true).open(path);
            let file = file.map_err(|error| {
                Failure::usage(format!("{}: {error}", path.display())).next("name a new file")
            })?;
            Box::new(BufWriter::new(file))
        }
    };
    let report = wait(async {
        let archive = own.open().await?;
        export_archive(&archive, &own.files, &scope, now(), &mut *writer).await.map_err(failed)
    })?;
    if let Some(user) = user
        && report.visitors == 0
        && more.is_empty()
    {
        return Err(Failure::new(Exit::NotFound, format!("nothing is kept about {user}")));
    }
    for line in &more {
        writeln!(writer, "{line}").map_err(cannot)?;
    }
    writer.flush().map_err(cannot)?;
    output.note(&format!(
        "exported: {} visitors, {} conversations, {} messages, {} files, {} agents, {} teams, {} canned responses",
        report.visitors, report.conversations, report.messages, report.files, report.agents,
        report.teams, report.canned,
    ));
    if report.lost_files > 0 {
        output.note(&format!(
            "{} files have no contents: tidegate desk archive check",
            report.lost_files
        ));
    }
    Ok(())
}

/// Reads what the server's store has about a person: status, a block, sessions.
fn lines_of_server(context: &Context<'_>, user: &str) -> Outcome<Vec<Value>> {
    let path = format!("/api/v1/users/{}", segment(user));
    let found = Client::new(context).and_then(|client| {
        let found = client.get(&path)?;
        Ok((found, client.get_all(&format!("{path}/sessions"))?))
    });
    let of_kind = |kind: &str, mut value: Value| {
        if let Value::Object(fields) = &mut value {
            fields.insert("kind".to_owned(), kind.into());
        }
        value
    };
    match found {
        Ok((found, sessions)) => {
            let mut lines = vec![of_kind("user", found)];
            lines.extend(sessions.into_iter().map(|one| of_kind("session", one)));
            Ok(lines)
        }
        Err(failure) if failure.exit == Exit::NotFound => Ok(Vec::new()),
        Err(failure) => {
            let told = "the server does not answer, so status and sessions are left out";
            context.output.note(&format!("{told}: {}", failure.message));
            Ok(Vec::new())
        }
    }
}

/// `tidegate desk import`.
pub(crate) fn import(context: &Context<'_>, file: &Path, skips_bad: bool) -> Outcome {
    let own = OwnArchive::of(context)?;
    // Lines are read twice, and a pipe only once.
    let spooled = (file == Path::new("-")).then(|| spool(&own.data)).transpose()?;
    let path = spooled.as_deref().unwrap_or(file);
    let open = || -> io::Result<Box<dyn BufRead + Send>> {
        Ok(Box::new(BufReader::with_capacity(1 << 16, File::open(path)?)))
    };
    let done = wait(async {
        let archive = match &own.place {
            // A new installation has none yet.
            ArchivePlace::Sqlite(path) if !path.exists() => {
                Archive::open(&own.place, own.sync).await.map_err(failed)?
            }
            ArchivePlace::Sqlite(_) => own.open().await?,
            ArchivePlace::Postgres(_) => {
                Archive::open(&own.place, own.sync).await.map_err(failed)?
            }
        };
        import_archive(&archive, &own.files, &open, own.default_capacity, skips_bad)
            .await
            .map_err(failed)
    });
    if let Some(path) = &spooled {
        // It is of no use to anybody.
        let _ = std::fs::remove_file(path);
    }
    tell(&done?, skips_bad, context.output)
}

/// Copies standard input into a file.
fn spool(data: &Path) -> Outcome<PathBuf> {
    let path = data.join(format!("import-{}.jsonl", std::process::id()));
    let copied = std::fs::create_dir_all(data)
        .and_then(|()| File::options().write(true).create_new(true).open(&path))
        .and_then(|mut file| io::copy(&mut io::stdin().lock(), &mut file));
    copied.map_err(|error| Failure::failed(format!("cannot keep the lines: {error}")))?;
    Ok(path)
}

fn tell(report: &ImportReport, skips_bad: bool, output: &Output) -> Outcome {
    if output.json {
        let counts: serde_json::Map<String, Value> = report
            .counts
            .iter()
            .map(|(kind, count)| {
                let count =
                    json!({ "added": count.added, "known": count.known, "skipped": count.skipped });
                ((*kind).to_owned(), count)
            })
            .collect();
        let bad: Vec<Value> = report
            .bad
            .iter()
            .map(|one| json!({ "line": one.line, "message": one.message }))
            .collect();
        output.value(&json!({
            "lines": report.lines, "is_applied": report.is_applied, "counts": counts,
            "bad_count": report.bad_count, "bad": bad,
        }))?;
    } else {
        for one in &report.bad {
            output.note(&format!("line {}: {}", one.line, one.message));
        }
        let untold = report.bad_count.saturating_sub(report.bad.len() as u64);
        if untold > 0 {
            output.note(&format!("and {untold} more bad lines"));
        }
        if report.is_applied {
            let rows: Vec<Vec<String>> = report
                .counts
                .iter()
                .map(|(kind, count)| {
                    let [added, known, skipped] =
                        [count.added, count.known, count.skipped].map(|n| n.to_string());
                    vec![(*kind).to_owned(), added, known, skipped]
                })
                .collect();
            output.table(&["KIND", "ADDED", "KNOWN", "SKIPPED"], &rows)?;
        }
    }
    if !report.is_applied {
        let lines = if report.bad_count == 1 {
            "1 bad line".to_owned()
        } else {
            format!("{} bad lines", report.bad_count)
        };
        return Err(Failure::usage(format!("nothing was imported: {lines}"))
            .next("correct them, or import the rest with --skip-bad"));
    }
    if report.bad_count > 0 && skips_bad {
        output.note("what belongs to a bad line was left out; mend it and import again: the rest is known then");
    }
    output.note("a running server shows it within half a minute; new agents get a password with `tidegate desk agents reset-password`");
    Ok(())
}
