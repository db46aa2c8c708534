//! The policy on its way in and out, and the set-up of devices: export, import, profile.

use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use web::cli::client::Client;
use web::cli::{Failure, Outcome, Output, Tone, segment, text};

/// An export.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Only what is of use on another network too: without clients, records, access and what ends soon
    #[arg(long)]
    portable: bool,
}

pub(super) fn export(client: &Client, args: &ExportArgs, output: &Output) -> Outcome {
    let extent = if args.portable { "portable" } else { "whole" };
    output.value(&client.get(&format!("/api/v1/dns/policy/export?extent={extent}"))?)
}

/// A program whose settings are read.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ImportFormatArg {
    /// beyond-ads-dns: YAML, or the document of /sync/config
    BeyondAdsDns,
    /// AdGuard Home: AdGuardHome.yaml
    AdguardHome,
    /// Pi-hole: the teleporter archive of version 5, or a file of it
    PiHole,
}

/// An import.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file
    file: PathBuf,
    /// The program it is of; found out by itself if left out
    #[arg(long)]
    format: Option<ImportFormatArg>,
    /// Begin with an empty policy instead of adding to the one in place
    #[arg(long)]
    replace: bool,
    /// Change the policy; without it, only tell what would change
    #[arg(long)]
    yes: bool,
}

pub(super) fn import(client: &Client, args: &ImportArgs, output: &Output) -> Outcome {
    let shown = args.file.display();
    let bytes =
        std::fs::read(&args.file).map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
    let name = args.file.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut body = json!({ "file_name": name, "replace": args.replace, "dry_run": !args.yes });
    match String::from_utf8(bytes) {
        Ok(text) => body["text"] = json!(text),
        Err(error) => body["base64"] = json!(BASE64_STANDARD.encode(error.into_bytes())),
    }
    if let Some(format) = args.format {
        body["format"] = json!(match format {
            ImportFormatArg::BeyondAdsDns => "beyond_ads_dns",
            ImportFormatArg::AdguardHome => "adguard_home",
            ImportFormatArg::PiHole => "pi_hole",
        });
    }
    let found = client.post("/api/v1/dns/policy/import", &body)?;
    if output.json {
        return output.value(&found);
    }
    let imported = found["imported"].as_object().cloned().unwrap_or_default();
    let counts: Vec<String> = imported
        .iter()
        .filter(|(_, count)| count.as_u64() != Some(0))
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let counts = if counts.is_empty() { "nothing".to_owned() } else { counts.join(", ") };
    for line in found["skipped"].as_array().into_iter().flatten() {
        let place = match (text(line, "file"), line["line"].as_u64().unwrap_or(0)) {
            (file, 0) if file.is_empty() => String::new(),
            (file, number) if file.is_empty() => format!("line {number}: "),
            (file, number) => format!("{file}:{number}: "),
        };
        let told = format!("{place}{}", text(line, "text"));
        output.line(&format!("{}  {}", output.paint(Tone::Warn, &told), text(line, "reason")))?;
    }
    let skipped = found["skipped_count"].as_u64().unwrap_or(0);
    let rest = match skipped {
        0 => String::new(),
        1 => "; 1 line has no counterpart here, see above".to_owned(),
        skipped => format!("; {skipped} lines have no counterpart here, see above"),
    };
    match args.yes {
        true => output
            .note(&format!("imported {counts}{rest}; the policy has version {}", found["version"])),
        false => output.note(&format!(
            "would import {counts}{rest}; nothing is changed yet, add --yes to do it"
        )),
    }
    Ok(())
}

/// The set-up of a device.
#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// Id of the client; everybody if left out
    #[arg(long)]
    client: Option<String>,
    /// DNS over TLS instead of HTTPS
    #[arg(long)]
    tls: bool,
    /// Address of this server, so that its name need not be looked up elsewhere (repeatable)
    #[arg(long = "address", value_name = "ADDRESS")]
    addresses: Vec<std::net::IpAddr>,
    /// Wi-Fi network on which the profile does nothing (repeatable)
    #[arg(long = "wifi-exception", value_name = "SSID")]
    wifi_exceptions: Vec<String>,
    /// Show the name for Android's private DNS instead
    #[arg(long)]
    android: bool,
    /// File for the profile; standard output if left out
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn profile(client: &Client, args: &ProfileArgs, output: &Output) -> Outcome {
    let id =
        args.client.as_deref().map_or_else(String::new, |id| format!("&client={}", segment(id)));
    if args.android || output.json {
        let found = client.get(&format!("/api/v1/dns/endpoints?{}", id.trim_start_matches('&')))?;
        if output.json {
            return output.value(&found);
        }
        return match found["tls_host"].as_str() {
            Some(host) => output.line(host),
            None => {
                Err(Failure::failed(text(&found, "missing")).next("docs/dns.md, Encrypted queries"))
            }
        };
    }
    let protocol = if args.tls { "tls" } else { "https" };
    let addresses: Vec<String> = args.addresses.iter().map(ToString::to_string).collect();
    let path = format!(
        "/api/v1/dns/profile?protocol={protocol}&addresses={}&wifi_exceptions={}{id}",
        segment(&addresses.join(",")),
        segment(&args.wifi_exceptions.join(","))
    );
    let profile = client.get_text(&path)?;
    match &args.out {
        None => output.text(&profile),
        Some(path) => {
            std::fs::write(path, profile)
                .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
            output.note(&format!("{} is written; open it on the device", path.display()));
            Ok(())
        }
    }
}

/// Lists problems with what to do.
pub(super) fn problems(client: &Client, output: &Output) -> Outcome {
    let items = client.get_all("/api/v1/dns/problems")?;
    let open: Vec<Value> = items.into_iter().filter(|item| item["ended_at"].is_null()).collect();
    if output.json {
        return output.value(&open);
    }
    if open.is_empty() {
        output.note("nothing is wrong");
    }
    for problem in &open {
        let severity = text(problem, "severity");
        let tone = if severity == "error" { Tone::Bad } else { Tone::Warn };
        output.line(&format!("{} {}", output.paint(tone, &severity), text(problem, "title")))?;
        output.line(&format!("  {}", text(problem, "text")))?;
        output.line(&format!("  {}", text(problem, "fix")))?;
    }
    Ok(())
}
