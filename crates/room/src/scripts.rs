//! The room's scripts: one declaration per file in `lua/`.

use store::script;

script!(pub(crate) create {
    keys: [meta, state, tokens, last_update, events],
    args: [now_ms, burst, request_id, ..fields],
    lib: ["int", "num", "emit", "put_bucket"],
});

script!(pub(crate) change {
    keys: [meta, state, positions, lane1, lane2, lane3, tokens, last_update, events],
    args: [now_ms, expected_version, policy, ..fields],
    lib: ["int", "num", "emit", "rate_of", "bucket", "put_bucket", "drop_dead"],
});

script!(pub(crate) set_status {
    keys: [meta, state, tokens, last_update, events],
    args: [now_ms, status],
    lib: ["int", "num", "emit", "rate_of", "bucket", "put_bucket"],
});

script!(pub(crate) delete {
    keys: [meta, positions, claims, active, ..others],
});

script!(pub(crate) join {
    keys: [
        meta, state, positions, lane0, lane1, lane2, lane3, heartbeat, claims, active, tokens,
        last_update, stats, events, position, held, ipmap, once, invite,
    ],
    args: [
        now_ms, queue_id, id, ticket, session_id, level, held_id, dead_id, ip_address, ip_hash,
        user_agent, metadata, once_ttl, invite_uses, invite_ttl,
    ],
    lib: [
        "int", "num", "emit", "rate_of", "bucket", "put_bucket", "free_slots", "line", "shown",
        "joined_ms", "let_in", "count_admitted", "count_one", "drop_dead", "finish",
    ],
});

script!(pub(crate) peek {
    keys: [meta, state, positions, claims, active, tokens, last_update],
    args: [now_ms, most, by_hand],
    lib: ["int", "num", "rate_of", "bucket", "free_slots", "line", "next_in_line"],
});

script!(pub(crate) admit {
    keys: [
        meta, state, positions, lane0, lane1, lane2, lane3, heartbeat, claims, active, tokens,
        last_update, stats, events, ..places,
    ],
    args: [now_ms, queue_id, by_hand, ..ids],
    lib: [
        "int", "num", "emit", "rate_of", "bucket", "put_bucket", "free_slots", "line",
        "next_in_line", "joined_ms", "let_in", "count_admitted", "drop_dead",
    ],
});

script!(pub(crate) status {
    keys: [meta, state, positions, claims, position],
    args: [now_ms, id],
    lib: ["int", "num", "line", "shown", "place_view"],
});

script!(pub(crate) heartbeat {
    keys: [meta, state, positions, claims, position, heartbeat, ipmap],
    args: [now_ms, id, queue_id, level],
    lib: ["int", "num", "line", "shown", "joined_ms", "place_view"],
});

script!(pub(crate) leave {
    keys: [meta, state, positions, heartbeat, claims, stats, events, position],
    args: [now_ms, id, reason],
    lib: ["int", "emit", "count_one", "finish"],
});

script!(pub(crate) expire {
    keys: [meta, state, positions, heartbeat, stats, events, ..places],
    args: [now_ms, stall_ms, ..ids],
    lib: ["int", "num", "emit", "stopped", "finish", "count_one"],
});

script!(pub(crate) no_show {
    keys: [
        meta, state, positions, lane0, lane1, lane2, lane3, heartbeat, claims, stats, events,
        ..places,
    ],
    args: [now_ms, stall_ms, queue_id, ..ids],
    lib: ["int", "num", "emit", "stopped", "finish", "count_one", "drop_dead", "back_in_lane"],
});

script!(pub(crate) claim {
    keys: [
        meta, state, positions, claims, active, deadlines, stats, events, position, session,
    ],
    args: [now_ms, queue_id, id, session_id, user_id, ip_address, user_agent, token, level],
    lib: ["int", "num", "emit", "count_one"],
});

script!(pub(crate) touch {
    keys: [meta, active, deadlines, session],
    args: [now_ms, session_id, page_views, token],
    lib: ["int", "num"],
});

