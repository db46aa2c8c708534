//! The store's metrics.

use store::redis::{self, FromRedisValue};

use crate::app::App;
use crate::health;
use crate::metrics::{MetricInfo, REQUEST_SECONDS, Reading};
use crate::series::float;

/// The metrics of the store.
pub(super) const METRICS: &[MetricInfo] = &[
    MetricInfo::gauge("tidegate_store_up", &[], "1 while the store answers this instance."),
    MetricInfo::gauge("tidegate_store_writable", &[], "1 while the store takes writes."),
    MetricInfo::gauge("tidegate_store_keys", &[], "Keys in the store.").in_store(),
    MetricInfo::gauge("tidegate_store_memory_bytes", &[], "Memory that the data takes.").in_store(),
    MetricInfo::gauge(
        "tidegate_store_memory_limit_bytes",
        &[],
        "Memory that the data may take; 0 means no limit.",
    )
    .in_store(),
    MetricInfo::gauge("tidegate_store_clients", &[], "Clients connected to the store.").in_store(),
    MetricInfo::counter(
        "tidegate_store_commands_total",
        &[],
        "Commands that the store has run since it started.",
    )
    .in_store(),
    MetricInfo::gauge(
        "tidegate_store_log_bytes",
        &[],
        "Size of the append-only log and its base on disk; missing if the store keeps none.",
    )
    .in_store(),
    MetricInfo::counter(
        "tidegate_store_compactions_total",
        &[],
        "Compactions (rewrites) of the append-only log since the store started.",
    )
    .in_store(),
    MetricInfo::histogram(
        "tidegate_store_script_seconds",
        REQUEST_SECONDS,
        &["script"],
        "Time of a call of a script, from this process to the store and back; one call in 16 is timed.",
    ),
];

/// Reads the figures. Of a cluster they are the sum of its masters.
pub(super) async fn readings(app: &App) -> Result<Vec<Reading>, String> {
    let up = health::store_check(app).await;
    let is = |ok: bool| f64::from(u8::from(ok));
    let mut readings = vec![Reading::new("tidegate_store_up", is(up.ok))];
    if !up.ok {
        readings.push(Reading::new("tidegate_store_writable", 0.0));
        return Ok(readings);
    }
    let writable = health::write_check(app).await;
    readings.push(Reading::new("tidegate_store_writable", is(writable.ok)));
    let ask = async |command: &str| app.store().on_every_node(&redis::cmd(command)).await;
    let (nodes, counts) = match (ask("INFO").await, ask("DBSIZE").await) {
        (Ok(nodes), Ok(counts)) => (nodes, counts),
        (Err(error), _) | (_, Err(error)) => return Err(error.to_string()),
    };
    let infos: Vec<String> = nodes
        .iter()
        .map(|(_, reply)| String::from_redis_value_ref(reply).unwrap_or_default())
        .collect();
    let sum = |field: &str| -> Option<f64> {
        let numbers = infos.iter().filter_map(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            line?.trim().parse::<u64>().ok()
        });
        numbers.map(float).reduce(|a, b| a + b)
    };
    let keys = counts.iter().filter_map(|(_, count)| u64::from_redis_value_ref(count).ok());
    readings.push(Reading::new("tidegate_store_keys", float(keys.sum())));
    for (name, field) in [
        ("tidegate_store_memory_bytes", "used_memory"),
        ("tidegate_store_memory_limit_bytes", "maxmemory"),
        ("tidegate_store_clients", "connected_clients"),
        ("tidegate_store_commands_total", "total_commands_processed"),
        ("tidegate_store_log_bytes", "aof_current_size"),
        ("tidegate_store_compactions_total", "aof_rewrites"),
    ] {
        readings.extend(sum(field).map(|value| Reading::new(name, value)));
    }
    Ok(readings)
}
