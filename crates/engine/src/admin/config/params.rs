//! The table of settings that CONFIG knows: name, kind, bounds, default. Generated once from what
//! Redis 7.0 documents; settings of TLS are left out, because the embedding program owns the
//! sockets.

/// One row.
#[derive(Debug)]
pub(super) struct Param {
    pub(super) name: &'static str,
    /// An older name for the same.
    pub(super) alias: Option<&'static str>,
    pub(super) kind: ParamKind,
    pub(super) default: &'static str,
    /// Cannot be changed while running.
    pub(super) fixed: bool,
    /// Not shown by patterns.
    pub(super) hidden: bool,
    /// Cannot be changed unless a setting that is not there says so.
    pub(super) protected: bool,
}

/// The values a setting takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum ParamKind {
    Flag,
    Text,
    Choice(&'static [&'static str]),
    Int {
        least: i128,
        most: i128,
    },
    Memory {
        least: i128,
        most: i128,
    },
    /// Bytes, or a share like `5%`.
    MemoryOrPercent {
        most: i128,
    },
    Octal,
}

impl Param {
    const fn new(name: &'static str, kind: ParamKind, default: &'static str) -> Param {
        Param { name, alias: None, kind, default, fixed: false, hidden: false, protected: false }
    }

    const fn alias(mut self, alias: &'static str) -> Param {
        self.alias = Some(alias);
        self
    }

    const fn fixed(mut self) -> Param {
        self.fixed = true;
        self
    }

    const fn hidden(mut self) -> Param {
        self.hidden = true;
        self
    }

    const fn protected(mut self) -> Param {
        self.protected = true;
        self
    }
}

const fn flag(name: &'static str, default: &'static str) -> Param {
    Param::new(name, ParamKind::Flag, default)
}

const fn text(name: &'static str, default: &'static str) -> Param {
    Param::new(name, ParamKind::Text, default)
}

const fn choice(
    name: &'static str,
    among: &'static [&'static str],
    default: &'static str,
) -> Param {
    Param::new(name, ParamKind::Choice(among), default)
}

const fn int(name: &'static str, least: i128, most: i128, default: &'static str) -> Param {
    Param::new(name, ParamKind::Int { least, most }, default)
}

const fn memory(name: &'static str, least: i128, most: i128, default: &'static str) -> Param {
    Param::new(name, ParamKind::Memory { least, most }, default)
}

const fn octal(name: &'static str, default: &'static str) -> Param {
    Param::new(name, ParamKind::Octal, default)
}

/// Settings that the engine, or the store and the listener around it, act on.
pub(super) const ACTED_ON: &[&str] = &[
    "acl-pubsub-default",
    "acllog-max-len",
    "appendfsync",
    "busy-reply-threshold",
    "client-output-buffer-limit",
    "client-query-buffer-limit",
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
    "hll-sparse-max-bytes",
    "latency-monitor-threshold",
    "latency-tracking",
    "latency-tracking-info-percentiles",
    "lazyfree-lazy-eviction",
    "lazyfree-lazy-expire",
    "lazyfree-lazy-user-del",
    "lfu-decay-time",
    "lfu-log-factor",
    "maxmemory",
    "maxmemory-policy",
    "maxmemory-samples",
    "min-replicas-max-lag",
    "min-replicas-to-write",
    "notify-keyspace-events",
    "port",
    "proto-max-bulk-len",
    "requirepass",
    "set-max-intset-entries",
    "slowlog-log-slower-than",
    "slowlog-max-len",
    "stream-node-max-bytes",
    "stream-node-max-entries",
    "tracking-table-max-keys",
    "zset-max-listpack-entries",
    "zset-max-listpack-value",
];

