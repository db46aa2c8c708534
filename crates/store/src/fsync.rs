//! Fsync modes of the built-in store's log.

/// Fsync mode of the built-in store's log. Whatever is chosen, the log is written before
/// the reply, so a killed process loses nothing; this is about power cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// Before each reply, many replies sharing one fsync.
    Always,
    /// Once a second, as Redis does by default.
    #[default]
    Everysec,
    /// Left to the operating system.
    No,
}

impl std::str::FromStr for Fsync {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::named(name.as_bytes()).ok_or(())
    }
}

impl Fsync {
    /// Its name in settings, as Redis's `appendfsync` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Everysec => "everysec",
            Self::No => "no",
        }
    }

    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        [Self::Always, Self::Everysec, Self::No].into_iter().find(|f| f.name().as_bytes() == name)
    }

    /// The one with this number, as `as u8` gave it.
    pub(crate) fn numbered(number: u8) -> Self {
        match number {
            0 => Self::Always,
            1 => Self::Everysec,
            _ => Self::No,
        }
    }
}
