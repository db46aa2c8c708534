//! Options of a store.
//!
//! Every field has a default that suits production; tests change the clock and the timeouts. What is
//! about the built-in store alone is there with the feature `embedded` only.

use std::time::Duration;

#[cfg(feature = "embedded")]
use engine::EvictionPolicy;

#[cfg(feature = "embedded")]
use crate::Fsync;
use crate::{Clock, Faults, Layout};

/// Options for opening a store. Start from `Options::default()` and change what differs.
///
/// ```
/// use tidegate_store::{Clock, Millis, Options};
///
/// let (clock, _hands) = Clock::manual(Millis(1_767_225_600_000));
/// let options = Options { clock: Some(clock), ..Options::default() };
/// assert!(!options.strict_scripts);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Source of `now`. By default a server's own `TIME` for a server, so that several
    /// processes agree, and the system clock for the built-in store.
    pub clock: Option<Clock>,
    /// Key layout. By default `Cluster` for `redis+cluster://`, else `Standalone`.
    pub layout: Option<Layout>,
    /// The built-in store refuses scripts that touch keys they did not declare and, when `layout`
    /// is `Cluster`, keys of different cluster slots. A server has no such switch; there it is
    /// ignored.
    #[cfg(feature = "embedded")]
    pub strict_scripts: bool,
    /// Fsync mode of the built-in store's log; ignored for a server.
    #[cfg(feature = "embedded")]
    pub fsync: Fsync,
    /// Bytes the built-in store may use for data before writes are refused; `None` is no limit.
    /// Ignored for a server.
    #[cfg(feature = "embedded")]
    pub maxmemory: Option<u64>,
    /// Eviction policy when that limit is reached; by default nothing is evicted and writes are
    /// refused.
    #[cfg(feature = "embedded")]
    pub maxmemory_policy: EvictionPolicy,
    /// Size in bytes at which the built-in store's log is compacted; it must
    /// also have doubled since the last time. `None` is 64 MiB. Ignored for a server.
    #[cfg(feature = "embedded")]
    pub compact_at: Option<u64>,
    /// Timeouts of calls.
    pub timeouts: Timeouts,
    /// PEM text of the certificate authorities to trust for `rediss://`, in place of the public
    /// ones. `?ca=FILE` in the URL does the same.
    pub tls_ca: Option<Vec<u8>>,
    /// Faults made on purpose, for tests.
    pub faults: Option<Faults>,
}

/// Timeouts of calls. Each is a bound on waiting, so that a store that is away is an error
/// and never a hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Connecting, including the handshake. Default 1 s.
    pub connect: Duration,
    /// Waiting for one reply. Default 2 s: twice what a healthy server needs for its slowest
    /// script with much to spare, short enough for a web request.
    pub response: Duration,
    /// Time a call waits for a lost connection to come back before it fails. Default 250 ms,
    /// which hides a reconnect but not an outage.
    pub patience: Duration,
    /// Interval at which an idle connection is probed, which is also how soon [`Store::health`]
    /// notices a server that went away silently. Default 5 s.
    ///
    /// [`Store::health`]: crate::Store::health
    pub heartbeat: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(1),
            response: Duration::from_secs(2),
            patience: Duration::from_millis(250),
            heartbeat: Duration::from_secs(5),
        }
    }
}
