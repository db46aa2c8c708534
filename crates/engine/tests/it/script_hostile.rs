//! Scripts that mean harm, or look like it: each ends in time, within its memory, without a way
//! out, and leaves the engine as it was.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use engine::{CommandOutcome, Config, Engine, Now, Reply, SessionId};

use crate::kit::{Kit, show};

fn monotonic() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

struct Victim {
    engine: Engine,
    client: SessionId,
}

impl Victim {
    fn new() -> Victim {
        Victim::with_deadline(200)
    }

    fn with_deadline(ms: u64) -> Victim {
        let config = Config {
            log_effects: true,
            script_clock: Some(monotonic),
            script_busy_ms: 50,
            script_deadline_ms: ms,
            script_deadline_written_ms: ms + 100,
            script_memory: 16 << 20,
            ..Config::default()
        };
        let mut engine = Engine::new(config);
        let client = engine.connect("127.0.0.1:1");
        Victim { engine, client }
    }

    fn command(&mut self, argv: &[&[u8]]) -> Reply {
        match self.engine.execute(Now::from_millis(1), self.client, argv) {
            CommandOutcome::Reply(reply) => reply,
            CommandOutcome::Blocked { .. } => panic!("nothing waits here"),
        }
    }

    fn eval(&mut self, script: &str) -> String {
        show(&self.command(&[b"EVAL", script.as_bytes(), b"0"]))
    }

    /// Runs a script that has to be stopped or refused with a text that contains `expected`; then
    /// an innocent one, which must not notice.
    #[track_caller]
    fn check(&mut self, script: &str, expected: &str) {
        let start = Instant::now();
        let reply = self.eval(script);
        let took = start.elapsed();
        let cut: String = reply.chars().take(300).collect();
        assert!(cut.contains(expected), "{script}\n  answered {cut}\n  expected {expected}");
        // Far more than the deadline, far less than for ever: the machine may be busy.
        assert!(took < Duration::from_secs(60), "{script} took {took:?}");
        assert_eq!(self.eval(INNOCENT), "[a,b 3 7 ok {\"a\":1}]", "after {script}");
    }
}

const INNOCENT: &str = "local t = {} for w in string.gmatch('a b', '%a') do table.insert(t, w) end \
    return {table.concat(t, ','), #('abc'):rep(1), math.max(1, 7), \
    redis.call('set', 'innocent', 1).ok:lower(), cjson.encode({a=1})}";

const KILLED: &str = "Script killed";

#[test]
fn endless_scripts_end() {
    let mut victim = Victim::new();
    for script in [
        "while true do end",
        "repeat until false",
        "for i = 1, math.huge do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() while true do end end while true do pcall(f) end",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "pcall(pcall, pcall, function() while true do end end) while true do end",
        "while true do redis.call('get', 'x') end",
        "while true do redis.pcall('nosuch') end",
        "local f = function() while 1 do redis.call('get', 'x') end end while 1 do pcall(f) end",
        "coroutine.wrap(function() while true do end end)()",
        "local co = coroutine.create(function() while true do end end) \
         while true do coroutine.resume(co) end",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "local co = coroutine.wrap(function() while true do coroutine.yield() end end) \
         while true do co() end",
        "return setmetatable({}, {__index = function() while true do end end}).x",
        "local t = setmetatable({}, {__tostring = function() while true do end end}) tostring(t)",
        "local a = setmetatable({}, {__eq = function() while true do end end}) \
         local b = setmetatable({}, getmetatable(a)) return a == b",
        "error(setmetatable({}, {__index = function() while true do end end}))",
        "pcall(error, setmetatable({}, {__index = function() while true do end end}))",
        "table.sort({3, 2, 1}, function() while true do end end)",
        "local n = 0 load(function() while true do n = n + 1 end end)",
        "while true do load(function() while true do end end) end",
        "string.gsub('abc', '.', function() while true do end end)",
        "string.gsub(string.rep('a', 9999), '(a-)(a-)a', function() while true do end end)",
        "local function f() return f() end f()",
        "while true do loadstring('return ' .. string.rep('1,', 1000) .. '1') end",
        "while true do cjson.encode({1, 2, 3}) end",
        "while true do collectgarbage() end",
        "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.sort(t) end",
    ] {
        victim.check(script, KILLED);
    }
}

