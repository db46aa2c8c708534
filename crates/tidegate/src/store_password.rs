//! The password of the built-in store's RESP port: made at first start, readable by its owner only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use web::cli::admin_token;
use web::cli::{Failure, Outcome};
use web::config::Config;

/// The user that the password is for; `AUTH` without a name means it too.
pub(crate) const USER: &str = "owner";

/// Returns the path of the password file.
pub(crate) fn path(data: &Path) -> PathBuf {
    data.join("store-password")
}

/// Reads the password, or makes one. A file that others can read is closed to them.
pub(crate) fn read_or_make(data: &Path) -> Outcome<String> {
    let path = path(data);
    match fs::read_to_string(&path) {
        Ok(text) if text.trim().len() >= 20 => {
            if let Err(error) = admin_token::close(&path) {
                tracing::warn!(path = %path.display(), %error, "cannot close the password to other users");
            }
            Ok(text.trim().to_owned())
        }
        Ok(_) => Err(Failure::failed(format!("{} holds no usable password", path.display()))
            .next("remove the file, and a new one is made at the next start")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(&path),
        Err(error) => Err(Failure::failed(format!("cannot read {}: {error}", path.display()))),
    }
}

fn make(path: &Path) -> Outcome<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::failed(format!("the system gives no random bytes: {error}")))?;
    let password: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    admin_token::write_private(path, &password)?;
    Ok(password)
}

/// The URL of a store with the password filled in, if it names the RESP port of this very
/// installation and no user: commands on this machine are the owner's.
pub(crate) fn fill_in(url: &str, config: &Config) -> String {
    let Some(address) = config.resp.listen.0 else { return url.to_owned() };
    for scheme in ["redis://", "rediss://"] {
        let rest = url.strip_prefix(scheme);
        let here = rest.and_then(|rest| rest.strip_prefix(&address.to_string()));
        if let Some(rest) = here.filter(|rest| rest.is_empty() || rest.starts_with('/'))
            && let Ok(password) = fs::read_to_string(path(&config.server.data))
        {
            return format!("{scheme}{USER}:{}@{address}{rest}", password.trim());
        }
    }
    url.to_owned()
}
