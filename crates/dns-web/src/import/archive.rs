//! Archives: `.tar.gz`, unpacked in memory and bounded.

use std::io::Read as _;

use super::IMPORT_MAX_BYTES;

/// A block of a tar archive.
const BLOCK_BYTES: usize = 512;

/// Most files.
const FILES_MAX: usize = 1_000;

pub(super) fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

/// Unpacks an archive: names without folders, and texts. What is no text is left out.
pub(super) fn unpack(bytes: &[u8]) -> Result<Vec<(String, String)>, String> {
    let mut tar = Vec::new();
    let limit = IMPORT_MAX_BYTES as u64 + 1;
    let mut decoder = flate2::read::GzDecoder::new(bytes).take(limit);
    decoder.read_to_end(&mut tar).map_err(|error| format!("the archive is damaged: {error}"))?;
    if tar.len() > IMPORT_MAX_BYTES {
        return Err("the archive has more than 32 MiB when it is unpacked".to_owned());
    }
    let mut files = Vec::new();
    let mut at = 0;
    while let Some(header) = tar.get(at..at + BLOCK_BYTES) {
        if header.iter().all(|byte| *byte == 0) {
            break;
        }
        if header.get(257..262) != Some(b"ustar") {
            return Err("it is compressed, but not a tar archive".to_owned());
        }
        let text = |from: usize, to: usize| {
            let field = header.get(from..to).unwrap_or_default();
            let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            String::from_utf8_lossy(field.get(..end).unwrap_or_default()).trim().to_owned()
        };
        let size = usize::from_str_radix(&text(124, 136), 8)
            .map_err(|_| "the archive has an entry without a size".to_owned())?;
        let start = at + BLOCK_BYTES;
        let end = start.checked_add(size).ok_or("the archive is damaged")?;
        let body = tar.get(start..end).ok_or("the archive breaks off")?;
        let is_file = matches!(header.get(156), Some(b'0' | 0));
        if is_file && let Ok(body) = std::str::from_utf8(body) {
            let path = text(0, 100);
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            files.push((name, body.to_owned()));
        }
        if files.len() > FILES_MAX {
            return Err(format!("the archive has more than {FILES_MAX} files"));
        }
        at = start + size.div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
    }
    Ok(files)
}