#[test]
fn time_inside_of_c_functions_counts() {
    let mut victim = Victim::new();
    for script in [
        "while true do pcall(table.insert, {}, 2^31, 1) end",
        "local t = {} for i = 1, 2e5 do t[i] = i end while true do table.insert(t, 1, 0) table.remove(t, 1) end",
        "local s = string.rep('a', 4e6) while true do string.upper(s) end",
        "local s = string.rep('a', 4e6) while true do s:reverse() end",
        "local s = string.rep('a', 4e6) while true do local t = s .. 'b' end",
        "local s, t = string.rep('a', 4e6) .. 'b', string.rep('a', 4e6) .. 'c' while true do local x = s < t end",
        "local s = string.rep('a', 4e6) while true do s:find('b', 1, true) end",
        "local s = string.rep('a', 4e6) while true do s:gsub('b', '') end",
        "local s = string.rep('a', 4e6) while true do redis.sha1hex(s) end",
        "local s = '[' .. string.rep('1,', 1e5) .. '1]' while true do cjson.decode(s) end",
        "local s = cmsgpack.pack(string.rep('a', 4e6)) while true do cmsgpack.unpack(s) end",
        "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.concat(t, ',') end",
        "local t = {} for i = 1, 1e5 do t[i] = {} end while true do collectgarbage() end",
        "local s = string.rep('x=1 ', 2e5) while true do loadstring(s) end",
        "while true do pcall(string.rep, string.rep('a', 1e6), 4) end",
    ] {
        victim.check(script, KILLED);
    }
}

/// The clock is looked at between two calls of functions written in C or Rust, not inside of one:
/// how long one takes is bounded by what fits into the memory of a script.
#[test]
fn one_call_on_all_the_memory_of_a_script_ends_soon() {
    let mut victim = Victim::new();
    // As much as a script has where nothing else is configured.
    let config = Config { script_clock: Some(monotonic), ..Config::default() };
    assert_eq!(config.script_memory, 64 << 20);
    victim.engine = Engine::new(config);
    victim.client = victim.engine.connect("127.0.0.1:1");
    let array = "local t = {} for i = 1, 9e5 do t[i] = i end";
    for (before, call) in [
        ("local s = string.rep('a', 3e7)", "redis.sha1hex(s)"),
        ("local s = string.rep('a', 1e7)", "cjson.encode(s)"),
        ("local s = string.rep('\\1', 4e6)", "cjson.encode(s)"),
        ("local s = '[' .. string.rep('1,', 9e5) .. '1]'", "cjson.decode(s)"),
        ("local s = '\"' .. string.rep('a', 1e7) .. '\"'", "cjson.decode(s)"),
        (array, "cjson.encode(t)"),
        (array, "cmsgpack.pack(t)"),
        (
            "local t = {} for i = 1, 2e5 do t[i] = i end local s = cmsgpack.pack(t)",
            "cmsgpack.unpack(s)",
        ),
        (array, "table.concat(t, ',')"),
        ("local s = string.rep('a', 1.5e7)", "s:upper()"),
        ("local s = string.rep('a', 1.5e7)", "s:reverse()"),
        ("local s = string.rep('a', 3e7)", "s:find('b', 1, true)"),
        ("local s = string.rep('a', 3e7)", "redis.call('SET', 'k', s)"),
        ("local s = string.rep('a', 1e7)", "struct.pack('s', s)"),
    ] {
        // A call that took longer than the deadline would be stopped after it.
        let script = format!("{before} local r = {call} return 'ended'");
        assert_eq!(victim.eval(&script), "ended", "{before} {call}");
    }
}

#[test]
fn insertion_has_bounds() {
    let mut victim = Victim::new();
    for position in ["2^31", "-2147483648", "2^53", "-2^53", "0/0", "1/0", "-1/0"] {
        let script = format!("table.insert({{}}, {position}, 1) return 1");
        victim.check(&script, "bad argument #2 to 'insert' (position out of bounds)");
    }
    for (script, expected) in [
        ("local t = {1, 2} table.insert(t, 1, 0) return t", "[0 1 2]"),
        ("local t = {1, 2} table.insert(t, 3, 3) return t", "[1 2 3]"),
        ("local t = {1, 2} table.insert(t, 7, 'far') return t[7]", "far"),
        ("local t = {1, 2} table.insert(t, 0, 'before') return {t[0], t[1]}", "[before]"),
        ("local t = {1} table.insert(t, '1', 0) return t", "[0 1]"),
    ] {
        assert_eq!(victim.eval(script), expected, "{script}");
    }
}

