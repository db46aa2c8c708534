//! Waiting for a condition, with an end.

use std::time::{Duration, Instant};

/// How long a condition may take on a machine that builds something at the same time. What takes longer hangs.
pub const HANG: Duration = Duration::from_secs(60);

/// Waits until `check` gives something, asking again and again. Panics with `what` after a minute.
///
/// ```no_run
/// # async fn example(store: store::Store) {
/// tidegate_testkit::until("the store answers", async || store.ping().await.ok()).await;
/// # }
/// ```
pub async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(since.elapsed() < HANG, "not seen within {HANG:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// As [`until`], for tests without a runtime.
pub fn until_blocking<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    match until_now(what, || Ok(check())) {
        Ok(found) => found,
        Err(error) => panic!("{error:#}"),
    }
}

/// As [`until_blocking`], for checks that can fail.
pub(crate) fn until_now<T>(
    what: &str,
    mut check: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let since = Instant::now();
    loop {
        if let Some(found) = check()? {
            return Ok(found);
        }
        anyhow::ensure!(since.elapsed() < HANG, "not seen within {HANG:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
