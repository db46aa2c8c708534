//! The job queue over HTTP: request and response types, handlers, and who may call them.
//!
//! Handlers extract, call the `jobs` crate and translate; nothing here decides anything about the
//! service. Give `app::Services` the handle, convert the crate's error with a `From` here, and
//! put each route into the field of [`Section`] that says who may call it.

use crate::section::Section;

/// The routes.
pub(crate) fn section() -> Section {
    Section::default()
}
