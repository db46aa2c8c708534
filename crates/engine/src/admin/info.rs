//! INFO: what is known of the server, in sections of `name:value` lines.

use std::fmt::Write as _;
use std::time::Duration;

use crate::admin::traffic::{ProcessUsage, Rate};
use crate::command::{self, CommandRow, Ctx, LOADING, STALE};
use crate::connection::VERSION;
use crate::db::NEVER;
use crate::error::Error;
use crate::persist::SaveReason;
use crate::{Reply, args};

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[CommandRow::new("info", -1, LOADING | STALE, info)];

type Section = fn(&Ctx<'_>, &mut String);

/// Sections in their order; those marked are part of plain INFO.
const SECTIONS: &[(&str, bool, Section)] = &[
    ("Server", true, server),
    ("Clients", true, clients),
    ("Memory", true, memory),
    ("Persistence", true, persistence),
    ("Stats", true, stats),
    ("Replication", true, replication),
    ("CPU", true, cpu),
    ("Modules", true, |_, _| {}),
    ("Commandstats", false, commandstats),
    ("Errorstats", true, errorstats),
    ("Latencystats", false, latencystats),
    ("Cluster", true, |_, out| line(out, "cluster_enabled", 0)),
    ("Keyspace", true, keyspace),
];

fn info(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let asked = ctx.argv.get(1..).unwrap_or_default();
    let wants = |name: &str, by_default: bool| {
        if asked.is_empty() {
            return by_default;
        }
        asked.iter().any(|word| {
            args::is(word, "ALL")
                || args::is(word, "EVERYTHING")
                || (args::is(word, "DEFAULT") && by_default)
                || word.eq_ignore_ascii_case(name.as_bytes())
                || (name == "Modules" && args::is(word, "MODULE_LIST"))
        })
    };
    let mut out = String::new();
    for (name, by_default, section) in SECTIONS {
        if wants(name, *by_default) {
            if !out.is_empty() {
                out.push_str("\r\n");
            }
            out.push_str("# ");
            out.push_str(name);
            out.push_str("\r\n");
            section(ctx, &mut out);
        }
    }
    Ok(Reply::Verbatim(*b"txt", out.into_bytes()))
}

fn line(out: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{name}:{value}\r\n");
}

fn lines<V: std::fmt::Display>(out: &mut String, all: &[(&str, V)]) {
    all.iter().for_each(|(name, value)| line(out, name, value));
}

fn server(ctx: &Ctx<'_>, out: &mut String) {
    let config = &ctx.core.config;
    let uptime = (ctx.now.ms() - ctx.core.started_ms).max(0) / 1000;
    line(out, "redis_version", VERSION);
    lines(out, &[("redis_git_sha1", "00000000"), ("redis_git_dirty", "0")]);
    lines(out, &[("redis_build_id", "0"), ("redis_mode", "standalone")]);
    line(out, "tidegate_version", env!("CARGO_PKG_VERSION"));
    line(out, "os", std::env::consts::OS);
    line(out, "arch_bits", usize::BITS);
    lines(out, &[("monotonic_clock", "given"), ("multiplexing_api", "none")]);
    lines(out, &[("atomicvar_api", "none"), ("gcc_version", "0.0.0")]);
    line(out, "process_id", config.server.process_id);
    line(out, "process_supervised", "no");
    let run_id = if config.server.run_id.is_empty() { ZERO_ID } else { &config.server.run_id };
    line(out, "run_id", run_id);
    line(out, "tcp_port", config.server.port);
    line(out, "server_time_usec", ctx.now.unix_us);
    line(out, "uptime_in_seconds", uptime);
    line(out, "uptime_in_days", uptime / 86_400);
    lines(out, &[("hz", 10), ("configured_hz", 10)]);
    line(out, "lru_clock", (ctx.now.ms() / 1000) & 0xff_ffff);
    lines(out, &[("executable", ""), ("config_file", "")]);
    line(out, "io_threads_active", 0);
}

const ZERO_ID: &str = "0000000000000000000000000000000000000000";

fn clients(ctx: &Ctx<'_>, out: &mut String) {
    let core = &ctx.core;
    // What the process opened for itself is no client.
    let others = core.sessions.values().flatten().filter(|session| !session.trusted).count();
    line(out, "connected_clients", others + usize::from(!ctx.session.trusted));
    line(out, "cluster_connections", 0);
    line(out, "maxclients", String::from_utf8_lossy(&core.setting("maxclients", "10000")));
    let sessions = || core.sessions.values().flatten().map(|session| &**session);
    let sessions = || sessions().chain([&*ctx.session]);
    let inputs = sessions().map(|session| session.buffers.unread + session.buffers.room);
    line(out, "client_recent_max_input_buffer", inputs.max().unwrap_or(0));
    let outputs = sessions().map(|session| session.buffers.unsent);
    line(out, "client_recent_max_output_buffer", outputs.max().unwrap_or(0));
    line(out, "blocked_clients", core.blocked);
    line(out, "tracking_clients", core.tracking.clients());
    let waits = sessions().filter_map(|session| session.blocked.as_ref()?.deadline_ms);
    line(out, "clients_in_timeout_table", waits.count());
}

fn memory(ctx: &Ctx<'_>, out: &mut String) {
    let used = ctx.core.used_memory();
    let peak = ctx.core.memory.peak.max(used);
    let limit = ctx.core.config.maxmemory;
    let both = |out: &mut String, name: &str, n: u64| {
        line(out, name, n);
        line(out, &format!("{name}_human"), human(n));
    };
    both(out, "used_memory", used as u64);
    both(out, "used_memory_rss", ctx.core.resident_memory() as u64);
    both(out, "used_memory_peak", peak as u64);
    line(out, "used_memory_peak_perc", format_args!("{:.2}%", percent(used, peak)));
    let clients = ctx.core.client_memory();
    line(out, "used_memory_overhead", clients);
    line(out, "used_memory_startup", 0);
    line(out, "used_memory_dataset", used - clients);
    line(out, "used_memory_dataset_perc", format_args!("{:.2}%", percent(used - clients, used)));
    line(out, "allocator_allocated", used);
    line(out, "allocator_active", used);
    line(out, "allocator_resident", ctx.core.resident_memory());
    both(out, "total_system_memory", ctx.core.usage.system_bytes);
    let scripts = &ctx.core.scripts;
    let (vm, functions_vm) = (scripts.vm_memory() as u64, scripts.functions.vm_memory() as u64);
    let (texts, function_texts) = (scripts.memory() as u64, scripts.functions.memory() as u64);
    let (libraries, functions) = scripts.functions.counts();
    line(out, "used_memory_vm_eval", vm);
    both(out, "used_memory_lua", vm);
    line(out, "used_memory_scripts_eval", texts);
    line(out, "number_of_cached_scripts", scripts.count());
    line(out, "number_of_functions", functions);
    line(out, "number_of_libraries", libraries);
    line(out, "used_memory_vm_functions", functions_vm);
    both(out, "used_memory_vm_total", vm + functions_vm);
    line(out, "used_memory_functions", function_texts);
    both(out, "used_memory_scripts", texts + function_texts);
    both(out, "maxmemory", limit);
    line(out, "maxmemory_policy", ctx.core.config.maxmemory_policy.name());
    lines(out, &[("allocator_frag_ratio", "1.00"), ("allocator_frag_bytes", "0")]);
    lines(out, &[("allocator_rss_ratio", "1.00"), ("allocator_rss_bytes", "0")]);
    lines(out, &[("rss_overhead_ratio", "1.00"), ("rss_overhead_bytes", "0")]);
    let resident = ctx.core.resident_memory();
    line(out, "mem_fragmentation_ratio", format_args!("{:.2}", percent(resident, used) / 100.0));
    line(out, "mem_fragmentation_bytes", resident as i64 - used as i64);
    line(out, "mem_clients_normal", clients);
    for name in [
        "mem_not_counted_for_evict",
        "mem_replication_backlog",
        "mem_total_replication_buffers",
        "mem_clients_slaves",
        "mem_cluster_links",
        "mem_aof_buffer",
    ] {
        line(out, name, 0);
    }
    line(out, "mem_allocator", "system");
    line(out, "active_defrag_running", 0);
    line(out, "lazyfree_pending_objects", ctx.core.lazyfree.pending());
    line(out, "lazyfreed_objects", ctx.core.lazyfree.freed());
}

fn percent(part: usize, whole: usize) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// A number of bytes as Redis rounds it for people.
pub(crate) fn human(n: u64) -> String {
    let units = ["K", "M", "G", "T", "P"];
    if n < 1024 {
        return format!("{n}B");
    }
    let mut value = n as f64 / 1024.0;
    for unit in units {
        if value < 1024.0 {
            return format!("{value:.2}{unit}");
        }
        value /= 1024.0;
    }
    format!("{n}B")
}

fn persistence(ctx: &Ctx<'_>, out: &mut String) {
    let core = &ctx.core;
    let keeping = &core.keeping;
    let seconds = |running: bool| match running {
        true => (ctx.now.ms() - keeping.began_ms).max(0) / 1000,
        false => -1,
    };
    let (saving, rewriting) =
        (keeping.saving == Some(SaveReason::Save), keeping.saving == Some(SaveReason::Rewrite));
    let status = if keeping.failures > 0 { "err" } else { "ok" };
    let took = keeping.took_s.unwrap_or(-1);
    lines(out, &[("loading", 0), ("async_loading", 0)]);
    lines(out, &[("current_cow_peak", 0), ("current_cow_size", 0), ("current_cow_size_age", 0)]);
    line(out, "current_fork_perc", "0.00");
    lines(out, &[("current_save_keys_processed", 0), ("current_save_keys_total", 0)]);
    line(out, "rdb_changes_since_last_save", core.dirty.saturating_sub(keeping.dirty));
    line(out, "rdb_bgsave_in_progress", u8::from(saving));
    line(out, "rdb_last_save_time", core.saved_at_ms / 1000);
    line(out, "rdb_last_bgsave_status", status);
    line(out, "rdb_last_bgsave_time_sec", took);
    line(out, "rdb_current_bgsave_time_sec", seconds(saving));
    line(out, "rdb_saves", keeping.saves);
    line(out, "rdb_last_cow_size", 0);
    lines(out, &[("rdb_last_load_keys_expired", 0), ("rdb_last_load_keys_loaded", 0)]);
    line(out, "aof_enabled", u8::from(core.config.log_effects));
    line(out, "aof_rewrite_in_progress", u8::from(rewriting));
    line(out, "aof_rewrite_scheduled", 0);
    line(out, "aof_last_rewrite_time_sec", took);
    line(out, "aof_current_rewrite_time_sec", seconds(rewriting));
    line(out, "aof_last_bgrewrite_status", status);
    line(out, "aof_rewrites", keeping.saves);
    line(out, "aof_rewrites_consecutive_failures", keeping.failures);
    let status = if core.deny_writes.is_some() { "err" } else { "ok" };
    line(out, "aof_last_write_status", status);
    lines(out, &[("aof_last_cow_size", 0), ("module_fork_in_progress", 0)]);
    line(out, "module_fork_last_cow_size", 0);
    if core.config.log_effects {
        line(out, "aof_current_size", keeping.base_bytes + keeping.log_bytes);
        line(out, "aof_base_size", keeping.base_bytes);
        for name in [
            "aof_pending_rewrite",
            "aof_buffer_length",
            "aof_pending_bio_fsync",
            "aof_delayed_fsync",
        ] {
            line(out, name, 0);
        }
    }
}

fn stats(ctx: &Ctx<'_>, out: &mut String) {
    let core = &ctx.core;
    let stats = &core.stats;
    line(out, "total_connections_received", stats.connections);
    line(out, "total_commands_processed", stats.commands);
    let (rates, traffic) = (&core.rates, &core.traffic);
    line(out, "instantaneous_ops_per_sec", rates.commands.per_second());
    line(out, "total_net_input_bytes", traffic.input_bytes());
    line(out, "total_net_output_bytes", traffic.output_bytes());
    lines(out, &[("total_net_repl_input_bytes", 0), ("total_net_repl_output_bytes", 0)]);
    let kbps = |rate: &Rate| format!("{:.2}", rate.per_second() as f64 / 1024.0);
    line(out, "instantaneous_input_kbps", kbps(&rates.input_bytes));
    line(out, "instantaneous_output_kbps", kbps(&rates.output_bytes));
    for name in ["instantaneous_input_repl_kbps", "instantaneous_output_repl_kbps"] {
        line(out, name, "0.00");
    }
    line(out, "rejected_connections", traffic.rejected());
    for name in ["sync_full", "sync_partial_ok", "sync_partial_err"] {
        line(out, name, 0);
    }
    line(out, "expired_keys", stats.expired_keys);
    line(out, "expired_subkeys", stats.expired_fields);
    line(out, "expired_stale_perc", "0.00");
    line(out, "expired_time_cap_reached_count", 0);
    line(out, "expire_cycle_cpu_milliseconds", 0);
    line(out, "evicted_keys", stats.evicted_keys);
    line(out, "evicted_clients", 0);
    line(out, "total_eviction_exceeded_time", 0);
    line(out, "current_eviction_exceeded_time", 0);
    line(out, "keyspace_hits", stats.keyspace_hits);
    line(out, "keyspace_misses", stats.keyspace_misses);
    let (channels, patterns, shards) = core.pubsub.counts();
    line(out, "pubsub_channels", channels);
    line(out, "pubsub_patterns", patterns);
    line(out, "pubsubshard_channels", shards);
    for name in [
        "latest_fork_usec",
        "total_forks",
        "migrate_cached_sockets",
        "slave_expires_tracked_keys",
        "active_defrag_hits",
        "active_defrag_misses",
        "active_defrag_key_hits",
        "active_defrag_key_misses",
        "total_active_defrag_time",
        "current_active_defrag_time",
    ] {
        line(out, name, 0);
    }
    let (keys, items, prefixes) = core.tracking.counts();
    line(out, "tracking_total_keys", keys);
    line(out, "tracking_total_items", items);
    line(out, "tracking_total_prefixes", prefixes);
    line(out, "unexpected_error_replies", 0);
    line(out, "total_error_replies", stats.errors.values().sum::<u64>());
    line(out, "acl_access_denied_auth", core.acl.wrong_passwords);
    line(out, "dump_payload_sanitizations", 0);
    line(out, "total_reads_processed", traffic.reads());
    line(out, "total_writes_processed", traffic.writes());
    line(out, "io_threaded_reads_processed", 0);
    line(out, "io_threaded_writes_processed", 0);
    line(out, "reply_buffer_shrinks", 0);
    line(out, "reply_buffer_expands", 0);
}

fn replication(_: &Ctx<'_>, out: &mut String) {
    line(out, "role", "master");
    line(out, "connected_slaves", 0);
    line(out, "master_failover_state", "no-failover");
    line(out, "master_replid", ZERO_ID);
    line(out, "master_replid2", ZERO_ID);
    line(out, "master_repl_offset", 0);
    line(out, "second_repl_offset", -1);
    line(out, "repl_backlog_active", 0);
    line(out, "repl_backlog_size", 1_048_576);
    line(out, "repl_backlog_first_byte_offset", 0);
    line(out, "repl_backlog_histlen", 0);
}

fn cpu(ctx: &Ctx<'_>, out: &mut String) {
    let ProcessUsage { user_time, system_time, .. } = ctx.core.usage;
    let seconds = |time: Duration| format!("{:.6}", time.as_secs_f64());
    line(out, "used_cpu_sys", seconds(system_time));
    line(out, "used_cpu_user", seconds(user_time));
    // It starts no child processes, and has no thread that would be the main one.
    lines(out, &[("used_cpu_sys_children", "0.000000"), ("used_cpu_user_children", "0.000000")]);
}

fn commandstats(ctx: &Ctx<'_>, out: &mut String) {
    for command in command::commands() {
        let name = &command.full_name;
        let Some(stats) = ctx.core.stats.of(command) else { continue };
        line(
            out,
            &format!("cmdstat_{name}"),
            format_args!(
                "calls={},usec={},usec_per_call={:.2},rejected_calls={},failed_calls={}",
                stats.calls,
                stats.total.as_micros(),
                stats.total.as_secs_f64() * 1e6 / stats.calls.max(1) as f64,
                stats.rejected,
                stats.failed
            ),
        );
    }
}

fn latencystats(ctx: &Ctx<'_>, out: &mut String) {
    if ctx.core.latency.untracked {
        return;
    }
    let wanted = ctx.core.setting("latency-tracking-info-percentiles", "50 99 99.9");
    let wanted = String::from_utf8_lossy(&wanted);
    let wanted: Vec<(&str, f64)> =
        wanted.split_whitespace().filter_map(|p| Some((p, p.parse().ok()?))).collect();
    for command in command::commands() {
        let name = &command.full_name;
        let Some(stats) = ctx.core.stats.of(command).filter(|s| s.took.total() > 0) else {
            continue;
        };
        let found = wanted.iter().map(|(p, n)| format!("p{p}={:.3}", stats.took.percentile(*n)));
        let found: Vec<String> = found.collect();
        line(out, &format!("latency_percentiles_usec_{name}"), found.join(","));
    }
}

fn errorstats(ctx: &Ctx<'_>, out: &mut String) {
    let mut errors: Vec<_> = ctx.core.stats.errors.iter().collect();
    errors.sort_unstable();
    for (code, count) in errors {
        let name = format!("errorstat_{}", String::from_utf8_lossy(code));
        line(out, &name, format_args!("count={count}"));
    }
}

fn keyspace(ctx: &Ctx<'_>, out: &mut String) {
    for (number, db) in ctx.core.dbs.iter().enumerate().filter(|(_, db)| !db.keys.is_empty()) {
        let now_ms = ctx.now.ms();
        // The mean over a few keys is as good as what Redis estimates while it sweeps.
        let mut rng = fastrand::Rng::with_seed(0);
        let some = db.some_expiring(&mut rng, 16);
        let left = some.iter().filter(|e| e.expires_at != NEVER).map(|e| e.expires_at - now_ms);
        let mean = left.map(|ms| ms.max(0)).sum::<i64>() / (some.len().max(1) as i64);
        line(
            out,
            &format!("db{number}"),
            format_args!("keys={},expires={},avg_ttl={mean}", db.keys.len(), db.expiring),
        );
    }
}
