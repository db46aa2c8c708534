//! The only crate that knows HTTP and JSON.
