//! Scripts: values, errors, libraries, flags. The scripts of `scripts.txt` are run one after the
//! other on the same keyspace; `--ARGS` in a last line gives the number of keys, keys and
//! arguments.

use crate::harness::{Differential, both};
use crate::wire::words;

fn eval(d: &mut Differential, script: &str, rest: &str) {
    let mut argv = vec![b"EVAL".to_vec(), script.as_bytes().to_vec()];
    argv.extend(words(rest));
    d.same_argv(&argv);
}

#[test]
fn hundreds_of_scripts_answer_alike() {
    both(|d| {
        let mut count = 0;
        for case in include_str!("scripts.txt").trim_end().split("\n====\n") {
            let (script, rest) = case.split_once("\n--ARGS ").unwrap_or((case, "0"));
            eval(d, script, rest);
            count += 1;
        }
        assert!(count > 500, "{count} scripts");
    });
}

#[test]
fn commands_that_wait_do_not_in_scripts() {
    both(|d| {
        for call in [
            "'BLPOP', KEYS[1], 0",
            "'BRPOP', KEYS[1], 0",
            "'BLMOVE', KEYS[1], KEYS[1], 'LEFT', 'LEFT', 0",
            "'BRPOPLPUSH', KEYS[1], KEYS[1], 0",
            "'BZPOPMIN', KEYS[1], 0",
            "'BZPOPMAX', KEYS[1], 0",
            "'BLMPOP', 0, 1, KEYS[1], 'LEFT'",
            "'BZMPOP', 0, 1, KEYS[1], 'MIN'",
            "'XREAD', 'BLOCK', 0, 'STREAMS', KEYS[1], '$'",
        ] {
            eval(d, &format!("return redis.pcall({call})"), "1 absent");
        }
    });
}

