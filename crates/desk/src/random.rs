//! Random bytes of the operating system.

use ring::rand::{SecureRandom, SystemRandom};

use crate::Error;

/// Returns random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| {
        let message = "the operating system gave no random bytes".to_owned();
        Error::Store(store::Error::Invalid { message })
    })?;
    Ok(bytes)
}

/// Returns random bytes in hexadecimal.
pub(crate) fn random_hex<const N: usize>() -> Result<String, Error> {
    Ok(random::<N>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}
