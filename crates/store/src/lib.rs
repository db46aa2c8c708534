//! The one door to data: one handle, two backends, scripts, keys, time.
