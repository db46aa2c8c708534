//! Tests that every service has for its scripts.
//!
//! Beside the declarations, in a service's `scripts.rs`:
//!
//! ```ignore
//! #[cfg(test)]
//! mod tests {
//!     use super::*;
//!     tidegate_testkit::scripts_test!("jobs", [claim, enqueue, complete]);
//! }
//! ```
//! makes a test that headers, files and declarations agree (see [`store::script::tidy`]), and tests
//! that every script is understood by every store.

use std::path::Path;

/// Panics with everything that is wrong.
#[doc(hidden)]
pub fn check(service: &str, manifest: &str, folder: &str, scripts: &[&store::Script]) {
    let faults = store::script::tidy::faults(service, &Path::new(manifest).join(folder), scripts);
    assert!(faults.is_empty(), "the scripts of {service}:\n{}", faults.join("\n"));
}

/// Tests a service's scripts; see [`scripts`](crate::scripts).
#[macro_export]
macro_rules! scripts_test {
    ($service:literal, folder: $folder:literal, [$($script:ident),* $(,)?]) => {
        #[test]
        fn lua_files_match_their_declarations() {
            $crate::scripts::check(
                $service, env!("CARGO_MANIFEST_DIR"), $folder, &[$($script::SCRIPT),*],
            );
        }

        $crate::each_store! {
            async fn every_script_is_understood(t: TestStore) {
                $(
                    if let Err(error) = $script::load(&t.store).await {
                        panic!("{}: {error}", stringify!($script));
                    }
                )*
            }
        }
    };
    ($service:literal, [$($script:ident),* $(,)?]) => {
        $crate::scripts_test!($service, folder: "lua", [$($script),*]);
    };
}
