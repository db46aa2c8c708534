//! The policy on its way in and out: export, portable or whole, and import of other resolvers' settings.

use std::collections::BTreeMap;

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dns::Policy;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};
use web::audit::Note;
use web::error::ErrorBody;
use web::extract::{Json, Query};
use web::{ApiError, Routes};

use super::policy::{DifferenceView, difference};
use crate::error::DnsApiError;
use crate::import::{self, ImportFormat, ImportReport};
use crate::service::DnsState;

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new().routes(routes!(export)),
        operator: OpenApiRouter::new().routes(routes!(import)),
        ..Routes::default()
    }
}

/// Extent of an export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PolicyExtent)]
enum ExtentName {
    /// Everything.
    #[default]
    Whole,
    /// What is of use on another network too: without clients, records and access, which name devices and
    /// addresses of this one, and without pauses and timed rules, which end soon.
    Portable,
}

/// Extent of an export.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct ExtentQuery {
    /// Extent; whole if left out.
    #[param(inline)]
    extent: Option<ExtentName>,
}

/// Leaves out what belongs to one network and one moment.
fn portable(mut policy: Policy) -> Policy {
    policy.clients.clear();
    policy.records.clear();
    policy.pauses.clear();
    policy.timed_rules.clear();
    policy.access = dns::AccessPolicy::default();
    policy.log.exclude_clients.clear();
    policy.rate_limit.exempt.clear();
    policy
}

/// Export the policy as a file, whole or portable.
#[utoipa::path(get, path = "/api/v1/dns/policy/export", tag = "dns",
    operation_id = "export_resolver_policy", params(ExtentQuery),
    responses((status = 200, description = "The document.", body = BTreeMap<String, Value>)))]
async fn export(
    State(state): State<DnsState>,
    Query(query): Query<ExtentQuery>,
) -> Result<impl IntoResponse, DnsApiError> {
    let policy = state.load_policy().await?;
    let (policy, name) = match query.extent.unwrap_or_default() {
        ExtentName::Whole => (policy, "attachment; filename=dns-policy.json"),
        ExtentName::Portable => (portable(policy), "attachment; filename=dns-policy-portable.json"),
    };
    let text = serde_json::to_string_pretty(&policy).map_err(|error| ApiError::internal(&error))?;
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_DISPOSITION, name),
    ];
    Ok((headers, text + "\n"))
}

/// The program that settings come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ImportFormat)]
enum FormatName {
    /// beyond-ads-dns: its YAML, or the document of `GET /sync/config`.
    BeyondAdsDns,
    /// AdGuard Home: `AdGuardHome.yaml`.
    AdguardHome,
    /// Pi-hole: the teleporter archive of version 5, or a single file of it.
    PiHole,
}

impl From<ImportFormat> for FormatName {
    fn from(format: ImportFormat) -> FormatName {
        match format {
            ImportFormat::Original => FormatName::BeyondAdsDns,
            ImportFormat::AdguardHome => FormatName::AdguardHome,
            ImportFormat::Pihole => FormatName::PiHole,
        }
    }
}

impl From<FormatName> for ImportFormat {
    fn from(format: FormatName) -> ImportFormat {
        match format {
            FormatName::BeyondAdsDns => ImportFormat::Original,
            FormatName::AdguardHome => ImportFormat::AdguardHome,
            FormatName::PiHole => ImportFormat::Pihole,
        }
    }
}

/// Settings of another resolver.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DnsImportRequest, example = json!({ "file_name": "AdGuardHome.yaml", "text": "user_rules:\n  - '||ads.example^'\n", "dry_run": true }))]
struct ImportBody {
    /// Name of the file; tells files of Pi-hole apart.
    file_name: Option<String>,
    /// The program; found out by itself if left out.
    format: Option<FormatName>,
    /// The file, if it is text.
    text: Option<String>,
    /// The file in base64, if it is an archive.
    base64: Option<String>,
    /// Begin with an empty policy instead of adding to the one in place.
    replace: Option<bool>,
    /// Change nothing, and tell what would change.
    dry_run: Option<bool>,
}

