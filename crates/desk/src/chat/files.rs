//! Files: kept by content hash in a folder, known by random ids, deleted with their message.

use std::path::{Path, PathBuf};

use ring::digest;
use serde_json::{Value, json};
use sqlx::{AnyConnection, Row};
use store::Millis;

use super::Chat;
use crate::{ConversationId, Error, random::random_hex};

/// Images that are shown as such; everything else is a download.
const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Most pixels of an image: more is a decompression bomb.
const PIXELS_MOST: u64 = 50_000_000;

/// A file.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are described with the JSON, in docs/desk.md")]
pub struct ChatFile {
    pub id: String,
    pub name: String,
    /// By its contents, not by what was declared.
    pub mime: String,
    pub size: i64,
    pub owner: String,
    pub conversation: Option<ConversationId>,
    pub(crate) hash: String,
}

impl ChatFile {
    /// Returns its JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "name": self.name,
            "mime": self.mime,
            "size": self.size,
            "is_image": self.is_image(),
            "url": format!("/api/v1/widget/files/{}", self.id),
        })
    }

    /// Tells whether it may be shown in a page.
    pub fn is_image(&self) -> bool {
        IMAGES.contains(&self.mime.as_str())
    }
}

/// A file with its contents.
#[derive(Clone, Debug)]
pub struct StoredFile {
    /// The file.
    pub file: ChatFile,
    /// Its contents.
    pub bytes: Vec<u8>,
}

impl Chat {
    /// Keeps a file that somebody uploaded. It is theirs until it is sent with a message.
    ///
    /// # Errors
    /// `FILE_TOO_LARGE`, `QUOTA_EXCEEDED`; an image that claims too many pixels; an invalid name.
    pub async fn put_file(
        &self,
        owner: &str,
        name: &str,
        bytes: Vec<u8>,
    ) -> Result<ChatFile, Error> {
        let options = self.options();
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if size == 0 {
            return Err(Error::invalid("file", "it is empty"));
        }
        if size > options.max_file_bytes {
            return Err(Error::invalid(
                "file",
                format!("at most {} bytes", options.max_file_bytes),
            ));
        }
        let name = clean_name(name)?;
        let mime = sniff(&bytes)?;
        let hash = hash_of(&bytes);
        let file = ChatFile {
            id: format!("file_{}", random_hex::<16>()?),
            name,
            mime: mime.to_owned(),
            size: i64::try_from(size).unwrap_or(i64::MAX),
            owner: owner.to_owned(),
            conversation: None,
            hash,
        };
        write_file(self.path_of(&file.hash), bytes).await?;
        let (row, now) = (file.clone(), self.now());
        let (person_most, total_most) = (
            i64::try_from(options.max_person_file_bytes).unwrap_or(i64::MAX),
            i64::try_from(options.max_total_file_bytes).unwrap_or(i64::MAX),
        );
        let put = self
            .0
            .archive
            .write(move |tx| {
                let file = row.clone();
                Box::pin(async move { insert(tx, &file, now, person_most, total_most).await })
            })
            .await;
        if put.is_err() {
            self.remove_unused(std::slice::from_ref(&file.hash)).await?;
        }
        put.map(|()| file)
    }

    /// Returns a file with its contents.
    ///
    /// # Errors
    /// There is none of this id.
    pub async fn file(&self, id: &str) -> Result<StoredFile, Error> {
        let missing = Error::NotFound { what: "file" };
        let row = sqlx::query("SELECT * FROM files WHERE id = $1")
            .bind(id.to_owned())
            .fetch_optional(self.0.archive.readers())
            .await?;
        let file = read(&row.ok_or_else(|| missing.clone())?)?;
        let bytes = tokio::fs::read(self.path_of(&file.hash)).await.map_err(|_| missing)?;
        Ok(StoredFile { file, bytes })
    }

