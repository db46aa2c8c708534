//! Import of another resolver's settings into the policy: the original's YAML and its `GET /sync/config`
//! document, AdGuard Home's YAML, Pi-hole's teleporter archive or single files of it.
//!
//! An import makes a policy and a report. What has no counterpart here is in the report with its line and the
//! reason; nothing is left out silently, and nothing is changed before somebody applies the policy.
//!
//! Read on in `import/document.rs` (YAML with lines), `import/builder.rs` (parts of a policy, checked one by
//! one), then `import/original.rs`, `import/adguard.rs`, `import/pihole.rs`.

mod adguard;
mod archive;
mod builder;
mod document;
mod original;
mod pihole;

use dns::Policy;

use self::builder::PolicyBuilder;

/// Largest import, unpacked.
pub(crate) const IMPORT_MAX_BYTES: usize = 32 << 20;

/// Most lines that a report names; the others are counted.
const SKIPPED_MAX: usize = 1_000;

/// The program that settings come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImportFormat {
    /// The original: its YAML, or what `GET /sync/config` gives.
    Original,
    /// AdGuard Home.
    AdguardHome,
    /// Pi-hole.
    Pihole,
}

/// A line that was not imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkippedLine {
    /// File in an archive; empty for a single file.
    pub(crate) file: String,
    /// Number of the line, from 1.
    pub(crate) line: usize,
    /// Its text, shortened.
    pub(crate) text: String,
    /// The reason.
    pub(crate) reason: String,
}

/// Numbers of what was imported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ImportCounts {
    pub(crate) upstreams: u64,
    pub(crate) lists: u64,
    pub(crate) rules: u64,
    pub(crate) services: u64,
    pub(crate) groups: u64,
    pub(crate) clients: u64,
    pub(crate) records: u64,
    pub(crate) schedules: u64,
}

/// The result of an import.
#[derive(Debug)]
pub(crate) struct ImportReport {
    pub(crate) format: ImportFormat,
    pub(crate) policy: Policy,
    pub(crate) counts: ImportCounts,
    pub(crate) skipped: Vec<SkippedLine>,
    /// All of them, also those that are not named.
    pub(crate) skipped_count: u64,
}

/// Reads settings into a policy. The error says why nothing of them can be read.
pub(crate) fn import(
    bytes: &[u8],
    name: &str,
    format: Option<ImportFormat>,
    base: Policy,
) -> Result<ImportReport, String> {
    if bytes.len() > IMPORT_MAX_BYTES {
        return Err("it has more than 32 MiB".to_owned());
    }
    let mut builder = PolicyBuilder::new(base);
    let format = if archive::is_gzip(bytes) {
        pihole::import_archive(&archive::unpack(bytes)?, &mut builder)?;
        ImportFormat::Pihole
    } else if bytes.starts_with(b"PK") {
        return Err(
            "this is a ZIP archive: Pi-hole 6 packs a database into it, which is not read. Export \
            the lists as text or JSON, or use the teleporter of Pi-hole 5 (.tar.gz)"
                .to_owned(),
        );
    } else {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
        let text = text.trim_start_matches('\u{feff}');
        match format.unwrap_or_else(|| guess(text, name)) {
            ImportFormat::Pihole => {
                pihole::import_file(name, text, &mut builder)?;
                ImportFormat::Pihole
            }
            known => {
                let root = document::read(text)?;
                match known {
                    ImportFormat::AdguardHome => adguard::import(&root, &mut builder)?,
                    _ => original::import(&root, &mut builder)?,
                }
                known
            }
        }
    };
    let (policy, counts, skipped, skipped_count) = builder.finish();
    Ok(ImportReport { format, policy, counts, skipped, skipped_count })
}

/// Tells the program by what only it writes.
fn guess(text: &str, name: &str) -> ImportFormat {
    if pihole::is_file(name) {
        return ImportFormat::Pihole;
    }
    let has = |key: &str| text.lines().any(|line| line.starts_with(key));
    match has("user_rules:") || has("filters:") || has("schema_version:") || has("filtering:") {
        true => ImportFormat::AdguardHome,
        false => ImportFormat::Original,
    }
}

#[cfg(test)]
mod tests;
