//! Waiting for what comes about by itself; what was seen last is shown if it does not.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Time that is enough on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Asks until the answer is as wanted.
#[track_caller]
pub(crate) fn until<T: Debug>(
    what: &str,
    most: Duration,
    mut ask: impl FnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) -> T {
    let deadline = Instant::now() + most;
    loop {
        let answer = ask();
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: {answer:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl FnMut() -> bool) {
    until(what, LONG, holds, |holds| *holds);
}
