//! Helpers for the made-up traffic of services.

use store::Millis;

/// Returns a number between 0 and 1 that goes up and down once in `period` milliseconds.
pub fn tide(now: Millis, period: i64) -> f64 {
    let phase = now.0.rem_euclid(period) as f64 / period as f64;
    (1.0 - (phase * std::f64::consts::TAU).cos()) / 2.0
}

/// Logs why made-up traffic ended, if it failed.
pub fn report_end(ended: anyhow::Result<()>, who: &str) {
    if let Err(error) = ended {
        tracing::warn!(error = format!("{error:#}"), "{who} of the demo went home");
    }
}