script!(pub(crate) end_session {
    keys: [meta, state, active, deadlines, stats, events, session, position, revocation],
    args: [
        now_ms, session_id, session_status, position_status, reason, event, counter, void,
    ],
    lib: ["int", "num", "emit", "finish", "count_one", "close_session"],
});

script!(pub(crate) expire_sessions {
    keys: [meta, state, active, deadlines, stats, events, ..sessions],
    args: [now_ms, stall_ms, ..ids],
    lib: ["int", "num", "emit", "stopped", "finish", "count_one", "close_session"],
});

script!(pub(crate) survey {
    keys: [meta, state, positions, claims, active, deadlines, tokens, last_update, ..lists],
    args: [now_ms, stall_ms, most],
    lib: ["int", "num", "rate_of", "bucket", "free_slots", "line", "next_in_line"],
});

script!(pub(crate) compact {
    keys: [lane, spare, positions],
    args: [most],
    lib: ["int"],
});

/// All of them, for the tests that read their headers.
#[cfg(test)]
pub(crate) fn all() -> [&'static store::Script; 18] {
    [
        create::SCRIPT,
        change::SCRIPT,
        set_status::SCRIPT,
        delete::SCRIPT,
        join::SCRIPT,
        peek::SCRIPT,
        admit::SCRIPT,
        status::SCRIPT,
        heartbeat::SCRIPT,
        leave::SCRIPT,
        expire::SCRIPT,
        no_show::SCRIPT,
        claim::SCRIPT,
        touch::SCRIPT,
        end_session::SCRIPT,
        expire_sessions::SCRIPT,
        survey::SCRIPT,
        compact::SCRIPT,
    ]
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    /// The names a header gives, in order, with `..` before a last one that stands for many.
    fn named(body: &str, part: &str) -> Vec<String> {
        let mut inside = false;
        let mut names = Vec::new();
        for line in body.lines() {
            let Some(line) = line.strip_prefix("--") else { break };
            let line = match line.trim_start().strip_prefix(part) {
                Some(rest) => {
                    inside = true;
                    rest
                }
                None if inside && line.starts_with("     ") => line,
                None if inside => break,
                None => continue,
            };
            let mut words = line.split_whitespace();
            while let Some(word) = words.next() {
                let many = word.ends_with("..");
                if word.trim_end_matches('.').parse::<u32>().is_ok() {
                    let name = words.next().unwrap();
                    names.push(if many { format!("..{name}") } else { name.to_owned() });
                    if part == "KEYS" {
                        break;
                    }
                }
            }
        }
        names
    }

    #[test]
    fn headers_name_what_is_declared() {
        for script in super::all() {
            assert_eq!(named(script.body(), "KEYS"), script.keys(), "KEYS of {}", script.name());
            assert_eq!(named(script.body(), "ARGV"), script.args(), "ARGV of {}", script.name());
            let opening = format!("-- room/{} -- ", script.name());
            assert!(script.body().starts_with(&opening), "{}", script.name());
            assert!(script.body().contains("\n-- REPLY  {"), "{}", script.name());
        }
    }

    #[test]
    fn every_file_is_declared_and_every_lib_is_used() {
        let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        let files = |dir: &Path| -> BTreeSet<String> {
            let entries = fs::read_dir(dir).unwrap();
            let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
            names.filter_map(|n| n.strip_suffix(".lua").map(str::to_owned)).collect()
        };
        let declared: BTreeSet<String> =
            super::all().iter().map(|script| script.name().to_owned()).collect();
        assert_eq!(files(&lua), declared);
        let used: BTreeSet<String> =
            super::all().iter().flat_map(|script| script.libs()).map(str::to_owned).collect();
        assert_eq!(files(&lua.join("lib")), used);
    }

    #[test]
    fn scripts_ask_neither_for_the_time_nor_for_chance_and_keep_to_locals() {
        for script in super::all() {
            let text = script.source();
            for word in ["'TIME'", "math.random", "KEYS'", "'SMEMBERS'", "'HGETALL'", "unpack("] {
                assert!(!text.contains(word), "{} uses {word}", script.name());
            }
            for line in text.lines() {
                assert!(!line.starts_with("function "), "{}: a global in {line}", script.name());
            }
        }
    }
}
