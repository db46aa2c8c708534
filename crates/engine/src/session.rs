//! A session: what the engine knows of one client.

/// Names a session; given by [`crate::Engine::connect`]. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// What the engine knows of one client.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// The selected database.
    pub(crate) db: usize,
    /// 2 or 3.
    pub(crate) resp: u8,
    /// Has it shown the password, or is none needed?
    pub(crate) authenticated: bool,
    /// `CLIENT SETNAME`
    pub(crate) name: Vec<u8>,
    /// The peer's address, for `CLIENT LIST`.
    pub(crate) address: String,
    /// A script runs in this session: no blocking, no MULTI, no reply to a client.
    pub(crate) in_script: bool,
    /// EXEC runs in this session: blocking commands answer at once.
    pub(crate) in_exec: bool,
    /// Effects of a log are run in this session: no limits of memory, nothing is denied.
    pub(crate) loading: bool,
}

impl Session {
    pub(crate) fn new(id: SessionId, address: String, authenticated: bool) -> Session {
        Session {
            id,
            db: 0,
            resp: 2,
            authenticated,
            name: Vec::new(),
            address,
            in_script: false,
            in_exec: false,
            loading: false,
        }
    }
}
