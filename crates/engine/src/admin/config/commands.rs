//! CONFIG GET SET RESETSTAT REWRITE, and how a setting takes effect.
//!
//! Settings that the engine acts on live as fields of [`Config`]; hints that it ignores are kept as
//! text, so that what was set can be read again. All others are shown, and CONFIG SET refuses to
//! change them.

use super::output::OutputLimits;
use super::params::{ACTED_ON, IGNORED, PARAMS, Param, ParamKind};
use crate::command::{self, ADMIN, CommandRow, Ctx, LOADING, NOSCRIPT, STALE};
use crate::engine::{Core, Engine};
use crate::error::{Error, SYNTAX};
use crate::memory::EvictionPolicy;
use crate::{Reply, notify, number, scan};

const FLAGS: u32 = ADMIN | NOSCRIPT | LOADING | STALE;

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[CommandRow::new("config", -2, 0, command::container)
    .subcommands(&[
        CommandRow::new("get", -3, FLAGS, get),
        CommandRow::new("set", -4, FLAGS, set),
        CommandRow::new("resetstat", 2, FLAGS, resetstat),
        CommandRow::new("rewrite", 2, FLAGS, |_| {
            Err(Error::fixed("ERR The server is running without a config file"))
        }),
        CommandRow::new("help", 2, LOADING | STALE, help),
    ])];

fn find(name: &[u8]) -> Option<&'static Param> {
    let same = |n: &str| name.eq_ignore_ascii_case(n.as_bytes());
    PARAMS.iter().find(|param| same(param.name) || param.alias.is_some_and(same))
}

