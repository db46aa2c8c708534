//! The admin token of an installation: made at first start, readable by its owner only.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::auth::{Role, Secret};
use anyhow::Context;

/// The token, and whether it was made just now.
#[derive(Debug)]
pub struct AdminTokenFile {
    /// The token.
    pub secret: Secret,
    /// It was made just now.
    pub is_new: bool,
    /// Its file.
    pub path: PathBuf,
}

/// Returns the path of the token file.
pub fn path(data: &Path) -> PathBuf {
    data.join("admin-token")
}

/// The token in the data folder.
pub fn read(data: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path(data))?;
    Ok(text.trim().to_owned())
}

/// A token long enough to be one.
pub fn usable(text: String) -> Option<Secret> {
    (text.len() >= 20).then(|| Secret::new(text))
}

/// Puts a new token in the place of the old one, whole or not at all.
pub fn replace(data: &Path) -> anyhow::Result<Secret> {
    make_folder(data)?;
    let secret = Secret::generate(Role::Admin)
        .map_err(|error| anyhow::anyhow!("cannot make a token: {}", error.message()))?;
    let new = data.join("admin-token.new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", new.display()));
        }
        _ => {}
    }
    write_private(&new, secret.reveal())?;
    fs::rename(&new, path(data))
        .with_context(|| format!("cannot write {}", path(data).display()))?;
    Ok(secret)
}

/// Makes the data folder, closed to others, if it is not there.
pub fn make_folder(data: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .with_context(|| format!("cannot make the data folder {}", data.display()))
}

/// Reads the token, or makes one. A token file that others can read is closed to them.
pub fn read_or_make(data: &Path) -> anyhow::Result<AdminTokenFile> {
    let path = path(data);
    match read(data) {
        Ok(text) => {
            let secret = usable(text).with_context(|| {
                format!("{} holds no usable token; remove it and a new one is made", path.display())
            })?;
            close(&path)?;
            Ok(AdminTokenFile { secret, is_new: false, path })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(path),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn make(path: PathBuf) -> anyhow::Result<AdminTokenFile> {
    let secret = Secret::generate(Role::Admin)
        .map_err(|error| anyhow::anyhow!("cannot make a token: {}", error.message()))?;
    write_private(&path, secret.reveal())?;
    Ok(AdminTokenFile { secret, is_new: true, path })
}

/// Writes a line into a new file that only its owner can read, and makes sure it is on the disk.
pub fn write_private(path: &Path, line: &str) -> anyhow::Result<()> {
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        writeln!(file, "{line}")?;
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Closes a file with a secret to other users.
pub fn close(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "a secret was readable by others; closed");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}
