//! Scripts the engine has seen, by their SHA-1 and by their text.
//!
//! As in Redis they stay until `SCRIPT FLUSH`. What the interpreter compiled of them is bounded:
//! when there is too much of it, it goes and is compiled again when needed.

use std::sync::Arc;

use hashbrown::HashMap;
use sha1::{Digest, Sha1};

use super::source::{self, ScriptFlags};

/// Scripts kept compiled. At some 5 kB each this is well below what one script may use.
const MAX_COMPILED: usize = 2000;

/// A script.
#[derive(Debug)]
pub(super) struct CachedScript {
    pub(super) sha: Arc<str>,
    pub(super) flags: ScriptFlags,
    body: Box<[u8]>,
    compiled: bool,
}

/// All scripts.
#[derive(Debug, Default)]
pub(super) struct Cache {
    scripts: Vec<CachedScript>,
    by_sha: HashMap<[u8; 40], u32>,
    by_body: HashMap<Box<[u8]>, u32>,
    compiled: Vec<u32>,
    bytes: usize,
}

/// The SHA-1 of something in 40 hexadecimal digits.
pub(super) fn sha1hex(bytes: &[u8]) -> String {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let digit = |n: u8| HEX.get(usize::from(n)).copied().map_or('0', char::from);
    let digest = Sha1::digest(bytes);
    digest.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

impl Cache {
    /// Number of scripts.
    pub(super) fn len(&self) -> usize {
        self.scripts.len()
    }

    /// Bytes of memory they take.
    pub(super) fn memory(&self) -> usize {
        // Text twice (as itself and as a key), and about 150 bytes around it.
        self.bytes * 2 + self.scripts.len() * 150
    }

    /// The number of the script with this SHA-1, in any case.
    pub(super) fn find_sha(&self, sha: &[u8]) -> Option<u32> {
        let mut lower: [u8; 40] = sha.try_into().ok()?;
        lower.make_ascii_lowercase();
        self.by_sha.get(&lower).copied()
    }

    /// The number of the script with this text.
    pub(super) fn find_body(&self, body: &[u8]) -> Option<u32> {
        self.by_body.get(body).copied()
    }

    /// A script by its number.
    pub(super) fn get(&self, id: u32) -> Option<&CachedScript> {
        self.scripts.get(id as usize)
    }

    /// Takes a script in. `compile` compiles a source under a number; its error keeps the script
    /// out.
    pub(super) fn add(
        &mut self,
        body: &[u8],
        compile: impl FnOnce(u32, &[u8]) -> Result<(), Vec<u8>>,
    ) -> Result<u32, Vec<u8>> {
        let header = source::header(body)?;
        let id = u32::try_from(self.scripts.len()).unwrap_or(u32::MAX);
        compile(id, body.get(header.skip..).unwrap_or_default())?;
        let sha = sha1hex(body);
        if let Ok(key) = sha.as_bytes().try_into() {
            self.by_sha.insert(key, id);
        }
        self.by_body.insert(body.into(), id);
        self.bytes += body.len();
        let sha = sha.into();
        self.scripts.push(CachedScript {
            sha,
            flags: header.flags,
            body: body.into(),
            compiled: true,
        });
        self.compiled.push(id);
        Ok(id)
    }

    /// Makes sure the script is compiled. `forget` drops others if there are too many.
    pub(super) fn ensure_compiled(
        &mut self,
        id: u32,
        compile: impl FnOnce(u32, &[u8]) -> Result<(), Vec<u8>>,
        mut forget: impl FnMut(u32),
    ) -> Result<(), Vec<u8>> {
        if self.compiled.len() > MAX_COMPILED {
            for other in self.compiled.drain(..) {
                if other != id
                    && let Some(script) = self.scripts.get_mut(other as usize)
                {
                    script.compiled = false;
                    forget(other);
                }
            }
            self.compiled.push(id);
        }
        let Some(script) = self.scripts.get_mut(id as usize) else { return Ok(()) };
        if script.compiled {
            return Ok(());
        }
        let skip = source::header(&script.body)?.skip;
        compile(id, script.body.get(skip..).unwrap_or_default())?;
        script.compiled = true;
        self.compiled.push(id);
        Ok(())
    }

    /// The interpreter is a new one: nothing is compiled in it.
    pub(super) fn forget_compiled(&mut self) {
        self.compiled.clear();
        for script in &mut self.scripts {
            script.compiled = false;
        }
    }
}