fn get(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let mut found: Vec<(Vec<u8>, &'static Param)> = Vec::new();
    let mut add = |name: &[u8], param| {
        if !found.iter().any(|(n, _)| n == name) {
            found.push((name.to_vec(), param));
        }
    };
    for pattern in ctx.argv.iter().skip(2) {
        if !pattern.iter().any(|b| matches!(b, b'[' | b'*' | b'?')) {
            if let Some(param) = find(pattern) {
                add(pattern, param);
            }
            continue;
        }
        for param in PARAMS.iter().filter(|param| !param.hidden) {
            for name in [Some(param.name), param.alias].into_iter().flatten() {
                if scan::matches(pattern, name.as_bytes(), true) {
                    add(name.as_bytes(), param);
                }
            }
        }
    }
    let pairs = found.into_iter().map(|(name, param)| {
        (Reply::Bulk(name), Reply::Bulk(ctx.core.setting(param.name, param.default)))
    });
    Ok(Reply::Map(pairs.collect()))
}

fn set(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let pairs = ctx.argv.get(2..).unwrap_or_default();
    if !pairs.len().is_multiple_of(2) {
        return Err(SYNTAX);
    }
    let mut chosen: Vec<(&'static Param, &[u8])> = Vec::new();
    for pair in pairs.chunks_exact(2) {
        let [name, value] = pair else { continue };
        let Some(param) = find(name) else {
            let before = "ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(Error::about(before, name, "'"));
        };
        if param.fixed {
            return Err(failed(name, "can't set immutable config"));
        }
        if param.protected {
            return Err(failed(name, "can't set protected config"));
        }
        if chosen.iter().any(|(other, _)| other.name == param.name) {
            return Err(failed(name, "duplicate parameter"));
        }
        chosen.push((param, value));
    }
    // Nothing is set unless everything can be.
    let mut values = Vec::with_capacity(chosen.len());
    for (param, value) in &chosen {
        let value = check(param, value).map_err(|why| failed(param.name.as_bytes(), &why))?;
        let is_settable = ACTED_ON.contains(&param.name) || IGNORED.contains(&param.name);
        let current = ctx.core.setting(param.name, param.default);
        if !is_settable && value != current {
            let why = format!(
                "this store does not act on it, so it can only be '{}'",
                String::from_utf8_lossy(&current)
            );
            return Err(failed(param.name.as_bytes(), &why));
        }
        values.push((param.name, value));
    }
    let less_room = values.iter().any(|(name, _)| *name == "maxmemory");
    let before: Vec<_> = chosen
        .iter()
        .map(|(param, _)| (param.name, ctx.core.setting(param.name, param.default)))
        .collect();
    for (name, value) in values.clone() {
        ctx.core.apply_setting(name, value);
    }
    for (name, value) in &values {
        if let Err(why) = ctx.core.tell_setting(name, value) {
            for (name, value) in before {
                ctx.core.apply_setting(name, value);
            }
            return Err(failed(name.as_bytes(), &why));
        }
    }
    if less_room {
        // What does not fit any more goes at once, not with the next command.
        ctx.core.make_room(ctx.now);
    }
    ctx.core.output.settings = true;
    let ignored: Vec<&str> =
        values.iter().map(|(name, _)| *name).filter(|name| IGNORED.contains(name)).collect();
    Ok(match ignored.as_slice() {
        [] => Reply::Ok,
        names => {
            let text = format!("OK (ignored by this store: {})", names.join(", "));
            Reply::Status(text.into_bytes().into())
        }
    })
}

fn failed(name: &[u8], why: &str) -> Error {
    let mut text = b"ERR CONFIG SET failed (possibly related to argument '".to_vec();
    text.extend_from_slice(name);
    text.extend_from_slice(b"') - ");
    text.extend_from_slice(why.as_bytes());
    Error::new(text)
}

/// The value in the form in which it is kept, or why it is none.
fn check(param: &Param, value: &[u8]) -> Result<Vec<u8>, String> {
    match param.kind {
        ParamKind::Flag => match () {
            () if value.eq_ignore_ascii_case(b"yes") => Ok(b"yes".to_vec()),
            () if value.eq_ignore_ascii_case(b"no") => Ok(b"no".to_vec()),
            () => Err("argument must be 'yes' or 'no'".to_owned()),
        },
        ParamKind::Choice(among) => among
            .iter()
            .find(|word| value.eq_ignore_ascii_case(word.as_bytes()))
            .map(|word| word.as_bytes().to_vec())
            .ok_or_else(|| {
                format!("argument(s) must be one of the following: {}", among.join(", "))
            }),
        ParamKind::Int { least, most } => {
            let n =
                number::parse_i64(value).ok_or("argument couldn't be parsed into an integer")?;
            within(i128::from(n), least, most)
        }
        ParamKind::Memory { least, most } => {
            let n = bytes_of(value).ok_or("argument must be a memory value")?;
            within(i128::from(n), least, most)
        }
        ParamKind::MemoryOrPercent { most } => match (bytes_of(value), value.strip_suffix(b"%")) {
            (Some(n), _) => within(i128::from(n), -100, most),
            (None, Some(share)) => {
                let share = number::parse_i64(share).filter(|share| *share >= 0);
                match share.ok_or("argument must be a memory or percent value")? {
                    share @ 0..=100 => Ok(format!("{share}%").into_bytes()),
                    _ => Err("percentage argument must be less or equal to 100".to_owned()),
                }
            }
            _ => Err("argument must be a memory or percent value".to_owned()),
        },
        ParamKind::Octal => Err("argument couldn't be parsed as an octal number".to_owned()),
        ParamKind::Text => text(param.name, value),
    }
}

fn within(n: i128, least: i128, most: i128) -> Result<Vec<u8>, String> {
    if !(least..=most).contains(&n) {
        return Err(format!("argument must be between {least} and {most} inclusive"));
    }
    Ok(n.to_string().into_bytes())
}

/// A number of bytes with a unit: `100`, `1k`, `1kb`, `5mb`, `2gb`.
pub(super) fn bytes_of(value: &[u8]) -> Option<u64> {
    let digits = value.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, unit) = value.split_at(digits);
    let factor = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    let number = if number.is_empty() { 0 } else { number::parse_u64(number)? };
    Some(number.wrapping_mul(factor))
}

/// Settings with a form of their own.
fn text(name: &str, value: &[u8]) -> Result<Vec<u8>, String> {
    let words: Vec<&[u8]> = value.split(|b| *b == b' ').filter(|w| !w.is_empty()).collect();
    match name {
        "notify-keyspace-events" => match notify::parse(value) {
            Some(flags) => Ok(notify::letters(flags)),
            None => Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".to_owned()),
        },
        "latency-tracking-info-percentiles" => {
            let mut kept = Vec::new();
            for word in words {
                let percent = number::parse_f64(word)
                    .ok_or("Invalid latency-tracking-info-percentiles parameters")?;
                if !(0.0..=100.0).contains(&percent) {
                    return Err("latency-tracking-info-percentiles parameters should sit between \
                                [0.0,100.0]"
                        .to_owned());
                }
                let shown = format!("{percent:.6}");
                kept.push(shown.trim_end_matches('0').trim_end_matches('.').to_owned());
            }
            Ok(kept.join(" ").into_bytes())
        }
        "save" => {
            let fits = |(n, word): (usize, &&[u8])| {
                number::parse_i64(word).is_some_and(|v| v >= i64::from(n % 2 == 0))
            };
            match words.len().is_multiple_of(2) && words.iter().enumerate().all(fits) {
                true => Ok(words.join(&b' ')),
                false => Err("Invalid save parameters".to_owned()),
            }
        }
        "client-output-buffer-limit" => {
            OutputLimits::default().changed(value).map(|_| value.to_vec())
        }
        _ => Ok(value.to_vec()),
    }
}

fn resetstat(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    ctx.core.stats = crate::engine::EngineStats::default();
    ctx.core.traffic.reset();
    ctx.core.lazyfree.reset();
    Ok(Reply::Ok)
}

fn help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(command::help(
        "CONFIG",
        &[
            ("GET <pattern>", "Settings whose names match, with their values."),
            ("SET <directive> <value>", "Change a setting."),
            ("RESETSTAT", "Set the counters of INFO to zero."),
            ("REWRITE", "Write the settings to the file they came from."),
        ],
    ))
}

