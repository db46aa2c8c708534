//! The resolver. Not built yet: the crate marks its place in the workspace.