    /// Removes the files of a message, or of a whole conversation.
    pub(crate) async fn remove_files_of(
        &self,
        id: &ConversationId,
        seq: Option<i64>,
    ) -> Result<(), Error> {
        let rows = sqlx::query(
            "SELECT hash FROM files WHERE conversation_id = $1 AND ($2 = 0 OR seq = $2)",
        )
        .bind(id.as_str().to_owned())
        .bind(seq.unwrap_or(0))
        .fetch_all(self.0.archive.readers())
        .await?;
        let hashes = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()?;
        let (conversation, seq) = (id.to_string(), seq.unwrap_or(0));
        self.0
            .archive
            .write(move |tx| {
                let conversation = conversation.clone();
                Box::pin(async move {
                    sqlx::query(
                        "DELETE FROM files WHERE conversation_id = $1 AND ($2 = 0 OR seq = $2)",
                    )
                    .bind(conversation)
                    .bind(seq)
                    .execute(&mut *tx)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        self.remove_unused(&hashes).await
    }

    /// Removes all files that somebody uploaded.
    pub(crate) async fn remove_files_by(&self, owner: &str) -> Result<(), Error> {
        let rows = sqlx::query("SELECT hash FROM files WHERE owner = $1")
            .bind(owner.to_owned())
            .fetch_all(self.0.archive.readers())
            .await?;
        let hashes = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()?;
        let owner = owner.to_owned();
        self.0
            .archive
            .write(move |tx| {
                let owner = owner.clone();
                Box::pin(async move {
                    sqlx::query("DELETE FROM files WHERE owner = $1")
                        .bind(owner)
                        .execute(&mut *tx)
                        .await?;
                    Ok(())
                })
            })
            .await?;
        self.remove_unused(&hashes).await
    }

    /// Deletes contents that no file has any more.
    async fn remove_unused(&self, hashes: &[String]) -> Result<(), Error> {
        for hash in hashes {
            let row = sqlx::query("SELECT COUNT(*) FROM files WHERE hash = $1")
                .bind(hash.clone())
                .fetch_one(self.0.archive.readers())
                .await?;
            if row.try_get::<i64, _>(0)? == 0 {
                let _ = tokio::fs::remove_file(self.path_of(hash)).await; // it may be gone already
            }
        }
        Ok(())
    }

    fn path_of(&self, hash: &str) -> PathBuf {
        file_path(&self.0.files, hash)
    }
}

/// Returns the place of contents in the folder of files.
pub(crate) fn file_path(folder: &Path, hash: &str) -> PathBuf {
    folder.join(hash.get(..2).unwrap_or_default()).join(hash)
}

/// Returns the name that contents are kept under.
pub(crate) fn hash_of(bytes: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Finds out the type of a file by its contents, and refuses an image that is not one or too large.
pub(crate) fn sniff(bytes: &[u8]) -> Result<&'static str, Error> {
    let mime = infer::get(bytes).map_or("application/octet-stream", |kind| kind.mime_type());
    if IMAGES.contains(&mime) {
        let pixels = pixels_of(mime, bytes)
            .ok_or_else(|| Error::invalid("file", "the image has no readable header"))?;
        if pixels > PIXELS_MOST {
            return Err(Error::invalid("file", "the image has more than 50 million pixels"));
        }
    }
    Ok(mime)
}

pub(crate) async fn write_file(path: PathBuf, bytes: Vec<u8>) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::archive(format!("file not written: {error}"));
    if let Some(folder) = path.parent() {
        tokio::fs::create_dir_all(folder).await.map_err(failed)?;
    }
    if tokio::fs::try_exists(&path).await.unwrap_or(false) {
        return Ok(());
    }
    let part = path.with_extension(random_hex::<8>()?);
    tokio::fs::write(&part, bytes).await.map_err(failed)?;
    tokio::fs::rename(&part, &path).await.map_err(failed)
}

async fn insert(
    tx: &mut AnyConnection,
    file: &ChatFile,
    now: Millis,
    person_most: i64,
    total_most: i64,
) -> Result<(), Error> {
    let own =
        sqlx::query("SELECT CAST(COALESCE(SUM(size), 0) AS BIGINT) FROM files WHERE owner = $1")
            .bind(file.owner.clone())
            .fetch_one(&mut *tx)
            .await?;
    let all = sqlx::query("SELECT CAST(COALESCE(SUM(size), 0) AS BIGINT) FROM files")
        .fetch_one(&mut *tx)
        .await?;
    if own.try_get::<i64, _>(0)? + file.size > person_most {
        return Err(Error::conflict("QUOTA_EXCEEDED", "you have reached your limit of files"));
    }
    if all.try_get::<i64, _>(0)? + file.size > total_most {
        return Err(Error::conflict("QUOTA_EXCEEDED", "the storage for files is full"));
    }
    sqlx::query(
        "INSERT INTO files (id, hash, name, mime, size, owner, created_ms) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(file.id.clone())
    .bind(file.hash.clone())
    .bind(file.name.clone())
    .bind(file.mime.clone())
    .bind(file.size)
    .bind(file.owner.clone())
    .bind(now.0)
    .execute(&mut *tx)
    .await?;
    Ok(())
}

pub(crate) fn read(row: &sqlx::any::AnyRow) -> Result<ChatFile, Error> {
    let conversation: Option<String> = row.try_get("conversation_id")?;
    Ok(ChatFile {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        mime: row.try_get("mime")?,
        size: row.try_get("size")?,
        owner: row.try_get("owner")?,
        conversation: conversation.map(|id| ConversationId::parse(&id)).transpose()?,
        hash: row.try_get("hash")?,
    })
}

/// Looks up files that a message is sent with: the sender's own, not sent before.
pub(crate) async fn attach(
    tx: &mut AnyConnection,
    ids: &[String],
    owner: Option<&str>,
) -> Result<Vec<Value>, Error> {
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        let row = sqlx::query(
            "SELECT * FROM files WHERE id = $1 AND owner = $2 AND conversation_id IS NULL",
        )
        .bind(id.clone())
        .bind(owner.unwrap_or_default().to_owned())
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Err(Error::NotFound { what: "file" }) };
        found.push(read(&row)?.to_json());
    }
    Ok(found)
}

/// Notes the message that files were sent with.
pub(crate) async fn settle(
    tx: &mut AnyConnection,
    ids: &[String],
    conversation: &ConversationId,
    seq: i64,
) -> Result<(), Error> {
    for id in ids {
        sqlx::query("UPDATE files SET conversation_id = $1, seq = $2 WHERE id = $3")
            .bind(conversation.as_str().to_owned())
            .bind(seq)
            .bind(id.clone())
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}

/// The last part of a name, without control characters, at most 120 of them.
pub(crate) fn clean_name(name: &str) -> Result<String, Error> {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let clean: String = last.chars().filter(|c| !c.is_control()).take(120).collect();
    let clean = clean.trim().trim_matches('.').to_owned();
    if clean.is_empty() { Err(Error::invalid("name", "the name of the file")) } else { Ok(clean) }
}

/// Reads the size of an image out of its header.
fn pixels_of(mime: &str, bytes: &[u8]) -> Option<u64> {
    let be32 =
        |at: usize| Some(u64::from(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?)));
    let le16 =
        |at: usize| Some(u64::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    let le24 = |at: usize| Some(le16(at)? | (u64::from(*bytes.get(at + 2)?) << 16));
    match mime {
        "image/png" => be32(16)?.checked_mul(be32(20)?),
        "image/gif" => Some(le16(6)? * le16(8)?),
        "image/webp" => match bytes.get(12..16)? {
            b"VP8X" => (le24(24)? + 1).checked_mul(le24(27)? + 1),
            b"VP8 " => Some((le16(26)? & 0x3fff) * (le16(28)? & 0x3fff)),
            b"VP8L" => {
                let bits = le16(21)? | (le16(23)? << 16);
                Some(((bits & 0x3fff) + 1) * (((bits >> 14) & 0x3fff) + 1))
            }
            _ => None,
        },
        "image/jpeg" => {
            let mut at = 2;
            loop {
                let (mark, kind) = (*bytes.get(at)?, *bytes.get(at + 1)?);
                if mark != 0xff {
                    return None;
                }
                let length =
                    usize::from(u16::from_be_bytes(bytes.get(at + 2..at + 4)?.try_into().ok()?));
                if matches!(kind, 0xc0..=0xcf) && !matches!(kind, 0xc4 | 0xc8 | 0xcc) {
                    let side = |from: usize| {
                        Some(u64::from(u16::from_be_bytes(
                            bytes.get(from..from + 2)?.try_into().ok()?,
                        )))
                    };
                    return Some(side(at + 5)? * side(at + 7)?);
                }
                at += 2 + length.max(2);
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_an_image_is_read_from_its_header() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        png.extend([0, 0, 0, 7, 0, 0, 0, 5, 8, 2, 0, 0, 0]);
        assert_eq!(pixels_of("image/png", &png), Some(35));
        png[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
        assert!(pixels_of("image/png", &png).unwrap() > PIXELS_MOST);
        assert_eq!(pixels_of("image/gif", b"GIF89a\x03\0\x02\0"), Some(6));
        let jpeg = [0xff, 0xd8, 0xff, 0xe0, 0, 4, 0, 0, 0xff, 0xc0, 0, 11, 8, 0, 4, 0, 3, 1];
        assert_eq!(pixels_of("image/jpeg", &jpeg), Some(12));
        assert_eq!(pixels_of("image/jpeg", &jpeg[..12]), None);
    }

    #[test]
    fn a_name_is_one_name() {
        assert_eq!(clean_name("C:\\x\\report.pdf").unwrap(), "report.pdf");
        assert_eq!(clean_name("../../etc/passwd").unwrap(), "passwd");
        assert_eq!(clean_name("a\nb\u{0}.txt").unwrap(), "ab.txt");
        assert!(clean_name("..").is_err() && clean_name("").is_err());
    }
}