impl Engine {
    /// A setting as CONFIG GET shows it; none if there is no such.
    pub fn setting(&self, name: &str) -> Option<Vec<u8>> {
        find(name.as_bytes()).map(|param| self.core.setting(param.name, param.default))
    }

    /// Sets a value that the embedding program decides, for CONFIG GET to show.
    pub fn show_setting(&mut self, name: &str, value: &str) {
        if let Some(param) = find(name.as_bytes()) {
            self.core.settings.insert(param.name, value.as_bytes().to_vec());
        }
    }
}

/// Carries out a setting that is about the world around the engine, or says why it cannot be.
type Outside = dyn Fn(&str, &[u8]) -> Result<(), String> + Send;

/// Callback that applies or refuses a changed setting outside the engine.
#[derive(Default)]
pub(crate) struct Hook(Option<Box<Outside>>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hook").field(&self.0.is_some()).finish()
    }
}

impl Engine {
    /// Has `apply` called with every setting that CONFIG SET changes: an error, told to the
    /// client, keeps all of that call from being set.
    pub fn on_setting(
        &mut self,
        apply: impl Fn(&str, &[u8]) -> Result<(), String> + Send + 'static,
    ) {
        self.core.hook = Hook(Some(Box::new(apply)));
    }

    /// Clients connect at this port, as INFO, CONFIG and CLIENT LIST shall show it.
    pub fn show_port(&mut self, port: u16) {
        self.core.config.server.port = port;
    }
}

impl Core {
    fn tell_setting(&self, name: &str, value: &[u8]) -> Result<(), String> {
        self.hook.0.as_ref().map_or(Ok(()), |apply| apply(name, value))
    }

