//! Commands and formats that are there for completeness, as Redis's own tests ask for them.
//!
//! No service of Tidegate uses them, and nothing in the core but the command table and the calls
//! from the keyspace to [`tracking`] and [`long_double`] depends on them.

pub(crate) mod bitops;
pub(crate) mod cmsgpack;
pub(crate) mod dump;
pub(crate) mod geo;
pub(crate) mod hyperloglog;
pub(crate) mod long_double;
pub(crate) mod migrate;
pub(crate) mod sort;
pub(crate) mod structs;
pub(crate) mod tracking;