/// Settings that are kept and shown but not acted on. They are hints about speed and memory, or
/// about files and replicas that this store does not have; no reply depends on them. Any other
/// setting can only be set to the value it has. docs/stores.md has the same list.
pub(super) const IGNORED: &[&str] = &[
    "active-defrag-cycle-max",
    "active-defrag-cycle-min",
    "active-defrag-ignore-bytes",
    "active-defrag-max-scan-fields",
    "active-defrag-threshold-lower",
    "active-defrag-threshold-upper",
    "active-expire-effort",
    "activerehashing",
    "aof-disable-auto-gc",
    "aof-load-truncated",
    "aof-rewrite-incremental-fsync",
    "aof-timestamp-enabled",
    "aof-use-rdb-preamble",
    "auto-aof-rewrite-min-size",
    "auto-aof-rewrite-percentage",
    "crash-log-enabled",
    "crash-memcheck-enabled",
    "dynamic-hz",
    "hz",
    "jemalloc-bg-thread",
    "key-load-delay",
    "lazyfree-lazy-server-del",
    "lazyfree-lazy-user-flush",
    "list-compress-depth",
    "list-max-listpack-size",
    "loading-process-events-interval-bytes",
    "loglevel",
    "maxmemory-eviction-tenacity",
    "no-appendfsync-on-rewrite",
    "rdb-del-sync-files",
    "rdb-key-save-delay",
    "rdb-save-incremental-fsync",
    "rdbcompression",
    "repl-backlog-size",
    "repl-backlog-ttl",
    "repl-disable-tcp-nodelay",
    "repl-diskless-load",
    "repl-diskless-sync",
    "repl-diskless-sync-delay",
    "repl-diskless-sync-max-replicas",
    "repl-ping-replica-period",
    "repl-timeout",
    "replica-lazy-flush",
    "sanitize-dump-payload",
    "save",
    "set-max-listpack-entries",
    "set-max-listpack-value",
    "shutdown-timeout",
    "stop-writes-on-bgsave-error",
    "tcp-keepalive",
    "watchdog-period",
];

const INT: i128 = i32::MAX as i128;
const UINT: i128 = u32::MAX as i128;
const LONG: i128 = i64::MAX as i128;
const ULONG: i128 = u64::MAX as i128;