/// A line that was not imported.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SkippedImportLine)]
struct SkippedView {
    /// File in an archive; empty for a single file.
    file: String,
    /// Number of the line; 0 if the part has none.
    line: u64,
    /// Its text, shortened.
    text: String,
    /// The reason, and what to do instead.
    reason: String,
}

/// The result of an import.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DnsImportResult)]
struct ImportView {
    /// The program.
    format: FormatName,
    /// True if the policy was changed.
    is_applied: bool,
    /// Version of the policy now.
    version: u64,
    /// Parts that were imported, by kind.
    imported: BTreeMap<&'static str, u64>,
    /// Lines that were not imported.
    skipped_count: u64,
    /// These lines, at most 1,000.
    skipped: Vec<SkippedView>,
    /// Differences to the policy before, at most 1,000.
    differences: Vec<DifferenceView>,
}

/// Import settings of another resolver into the policy. What could not be imported is told by line.
#[utoipa::path(post, path = "/api/v1/dns/policy/import", tag = "dns",
    operation_id = "import_resolver_policy", request_body = ImportBody,
    responses((status = 200, description = "Imported, or what would be.", body = ImportView),
        (status = 400, description = "The file cannot be read.", body = ErrorBody),
        (status = 409, description = "The policy was changed meanwhile.", body = ErrorBody)))]
async fn import(
    State(state): State<DnsState>,
    Json(body): Json<ImportBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    let bytes = match (body.text, body.base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(encoded)) => BASE64_STANDARD
            .decode(encoded.trim())
            .map_err(|_| ApiError::invalid_field("base64", "it is not base64"))?,
        _ => {
            return Err(
                ApiError::invalid_field("text", "give the file as text or as base64").into()
            );
        }
    };
    let current = state.resolver.policies().load().await?;
    let base = match body.replace.unwrap_or(false) {
        true => Policy::default(),
        false => current.policy.clone(),
    };
    let name = body.file_name.unwrap_or_default();
    let format = body.format.map(ImportFormat::from);
    let read = tokio::task::spawn_blocking(move || import::import(&bytes, &name, format, base));
    let read = read.await.map_err(|error| ApiError::internal(&error))?;
    let report = read.map_err(|message| ApiError::invalid_field("text", message))?;
    let differences = difference(&current.policy, &report.policy);
    let is_dry = body.dry_run.unwrap_or(false);
    let version = match is_dry || differences.is_empty() {
        true => current.version,
        false => state.resolver.save_policy(current.version, report.policy.clone()).await?.version,
    };
    let view = view(report, !is_dry, version, differences);
    let note = Note::new("policy.import", format!("version {version}"));
    let note = note.change(
        Value::Null,
        json!({ "imported": view.imported, "skipped": view.skipped_count, "dry_run": is_dry }),
    );
    Ok((Extension(note), Json(view)))
}

fn view(
    report: ImportReport,
    is_applied: bool,
    version: u64,
    differences: Vec<DifferenceView>,
) -> ImportView {
    let counts = report.counts;
    let imported = BTreeMap::from([
        ("upstreams", counts.upstreams),
        ("lists", counts.lists),
        ("rules", counts.rules),
        ("services", counts.services),
        ("groups", counts.groups),
        ("clients", counts.clients),
        ("records", counts.records),
        ("schedules", counts.schedules),
    ]);
    let skipped = report.skipped.into_iter().map(|line| SkippedView {
        file: line.file,
        line: line.line as u64,
        text: line.text,
        reason: line.reason,
    });
    ImportView {
        format: report.format.into(),
        is_applied,
        version,
        imported,
        skipped_count: report.skipped_count,
        skipped: skipped.collect(),
        differences,
    }
}