    /// A setting as text.
    pub(crate) fn setting(&self, name: &str, default: &str) -> Vec<u8> {
        let config = &self.config;
        let number = |n: usize| n.to_string().into_bytes();
        match name {
            "databases" => number(self.dbs.len()),
            "maxmemory" => config.maxmemory.to_string().into_bytes(),
            "maxmemory-policy" => config.maxmemory_policy.name().as_bytes().to_vec(),
            "requirepass" => config.requirepass.clone(),
            "notify-keyspace-events" => notify::letters(config.notify_events),
            "busy-reply-threshold" => config.script_busy_ms.to_string().into_bytes(),
            "hash-max-listpack-entries" => number(config.hash_max_listpack_entries),
            "hash-max-listpack-value" => number(config.hash_max_listpack_value),
            "set-max-intset-entries" => number(config.set_max_intset_entries),
            "hll-sparse-max-bytes" => number(config.hll_sparse_max_bytes),
            "zset-max-listpack-entries" => number(config.zset_max_listpack_entries),
            "zset-max-listpack-value" => number(config.zset_max_listpack_value),
            "stream-node-max-entries" => number(config.stream_node_max_entries),
            "stream-node-max-bytes" => number(config.stream_node_max_bytes),
            "enable-debug-command" if config.debug_commands => b"yes".to_vec(),
            "client-output-buffer-limit" => config.output_limits.describe().into_bytes(),
            "client-query-buffer-limit" => number(config.query_buffer_max),
            "port" => config.server.port.to_string().into_bytes(),
            "dir" => config.server.dir.clone().into_bytes(),
            _ => match self.settings.get(name) {
                Some(value) => value.clone(),
                None if name == "appendonly" && config.log_effects => b"yes".to_vec(),
                None => default.as_bytes().to_vec(),
            },
        }
    }

    /// Keeps a checked value and acts on it.
    fn apply_setting(&mut self, name: &'static str, value: Vec<u8>) {
        let size = || number::parse_u64(&value).unwrap_or(0);
        let count = || usize::try_from(size()).unwrap_or(usize::MAX);
        let small = || u32::try_from(size()).unwrap_or(u32::MAX);
        let config = &mut self.config;
        match name {
            "maxmemory" => {
                config.maxmemory = size();
                self.count_memory();
            }
            "maxmemory-policy" => {
                let policy = std::str::from_utf8(&value).ok().and_then(EvictionPolicy::parse);
                config.maxmemory_policy = policy.unwrap_or_default();
            }
            "client-output-buffer-limit" => {
                config.output_limits =
                    config.output_limits.changed(&value).unwrap_or(config.output_limits);
            }
            "client-query-buffer-limit" => config.query_buffer_max = count(),
            "port" => config.server.port = u16::try_from(size()).unwrap_or(0),
            "maxmemory-samples" => config.maxmemory_samples = count(),
            "lfu-log-factor" => config.lfu_log_factor = small(),
            "lfu-decay-time" => config.lfu_decay_time = small(),
            "requirepass" => {
                config.requirepass = value.clone();
                self.set_default_password(&value);
            }
            "notify-keyspace-events" => {
                config.notify_events = notify::parse(&value).unwrap_or_default();
            }
            "proto-max-bulk-len" => config.proto_max_bulk_len = size(),
            "busy-reply-threshold" => config.script_busy_ms = size(),
            "hash-max-listpack-entries" => config.hash_max_listpack_entries = count(),
            "hash-max-listpack-value" => config.hash_max_listpack_value = count(),
            "set-max-intset-entries" => config.set_max_intset_entries = count(),
            "hll-sparse-max-bytes" => config.hll_sparse_max_bytes = count(),
            "zset-max-listpack-entries" => config.zset_max_listpack_entries = count(),
            "zset-max-listpack-value" => config.zset_max_listpack_value = count(),
            "stream-node-max-entries" => config.stream_node_max_entries = count(),
            "stream-node-max-bytes" => config.stream_node_max_bytes = count(),
            "tracking-table-max-keys" => self.tracking.most_keys = count(),
            "latency-monitor-threshold" => self.latency.threshold_ms = size(),
            "latency-tracking" => self.latency.untracked = value == b"no",
            "slowlog-max-len" => self.slowlog.limit(count()),
            "slowlog-log-slower-than" => {
                self.slowlog.slower_than_us = number::parse_i64(&value).unwrap_or(-1);
            }
            _ => {}
        }
        self.lazyfree.set(name, &value);
        self.settings.insert(name, value);
        let wanted = |name| self.settings.get(name).is_none_or(|value| **value != *b"0");
        self.lacks_replicas = self.settings.contains_key("min-replicas-to-write")
            && wanted("min-replicas-to-write")
            && wanted("min-replicas-max-lag");
    }
}