#[test]
fn patterns_cannot_take_for_ever() {
    let mut victim = Victim::new();
    for script in [
        "return string.find(string.rep('a', 50000), string.rep('.-', 6) .. 'b')",
        "return string.find(string.rep('a', 40), string.rep('a?', 40) .. string.rep('a', 40))",
        "return string.match(string.rep('a', 50000), '(.*)(.*)(.*)(.*)b')",
        "return string.gsub(string.rep('a', 50000), '.-.-.-b', '')",
        "for _ in string.gmatch(string.rep('a', 50000), '.-.-.-b') do end",
        "return (string.rep('a', 50000)):find('(.-)(.-)(.-)%1%2%3b')",
        "return string.find(string.rep('(', 500000), '%b()')",
        "pcall(string.find, string.rep('a', 50000), string.rep('.-', 6) .. 'b') while true do end",
        "while true do pcall(string.find, string.rep('a', 50000), string.rep('.-', 6) .. 'b') end",
    ] {
        victim.check(script, KILLED);
    }
    // A search without a pattern is linear, however long both are.
    let plain = "local s = string.rep('a', 2000000) \
                 return string.find(s, string.rep('a', 1000000) .. 'b', 1, true) or 'none'";
    assert_eq!(victim.eval(plain), "none");
}

#[test]
fn memory_is_bounded() {
    let mut victim = Victim::with_deadline(10_000);
    for script in [
        "return string.rep('x', 2^30)",
        "return #string.rep('x', 1e8)",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} for i = 1, 1e9 do t[i] = {i} end",
        "local t = {} for i = 1, 1e9 do t[i] = 'key' .. i end",
        "local s = string.rep('x', 1e6) local t = {} for i = 1, 1000 do t[i] = s end \
         return table.concat(t)",
        "local s = string.rep('x', 4e6) return string.format('%s%s%s%s%s', s, s, s, s, s)",
        "local s = string.rep('x', 1e6) return (string.gsub(s, 'x', 'yyyyyyyyyyyyyyyyyyyyyyyyyyy'))",
        "local s = string.rep('x', 20000) \
         return (string.gsub(s, '(x-)(x-)x', string.rep('y', 5000)))",
        "local f = function() end for i = 1, 1e9 do local g = f f = function() return g end end",
        "local t = {} for i = 1, 1e9 do t[i] = coroutine.create(function() end) end",
        "local c = coroutine.wrap(function(...) return ... end) local t = {} \
         while true do t[#t + 1] = cjson.new() end",
    ] {
        victim.check(script, "not enough memory");
    }
    victim.check("return string.rep(string.rep('x', 2^20), 2^20)", "(error) ERR");
    let endless = "while true do pcall(string.rep, 'x', 2^28) end";
    Victim::new().check(endless, KILLED);
    // Exponential trees of few tables: bounded by depth, size or time, each with its own words.
    victim.check("local t = {} for i = 1, 200 do t = {t, t} end return t", "(error) ERR");
    victim.check(
        "local t = {} for i = 1, 200 do t = {t, t} end return cjson.encode(t)",
        "(error) ERR",
    );
    victim
        .check("local t = {} for i = 1, 200 do t = {t, t} end return #cmsgpack.pack(t)", "131071");
}

#[test]
fn depth_is_bounded() {
    let mut victim = Victim::with_deadline(1_000);
    for script in [
        "local function f() return f() + 1 end return f()",
        "local function f() local ok, e = pcall(f) error(e) end f()",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k .. 'x'] end \
         return t.x",
        "local t = setmetatable({}, {}) getmetatable(t).__call = function(t) return t() + 1 end return t()",
        "local function f() table.sort({2, 1}, function() return f() end) end f()",
        "local function f(s) return (string.gsub('a', '.', f)) end return f('a')",
        "local function f(s) return (string.gsub(string.rep('a', 9999), '(a-)(a-)a', f)) end return f('a')",
        "local t t = setmetatable({}, {__tostring = function() return tostring(t) end}) return tostring(t)",
        "local function f() return coroutine.wrap(f)() end return f()",
        "local function f() local co = coroutine.create(f) return error(select(2, coroutine.resume(co))) end \
         return f()",
        "local function f() table.sort({2, 1}, coroutine.wrap(function() f() end)) end f()",
        "local n = 0 local function f() n = n + 1 if n % 9 == 0 then return coroutine.wrap(f)() end \
         table.sort({2, 1}, f) end f()",
        "local function f() pcall(table.sort, {2, 1}, f) table.sort({2, 1}, f) end f()",
        "local t = setmetatable({}, {}) getmetatable(t).__concat = function(a, b) return a .. b end \
         return t .. t",
        "return loadstring('return ' .. string.rep('(', 10000) .. '1' .. string.rep(')', 10000))()",
        "return loadstring(string.rep('do ', 10000) .. string.rep(' end', 10000))()",
        "return loadstring('return ' .. string.rep('{', 10000) .. string.rep('}', 10000))()",
        "return loadstring('return ' .. string.rep('function() return ', 1000) .. '1' .. string.rep(' end', 1000))()",
        "local t = {} for i = 1, 100000 do t = {t} end return cjson.encode(t)",
        "return cjson.decode(string.rep('[', 1e6))",
        "return cmsgpack.unpack(string.rep('\\145', 1e6))",
        "cjson.encode_max_depth(1e9) local t = {} t[1] = t return cjson.encode(t)",
        "cjson.encode_max_depth(1000) return xpcall(error, function() error('again') end) and 1 or error('x')",
    ] {
        victim.check(script, "(error) ERR");
    }
    victim.eval("local function f() return load(f) end return f()");
    let reply = victim.eval("local a = {} local b = {a} a[1] = b return a");
    assert!(reply.contains("reached lua stack limit"));
    let deep = "cjson.decode_max_depth(1e9) local t = cjson.decode(string.rep('[', 2e4) .. string.rep(']', 2e4)) \
                local n = 0 while t do n = n + 1 t = t[1] end cjson.decode_max_depth(1000) return n";
    assert_eq!(victim.eval(deep), "20000");
}

