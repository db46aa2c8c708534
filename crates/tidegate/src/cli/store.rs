//! `tidegate store`: serve, check, backup, restore, move.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;
use store::embedded;
use web::error::chain;

use super::transfer;
use crate::resp_listener;
use web::cli::Context;
use web::cli::{Failure, Outcome};
use web::cli::{Progress, size_of};

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreVerb {
    /// Serve the built-in store over RESP, without dashboard and services
    #[command(before_help = "Examples:
  tidegate store serve
  tidegate store serve --store embedded:./data --listen 127.0.0.1:6400
  redis-cli -p 6380 PING")]
    Serve,
    /// Write everything in the store into a new file
    #[command(before_help = "Examples:
  tidegate store backup monday.tide
  tidegate store backup monday.tide --store redis://127.0.0.1:6379")]
    Backup {
        /// The file to make
        file: PathBuf,
        /// Let a server take writes meanwhile: the keys are then not all of one moment
        #[arg(long)]
        without_pause: bool,
    },
    /// Read a backup into an empty store
    #[command(before_help = "Examples:
  tidegate store restore monday.tide --store embedded:./restored
  tidegate store restore monday.tide --store redis+cluster://10.0.0.1,10.0.0.2")]
    Restore {
        /// The file
        file: PathBuf,
    },
    /// Move everything to another, empty store; run it again to continue after an interruption
    #[command(before_help = "Examples:
  tidegate store move embedded:./tidegate-data redis://127.0.0.1:6379
  tidegate store move redis://10.0.0.1 redis+cluster://10.0.0.2,10.0.0.3 --switch
  tidegate store move redis://10.0.0.1 embedded:./back")]
    Move {
        /// URL of the store with the data; a folder may be in use
        from: String,
        /// URL of the empty store
        to: String,
        /// Refuse writes at a server in the end, so that its clients may go on until then
        #[arg(long)]
        switch: bool,
    },
    /// Check every record of a backup, or of a store that no server is using
    #[command(before_help = "Examples:
  tidegate store check
  tidegate store check monday.tide
  tidegate store check /var/lib/tidegate/store
  tidegate store check /var/lib/tidegate/store --repair /var/lib/tidegate/repaired")]
    Check {
        /// The folder or the backup; the folder the settings name if left out
        #[arg(value_name = "PATH")]
        folder: Option<PathBuf>,
        /// Copy everything that is good into this new folder
        #[arg(long, value_name = "NEW_FOLDER")]
        repair: Option<PathBuf>,
    },
}

pub(crate) fn run(verb: StoreVerb, context: &Context<'_>) -> Outcome {
    match verb {
        StoreVerb::Serve => resp_listener::serve(context),
        StoreVerb::Backup { file, without_pause } => {
            transfer::back_up(&file, without_pause, context)
        }
        StoreVerb::Restore { file } => transfer::restore(&file, context),
        StoreVerb::Move { from, to, switch } => transfer::move_store(&from, &to, switch, context),
        StoreVerb::Check { folder: Some(file), repair: None } if file.is_file() => {
            transfer::check_file(&file, context)
        }
        StoreVerb::Check { folder, repair } => check(folder, repair, context),
    }
}

fn check(folder: Option<PathBuf>, repair: Option<PathBuf>, context: &Context<'_>) -> Outcome {
    let output = context.output;
    let folder = match folder {
        Some(folder) => folder,
        None => configured(context)?,
    };
    let before = embedded::bytes_read();
    let progress = Progress::of_bytes(output, "reading", size_of(&folder), move || {
        embedded::bytes_read() - before
    });
    let report = match &repair {
        Some(into) => embedded::repair(&folder, into),
        None => embedded::check(&folder),
    };
    drop(progress);
    let report = report.map_err(|error| {
        Failure::failed(chain(&error)).next("name the folder of a store that no process uses")
    })?;
    let torn = report
        .torn
        .as_ref()
        .map(|torn| json!({ "file": torn.file, "offset": torn.offset, "bytes": torn.bytes }));
    if output.json {
        output.value(&json!({
            "folder": folder,
            "keys": report.keys,
            "records": report.records,
            "commands": report.commands,
            "last_record": report.lsn,
            "base_bytes": report.base_bytes,
            "log_bytes": report.log_bytes,
            "torn": torn,
            "damage": report.damage,
            "repaired_into": repair,
        }))?;
    } else {
        output.line(&format!(
            "{} keys; {} records after a snapshot of {} bytes, {} bytes of log",
            report.keys, report.records, report.base_bytes, report.log_bytes
        ))?;
        if let Some(torn) = &report.torn {
            output.line(&format!(
                "{} ends early at byte {}: the last {} bytes are an unfinished record, which the \
                 next start cuts off",
                torn.file, torn.offset, torn.bytes
            ))?;
        }
        if let Some(into) = &repair {
            output.line(&format!("what is good was copied into {}", into.display()))?;
        }
    }
    match report.damage {
        Some(damage) if repair.is_none() => Err(Failure::failed(damage)
            .next("tidegate store check FOLDER --repair NEW_FOLDER keeps what is good before it")),
        Some(damage) => {
            output.note(&format!("not copied: what comes after this damage: {damage}"));
            Ok(())
        }
        None => Ok(()),
    }
}

/// The folder of the built-in store that the settings name.
fn configured(context: &Context<'_>) -> Outcome<PathBuf> {
    context.load()?.config.store_folder().ok_or_else(|| {
        Failure::usage("the settings name no folder of a built-in store")
            .next("tidegate store check FOLDER")
    })
}