/// All settings, by name.
pub(super) const PARAMS: &[Param] = &[
    choice("acl-pubsub-default", &["allchannels", "resetchannels"], "resetchannels"),
    text("aclfile", "").fixed(),
    int("acllog-max-len", 0, LONG, "128"),
    int("active-defrag-cycle-max", 1, 99, "25"),
    int("active-defrag-cycle-min", 1, 99, "1"),
    memory("active-defrag-ignore-bytes", 1, LONG, "104857600"),
    int("active-defrag-max-scan-fields", 1, LONG, "1000"),
    int("active-defrag-threshold-lower", 0, 1000, "10"),
    int("active-defrag-threshold-upper", 0, 1000, "100"),
    int("active-expire-effort", 1, 10, "1"),
    flag("activedefrag", "no"),
    flag("activerehashing", "yes"),
    flag("always-show-logo", "no").fixed(),
    flag("aof-disable-auto-gc", "no"),
    flag("aof-load-truncated", "yes"),
    flag("aof-rewrite-incremental-fsync", "yes"),
    flag("aof-timestamp-enabled", "no"),
    flag("aof-use-rdb-preamble", "yes"),
    text("appenddirname", "appendonlydir").fixed(),
    text("appendfilename", "appendonly.aof").fixed(),
    choice("appendfsync", &["everysec", "always", "no"], "everysec"),
    flag("appendonly", "no"),
    memory("auto-aof-rewrite-min-size", 0, LONG, "67108864"),
    int("auto-aof-rewrite-percentage", 0, INT, "100"),
    text("bind", "* -::*"),
    text("bind-source-addr", ""),
    int("busy-reply-threshold", 0, LONG, "5000").alias("lua-time-limit"),
    text(
        "client-output-buffer-limit",
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
    ),
    memory("client-query-buffer-limit", 1048576, LONG, "1073741824"),
    flag("cluster-allow-pubsubshard-when-down", "yes"),
    flag("cluster-allow-reads-when-down", "no"),
    flag("cluster-allow-replica-migration", "yes"),
    int("cluster-announce-bus-port", 0, 65535, "0"),
    text("cluster-announce-hostname", ""),
    text("cluster-announce-ip", ""),
    int("cluster-announce-port", 0, 65535, "0"),
    int("cluster-announce-tls-port", 0, 65535, "0"),
    text("cluster-config-file", "nodes.conf").fixed(),
    flag("cluster-enabled", "no").fixed(),
    memory("cluster-link-sendbuf-limit", 0, ULONG, "0"),
    int("cluster-migration-barrier", 0, INT, "1"),
    int("cluster-node-timeout", 0, LONG, "15000"),
    int("cluster-port", 0, 65535, "0").fixed(),
    choice("cluster-preferred-endpoint-type", &["ip", "hostname", "unknown-endpoint"], "ip"),
    flag("cluster-replica-no-failover", "no").alias("cluster-slave-no-failover"),
    int("cluster-replica-validity-factor", 0, INT, "10").alias("cluster-slave-validity-factor"),
    flag("cluster-require-full-coverage", "yes"),
    flag("crash-log-enabled", "yes"),
    flag("crash-memcheck-enabled", "yes"),
    flag("daemonize", "no").fixed(),
    int("databases", 1, INT, "16").fixed(),
    text("dbfilename", "dump.rdb").protected(),
    text("dir", ".").protected(),
    flag("disable-thp", "yes").fixed(),
    flag("dynamic-hz", "yes"),
    choice("enable-debug-command", &["no", "yes", "local"], "no").fixed(),
    choice("enable-module-command", &["no", "yes", "local"], "no").fixed(),
    choice("enable-protected-configs", &["no", "yes", "local"], "no").fixed(),
    int("hash-max-listpack-entries", 0, LONG, "512").alias("hash-max-ziplist-entries"),
    memory("hash-max-listpack-value", 0, LONG, "64").alias("hash-max-ziplist-value"),
    memory("hll-sparse-max-bytes", 0, LONG, "3000"),
    int("hz", 0, INT, "10"),
    text("ignore-warnings", ""),
    int("io-threads", 1, 128, "1").fixed(),
    flag("io-threads-do-reads", "no").fixed(),
    flag("jemalloc-bg-thread", "yes"),
    int("key-load-delay", -INT - 1, INT, "0").hidden(),
    int("latency-monitor-threshold", 0, LONG, "0"),
    flag("latency-tracking", "yes"),
    text("latency-tracking-info-percentiles", "50 99 99.9"),
    flag("lazyfree-lazy-eviction", "no"),
    flag("lazyfree-lazy-expire", "no"),
    flag("lazyfree-lazy-server-del", "no"),
    flag("lazyfree-lazy-user-del", "no"),
    flag("lazyfree-lazy-user-flush", "no"),
    int("lfu-decay-time", 0, INT, "1"),
    int("lfu-log-factor", 0, INT, "10"),
    int("list-compress-depth", 0, INT, "0"),
    int("list-max-listpack-size", -INT - 1, INT, "-2").alias("list-max-ziplist-size"),
    int("loading-process-events-interval-bytes", 1024, INT, "2097152").hidden(),
    text("logfile", "").fixed(),
    choice("loglevel", &["debug", "verbose", "notice", "warning"], "notice"),
    text("masterauth", ""),
    text("masteruser", ""),
    int("maxclients", 1, UINT, "10000"),
    memory("maxmemory", 0, ULONG, "0"),
    Param::new("maxmemory-clients", ParamKind::MemoryOrPercent { most: LONG }, "0"),
    int("maxmemory-eviction-tenacity", 0, 100, "10"),
    choice(
        "maxmemory-policy",
        &[
            "volatile-lru",
            "volatile-lfu",
            "volatile-random",
            "volatile-ttl",
            "allkeys-lru",
            "allkeys-lfu",
            "allkeys-random",
            "noeviction",
        ],
        "noeviction",
    ),
    int("maxmemory-samples", 1, INT, "5"),
    int("min-replicas-max-lag", 0, INT, "10").alias("min-slaves-max-lag"),
    int("min-replicas-to-write", 0, INT, "0").alias("min-slaves-to-write"),
    flag("no-appendfsync-on-rewrite", "no"),
    text("notify-keyspace-events", ""),
    choice("oom-score-adj", &["no", "yes", "relative", "absolute"], "no"),
    text("oom-score-adj-values", "0 200 800"),
    text("pidfile", "").fixed(),
    int("port", 0, 65535, "6379"),
    text("proc-title-template", "{title} {listen-addr} {server-mode}"),
    choice("propagation-error-behavior", &["ignore", "panic", "panic-on-replicas"], "ignore"),
    flag("protected-mode", "yes"),
    memory("proto-max-bulk-len", 1048576, LONG, "536870912"),
    flag("rdb-del-sync-files", "no"),
    int("rdb-key-save-delay", -INT - 1, INT, "0").hidden(),
    flag("rdb-save-incremental-fsync", "yes"),
    flag("rdbchecksum", "yes").fixed(),
    flag("rdbcompression", "yes"),
    memory("repl-backlog-size", 1, LONG, "1048576"),
    int("repl-backlog-ttl", 0, LONG, "3600"),
    flag("repl-disable-tcp-nodelay", "no"),
    choice("repl-diskless-load", &["disabled", "on-empty-db", "swapdb"], "disabled"),
    flag("repl-diskless-sync", "yes"),
    int("repl-diskless-sync-delay", 0, INT, "5"),
    int("repl-diskless-sync-max-replicas", 0, INT, "0"),
    int("repl-ping-replica-period", 1, INT, "10").alias("repl-ping-slave-period"),
    int("repl-timeout", 1, INT, "60"),
    text("replica-announce-ip", "").alias("slave-announce-ip"),
    int("replica-announce-port", 0, 65535, "0").alias("slave-announce-port"),
    flag("replica-announced", "yes"),
    flag("replica-ignore-disk-write-errors", "no"),
    flag("replica-ignore-maxmemory", "yes").alias("slave-ignore-maxmemory"),
    flag("replica-lazy-flush", "no").alias("slave-lazy-flush"),
    int("replica-priority", 0, INT, "100").alias("slave-priority"),
    flag("replica-read-only", "yes").alias("slave-read-only"),
    flag("replica-serve-stale-data", "yes").alias("slave-serve-stale-data"),
    text("replicaof", "").alias("slaveof").fixed(),
    text("requirepass", ""),
    choice("sanitize-dump-payload", &["no", "yes", "clients"], "no"),
    text("save", ""),
    int("set-max-intset-entries", 0, LONG, "512"),
    int("set-max-listpack-entries", 0, LONG, "128").hidden(),
    memory("set-max-listpack-value", 0, LONG, "64").hidden(),
    flag("set-proc-title", "yes").fixed(),
    choice("shutdown-on-sigint", &["default", "save", "nosave", "now", "force"], "default"),
    choice("shutdown-on-sigterm", &["default", "save", "nosave", "now", "force"], "default"),
    int("shutdown-timeout", 0, INT, "10"),
    int("slowlog-log-slower-than", -1, LONG, "10000"),
    int("slowlog-max-len", 0, LONG, "128"),
    int("socket-mark-id", 0, UINT, "0").fixed(),
    flag("stop-writes-on-bgsave-error", "yes"),
    memory("stream-node-max-bytes", 0, LONG, "4096"),
    int("stream-node-max-entries", 0, LONG, "100"),
    choice("supervised", &["upstart", "systemd", "auto", "no"], "no").fixed(),
    flag("syslog-enabled", "no").fixed(),
    choice(
        "syslog-facility",
        &["user", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"],
        "local0",
    )
    .fixed(),
    text("syslog-ident", "redis").fixed(),
    int("tcp-backlog", 0, INT, "511").fixed(),
    int("tcp-keepalive", 0, INT, "300"),
    int("timeout", 0, INT, "0"),
    int("tracking-table-max-keys", 0, LONG, "1000000"),
    text("unixsocket", "").fixed(),
    octal("unixsocketperm", "0").fixed(),
    flag("use-exit-on-panic", "no").hidden(),
    int("watchdog-period", 0, INT, "0").hidden(),
    int("zset-max-listpack-entries", 0, LONG, "128").alias("zset-max-ziplist-entries"),
    memory("zset-max-listpack-value", 0, LONG, "64").alias("zset-max-ziplist-value"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_that_is_named_as_acted_on_or_ignored_exists_and_is_one_of_both() {
        let known = |name: &&&str| PARAMS.iter().any(|param| param.name == **name && !param.fixed);
        for name in ACTED_ON.iter().chain(IGNORED) {
            assert!(known(&name), "{name}");
        }
        for name in ACTED_ON {
            assert!(!IGNORED.contains(name), "{name}");
        }
    }

    #[test]
    fn the_page_names_all_that_is_ignored_and_all_that_is_acted_on() {
        let page = include_str!("../../../../../docs/stores.md");
        for name in ACTED_ON.iter().chain(IGNORED) {
            assert!(page.contains(&format!("`{name}`")), "docs/stores.md does not name {name}");
        }
    }
}