#[test]
fn there_is_no_way_out() {
    let mut victim = Victim::new();
    for name in [
        "io", "os", "package", "require", "dofile", "loadfile", "print", "debug", "jit", "ffi",
        "module", "newproxy", "getfenv", "setfenv", "host", "prelude", "rawlen", "arg",
    ] {
        let expected = format!("nonexistent global variable '{name}'");
        victim.check(&format!("return {name}"), &expected);
        assert_eq!(victim.eval(&format!("return rawget(_G, '{name}') == nil and 1 or 2")), "1");
    }
    for (script, expected) in [
        (
            "return loadstring(string.dump(function() return 1 end))()",
            "attempt to call a nil value",
        ),
        ("return loadstring('\\27LJ\\2\\0')()", "attempt to call a nil value"),
        (
            "return load(coroutine.wrap(function() coroutine.yield('\\27Lua') end))()",
            "attempt to call a nil value",
        ),
        ("getmetatable('').__index = {}", "readonly table"),
        ("getmetatable('').__index.upper = 1", "readonly table"),
        ("string.upper = 1", "readonly table"),
        ("rawset(string, 'upper', 1)", "readonly table"),
        ("rawset(_G, 'x', 1)", "readonly table"),
        ("setmetatable(_G, {})", "readonly table"),
        ("getmetatable(_G).__index = {}", "readonly table"),
        ("getmetatable(_G).__newindex = nil", "readonly table"),
        ("_G.redis = nil", "readonly table"),
        ("_G = {}", "readonly table"),
        ("x = 1", "readonly table"),
        ("redis.call = nil", "readonly table"),
        ("cjson.encode = nil", "readonly table"),
        ("table.insert(redis, 1)", "readonly table"),
        ("table.remove(redis)", "readonly table"),
        ("table.sort(redis)", "readonly table"),
        ("for k in pairs(redis) do redis[k] = nil end", "readonly table"),
        ("local f, t = pairs(redis) t.call = nil", "readonly table"),
        ("string.find('', '', 1, true).x = 1", "attempt to index"),
        ("return redis.call('eval', 'return 1', 0)", "not allowed from script"),
        ("return redis.call('script', 'flush')", "not allowed from script"),
    ] {
        victim.check(script, expected);
    }
    // What one script leaves lying about the next does not find.
    victim
        .eval("KEYS.x = 1 ARGV.y = 2 setmetatable(KEYS, {__index = function() return 'mine' end})");
    assert_eq!(
        victim.eval("return {KEYS[1] == nil and 1 or 2, KEYS.x == nil and 1 or 2}"),
        "[1 1]"
    );
    victim.eval("collectgarbage('stop') collectgarbage('setpause', 100000)");
    for _ in 0..20 {
        assert_eq!(victim.eval("local t = {} for i = 1, 1e4 do t[i] = {i} end return #t"), "10000");
    }
}

