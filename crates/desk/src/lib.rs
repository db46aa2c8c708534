//! Metrics, limits, sessions and chat. Not built yet: the crate marks its place in the workspace.