#[test]
fn the_commands_answer_alike() {
    both(|d| {
        for line in [
            "EVALSHA abc 0",
            "EVALSHA ffd632c7d33e571e9f24556ebed26c3479a87130 0",
            "EVAL \"return 1\" x",
            "EVAL \"return 1\" -1",
            "EVAL \"return 1\" 2 a",
            "EVAL",
            "SCRIPT LOAD \"return 1\"",
            "EVALSHA E0E1F9FABFC9D4800C877A703B823AC0578FF8DB 0",
            "SCRIPT LOAD \"return +\"",
            "SCRIPT EXISTS e0e1f9fabfc9d4800c877a703b823ac0578ff8db FFD632C7D33E571E9F24556EBED26C3479A87130",
            "SCRIPT FOO",
            "SCRIPT",
            "SCRIPT KILL",
            "SCRIPT FLUSH x",
            "SCRIPT FLUSH ASYNC",
            "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
            "SCRIPT HELP",
            "SCRIPT DEBUG x",
            "EVAL_RO \"return redis.call('set','x',1)\" 0",
            "EVAL_RO \"return redis.call('get','x')\" 0",
            "EVALSHA_RO ffd632c7d33e571e9f24556ebed26c3479a87130 0",
            "MULTI",
            "EVAL \"return redis.call('incr',KEYS[1])\" 1 n",
            "EVAL \"return redis.call('incr',KEYS[1])\" 1 n",
            "EVAL \"error('x')\" 0",
            "EXEC",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn first_lines_are_honoured() {
    both(|d| {
        for script in [
            "#!lua\nreturn 1",
            "#!lua flags=no-writes\nreturn redis.call('set','x',1)",
            "#!lua flags=no-writes,allow-stale,allow-oom,no-cluster,allow-cross-slot-keys\nreturn 1",
            "#!lua flags=\nreturn 1",
            "#!lua flags=bad\nreturn 1",
            "#!lua name=x\nreturn 1",
            "#!python\nreturn 1",
            "#!lua",
            "#!lua\nerror('second line')",
            "--!df flags=allow-undeclared-keys\nreturn redis.call('get', 'x')",
        ] {
            eval(d, script, "0");
            let argv = [b"EVAL_RO".to_vec(), script.as_bytes().to_vec(), b"0".to_vec()];
            d.same_argv(&argv);
        }
    });
}

/// What the scripts of the documents this product is built from do, condensed.
#[test]
fn the_scripts_of_the_schemas_answer_alike() {
    let enqueue = "redis.call('RPUSH', KEYS[1], ARGV[1])\n\
        redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])\n\
        redis.call('HSET', KEYS[3], 'status', 'waiting', 'enqueued_at', ARGV[2], 'user_id', ARGV[5])\n\
        redis.call('EXPIRE', KEYS[3], ARGV[4])\n\
        redis.call('SET', KEYS[4], ARGV[1], 'EX', ARGV[4])\n\
        redis.call('ZADD', KEYS[5], ARGV[2], ARGV[1])\n\
        return redis.call('ZRANK', KEYS[2], ARGV[1])";
    let bucket = "local tokens = tonumber(redis.call('GET', KEYS[1]) or ARGV[1])\n\
        local last = tonumber(redis.call('GET', KEYS[1] .. ':last_update') or ARGV[3])\n\
        local refill = (ARGV[3] - last) * ARGV[2]\n\
        tokens = math.min(tokens + refill, ARGV[1])\n\
        if tokens >= 1 then redis.call('DECR', KEYS[1]) \
        redis.call('SET', KEYS[1] .. ':last_update', ARGV[3]) return 1 end return 0";
    let release = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    let cron = "local jobs = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 10)\n\
        local out = {} for i, id in ipairs(jobs) do out[i] = {id = id} end return cjson.encode(out)";
    both(|d| {
        for n in 1..4 {
            let rest =
                format!("5 q:w:0 q:p pos:{n} ip:{n} hb id{n} 170406720012345{n} x 1800 user");
            eval(d, enqueue, &rest);
            eval(d, bucket, &format!("1 bucket 5 0.5 {n}"));
        }
        d.same("SET lock me");
        eval(d, release, "1 lock you");
        eval(d, release, "1 lock me");
        eval(d, cron, "1 jobs 100");
        d.same("ZADD jobs 1 a 2 b");
        eval(d, cron, "1 jobs 100");
        d.same("ZRANGE q:p 0 -1 WITHSCORES");
    });
}

/// A script with its flags in a first line of its own.
fn declared(flags: &str, body: &str) -> String {
    format!("#!lua{flags}\n{body}")
}

#[test]
fn without_replicas_writes_are_refused_that_ask_for_some() {
    both(|d| {
        for line in ["SET x 1", "CONFIG SET min-replicas-to-write 1"] {
            d.same(line);
        }
        for line in [
            "SET x 2", "GET x", "DEL x", "MULTI", "GET x", "EXEC", "MULTI", "SET x 2", "GET x",
            "EXEC",
        ] {
            d.same(line);
        }
        let get = "return redis.call('get', KEYS[1])";
        let set = "return redis.call('set', KEYS[1], 3)";
        for flags in ["", " flags=no-writes", " flags=allow-oom"] {
            eval(d, &declared(flags, get), "1 x");
            eval(d, &declared(flags, set), "1 x");
        }
        eval(d, get, "1 x");
        eval(d, set, "1 x");
        d.same("PUBLISH c m");
        d.same("CONFIG SET min-replicas-max-lag 0");
        d.same("SET x 4");
        d.same("CONFIG SET min-replicas-max-lag 10");
        d.same("SET x 5");
        d.same("CONFIG SET min-replicas-to-write 0");
        d.same("SET x 6");
    });
}

#[test]
fn without_memory_scripts_are_refused_by_what_they_declare() {
    both(|d| {
        d.same("SET x 1");
        d.same("CONFIG SET maxmemory 1");
        let get = "return redis.call('get', KEYS[1])";
        let set = "return redis.call('set', KEYS[1], 3)";
        for flags in ["", " flags=no-writes", " flags=allow-oom", " flags=allow-oom,no-writes"] {
            eval(d, &declared(flags, get), "1 x");
            eval(d, &declared(flags, set), "1 x");
        }
        for script in [get, set, "return redis.pcall('set', KEYS[1], 3)"] {
            eval(d, script, "1 x");
        }
        d.same("CONFIG SET maxmemory 0");
    });
}

#[test]
fn a_pause_of_writes_lets_scripts_pass_that_write_nothing() {
    both(|d| {
        let other = d.client();
        d.same("CLIENT PAUSE 600000 WRITE");
        let reads = "#!lua flags=no-writes\\nreturn 'unique'";
        d.same_on(other, &format!("EVAL \"{reads}\" 0"));
        d.same_on(other, "EVAL_RO \"return 1\" 0");
        d.same_on(other, "MULTI");
        d.same_on(other, &format!("EVAL \"{reads}\" 0"));
        d.same_on(other, "EXEC");
        d.same("CLIENT UNPAUSE");
    });
}