#[test]
fn ranges_are_bounded() {
    let mut victim = Victim::new();
    for (script, expected) in [
        ("return {unpack({}, 1, 1e8)}", "too many results to unpack"),
        ("return {unpack({}, -2^31, 2^31 - 1)}", "too many results to unpack"),
        ("return {string.byte(string.rep('x', 1e6), 1, -1)}", "string slice too long"),
        ("return string.format('%99999999d', 1)", "width or precision too long"),
        ("return string.char(unpack({256}))", "(error) ERR"),
        ("return {cmsgpack.unpack(string.rep('\\1', 1e5))}", "(error) ERR"),
        ("return {struct.unpack(string.rep('b', 1e5), string.rep('x', 1e5))}", "too many results"),
        ("return struct.pack('i99999999999999', 1)", "integral size overflow"),
        ("return cmsgpack.unpack('\\221\\255\\255\\255\\255')", "Missing bytes"),
        ("return cmsgpack.unpack('\\223\\255\\255\\255\\255')", "Missing bytes"),
        ("return cmsgpack.unpack('\\219\\255\\255\\255\\255')", "Missing bytes"),
    ] {
        victim.check(script, expected);
    }
}

#[test]
fn a_script_that_wrote_is_stopped_later_and_its_writes_stay() {
    let mut victim = Victim::new();
    victim.check("redis.call('set', 'halfway', 1) while true do end", KILLED);
    assert_eq!(victim.command(&[b"GET", b"halfway"]), Reply::Bulk(b"1".to_vec()));
}

#[test]
fn others_can_see_that_a_script_keeps_them_waiting_and_kill_it() {
    let config = Config {
        script_clock: Some(monotonic),
        script_busy_ms: 1,
        script_deadline_ms: 60_000,
        script_deadline_written_ms: 1500,
        ..Config::default()
    };
    let mut engine = Engine::new(config);
    let control = engine.script_control();
    assert!(control.busy().is_none());
    let client = engine.connect("127.0.0.1:1");
    let mut eval = |script: &str| {
        let argv: [&[u8]; 3] = [b"EVAL", script.as_bytes(), b"0"];
        match engine.execute(Now::from_millis(1), client, &argv) {
            CommandOutcome::Reply(reply) => show(&reply),
            CommandOutcome::Blocked { .. } => panic!("nothing waits here"),
        }
    };

    let killer = {
        let control = control.clone();
        std::thread::spawn(move || {
            while control.busy().is_none() {
                std::thread::yield_now();
            }
            let busy = control.busy().unwrap().to_string();
            (busy, show(&control.kill(true)), show(&control.kill(false)))
        })
    };
    let reply = eval("while true do pcall(function() while true do end end) end");
    assert!(reply.starts_with("(error) ERR Script killed by user with SCRIPT KILL..."), "{reply}");
    let (busy, as_function, as_script) = killer.join().unwrap();
    assert!(busy.starts_with("BUSY Redis is busy running a script."), "{busy}");
    assert!(as_function.starts_with("(error) BUSY"), "it is no function: {as_function}");
    assert_eq!(as_script, "OK");
    assert!(!control.is_running() && control.busy().is_none());
    assert!(show(&control.kill(false)).starts_with("(error) NOTBUSY"));

    let killer = {
        let control = control.clone();
        std::thread::spawn(move || {
            while control.busy().is_none() {
                std::thread::yield_now();
            }
            show(&control.kill(false))
        })
    };
    let reply = eval("redis.call('set', 'x', 1) while true do end");
    assert!(killer.join().unwrap().starts_with("(error) UNKILLABLE"), "it has written");
    assert!(reply.starts_with("(error) ERR Script killed: it ran for longer"), "{reply}");
}

#[test]
fn without_a_clock_instructions_are_counted() {
    let config = Config { script_deadline_ms: 100, ..Config::default() };
    let mut engine = Engine::new(config);
    let client = engine.connect("127.0.0.1:1");
    let argv: [&[u8]; 3] = [b"EVAL", b"while true do end", b"0"];
    let outcome = engine.execute(Now::from_millis(1), client, &argv);
    let CommandOutcome::Reply(reply) = outcome else { panic!("it ends") };
    assert!(show(&reply).contains(KILLED));
}

#[test]
fn a_library_that_never_ends_is_not_loaded() {
    let mut kit = Kit::new();
    for body in [
        "while true do end",
        "local t = {} for i = 1, 1e9 do t[i] = redis.LOG_DEBUG .. i end",
        "local function f() return f() + 1 end f()",
    ] {
        let reply = kit.text(&format!("FUNCTION LOAD \"#!lua name=l\n{body}\""));
        assert!(reply.starts_with("(error) ERR Error registering functions: "), "{body}: {reply}");
        kit.check("FUNCTION LIST", "[]");
    }
    kit.check(
        "FUNCTION LOAD \"#!lua name=l\nredis.register_function('f', function() return 1 end)\"",
        "l",
    );
    kit.check("FCALL f 0", "1");
}
