//! Functions: libraries, their errors, and what they can see.

use crate::harness::{Differential, both};
use crate::wire::{Wire, words};

/// One command whose last argument is text as it stands.
fn with_text(d: &mut Differential, line: &str, text: &str) -> Wire {
    d.same_argv(&[words(line), vec![text.as_bytes().to_vec()]].concat())
}

fn load(d: &mut Differential, code: &str) -> Wire {
    with_text(d, "FUNCTION LOAD", code)
}

#[test]
fn libraries_are_loaded_listed_called_and_deleted() {
    both(|d| {
        d.same("FUNCTION FLUSH");
        load(
            d,
            "#!lua name=one\nredis.register_function('f', function(keys, args) return {keys, args} end)",
        );
        load(d, "#!lua name=one\nredis.register_function('f', function() return 1 end)");
        with_text(
            d,
            "FUNCTION LOAD REPLACE",
            "#!lua name=one\nlocal n = 0\nredis.register_function('F', function(keys, args) n = n + 1 return {n, keys, args, #keys} end)",
        );
        load(
            d,
            "#!LUA  NAME=two \nredis.register_function{function_name='g', description='about g', callback=function(k, a) return redis.call('SET', k[1], a[1]) end}\nredis.register_function{function_name='r', flags={'no-writes', 'ALLOW-OOM'}, callback=function(k) return redis.call('GET', k[1]) end}",
        );
        load(d, "#!lua name=three\nredis.register_function('f', function() return 1 end)");
        d.same("FCALL f 0");
        d.same("FCALL F 2 a b c d");
        d.same("FCALL g 1 key value");
        d.same("FCALL r 1 key");
        d.same("FCALL_RO r 1 key");
        d.same("FCALL_RO g 1 key value");
        d.same("FCALL none 0");
        d.same("FCALL f x");
        d.same("FCALL f -1");
        d.same("FCALL f 3 a");
        d.same("FUNCTION STATS");
        d.same("FUNCTION LIST LIBRARYNAME on*");
        d.same("FUNCTION LIST LIBRARYNAME ONE WITHCODE");
        d.same("FUNCTION LIST LIBRARYNAME");
        d.same("FUNCTION LIST FOO");
        d.same("FUNCTION DELETE none");
        d.same("FUNCTION DELETE one");
        d.same("FCALL f 0");
        d.same("FUNCTION LIST WITHCODE LIBRARYNAME one");
        d.same("FUNCTION FLUSH FOO");
        d.same("FUNCTION FLUSH SYNC FOO");
        d.same("FUNCTION KILL");
        d.same("FUNCTION FOO");
        d.same("FUNCTION LOAD FOO bar");
        d.same("FUNCTION FLUSH ASYNC");
        d.same("FUNCTION LIST");
        d.same("COMMAND GETKEYS FCALL f 2 a b c");
    });
}

#[test]
fn libraries_that_are_not_right_are_refused() {
    both(|d| {
        for code in [
            "return 1",
            "#!lua",
            "#!lua\nreturn 1",
            "#!lua name=\nreturn 1",
            "#!lua name=a-b\nreturn 1",
            "#!lua name=a name=b\nreturn 1",
            "#!lua name=a foo=b\nreturn 1",
            "#!python name=a\nreturn 1",
            "#! lua name=a\nreturn 1",
            "#!lua name=a\nreturn 1",
            "#!lua name=a\nthis is no lua",
            "#!lua name=a\n\nerror('no')",
            "#!lua name=a\nerror({err='mine'})",
            "#!lua name=a\nredis.call('SET', 'a', 'b')",
            "#!lua name=a\nx = 1",
            "#!lua name=a\nlocal x = y",
            "#!lua name=a\nmath.random()",
            "#!lua name=a\nredis.register_function('f')",
            "#!lua name=a\nredis.register_function()",
            "#!lua name=a\nredis.register_function(1, 2, 3)",
            "#!lua name=a\nredis.register_function(nil, 2)",
            "#!lua name=a\nredis.register_function('f', 2)",
            "#!lua name=a\nredis.register_function('f f', function() end)",
            "#!lua name=a\nredis.register_function('f', function() end)\nredis.register_function('f', function() end)",
            "#!lua name=a\nredis.register_function{}",
            "#!lua name=a\nredis.register_function{function_name='f'}",
            "#!lua name=a\nredis.register_function{callback=function() end}",
            "#!lua name=a\nredis.register_function{function_name='f', callback=1}",
            "#!lua name=a\nredis.register_function{function_name={}, callback=function() end}",
            "#!lua name=a\nredis.register_function{function_name='f', callback=function() end, description={}}",
            "#!lua name=a\nredis.register_function{function_name='f', callback=function() end, flags='x'}",
            "#!lua name=a\nredis.register_function{function_name='f', callback=function() end, flags={'x'}}",
            "#!lua name=a\nredis.register_function{function_name='f', callback=function() end, foo=1}",
            "#!lua name=a\nredis.register_function{[{}]=1}",
        ] {
            load(d, code);
        }
        d.same("FUNCTION LIST");
    });
}

#[test]
fn functions_see_the_same_world() {
    both(|d| {
        d.same("FUNCTION FLUSH");
        for (n, body) in [
            "return redis.call('nope')",
            "return redis.pcall('nope')",
            "return redis.call('SET', k[1])",
            "error('mine')",
            "error({err='MINE of mine'})",
            "return redis.error_reply('MINE of mine')",
            "return redis.status_reply('fine')",
            "x = 1",
            "return x",
            "return KEYS",
            "redis.register_function('late', function() end)",
            "return type(redis.breakpoint)",
            "return {type(redis.set_repl), type(redis.sha1hex), type(cjson), type(_G), type(os), type(print)}",
            "return math.max(1, 2)",
            "local t = {} ; return t.a.b",
            "redis.setresp(3) ; return redis.call('HGETALL', 'h')",
            "return {1.9, 'a', false, nil, 5}",
            "return redis.sha1hex('')",
            "return string.rep('x', 3)",
            "return pcall(function() error('inner') end)",
            "return tostring(#k) .. tostring(#a)",
            "redis.call('SET', 'undeclared', 1) ; return redis.call('INCR', 'undeclared')",
            "redis = 1",
            "redis.call = 1",
            "string.sub = 1",
            "setmetatable(_G, {})",
            "return loadstring('return 1 + 1')()",
        ]
        .into_iter()
        .enumerate()
        {
            load(d, &format!("#!lua name=l{n}\nredis.register_function('f{n}', function(k, a)\n {body}\nend)"));
            d.same(&format!("FCALL f{n} 1 key argument"));
        }
    });
}

#[test]
fn dumps_cross_over() {
    both(|d| {
        d.same("FUNCTION FLUSH");
        load(d, "#!lua name=one\nredis.register_function('f', function() return 1 end)");
        load(d, "#!lua name=two\nredis.register_function('g', function() return 2 end)");
        let argv = words("FUNCTION DUMP");
        let theirs = d.pipeline(std::slice::from_ref(&argv)).remove(0);
        for dump in [theirs, d.ours(&argv)] {
            let Wire::Bulk(payload) = dump else { panic!("FUNCTION DUMP answers a string") };
            let restore = |options: &str| {
                let mut argv = words("FUNCTION RESTORE");
                argv.push(payload.clone());
                argv.extend(words(options));
                argv
            };
            d.run("FUNCTION FLUSH");
            d.same_argv(&restore(""));
            d.same("FCALL f 0");
            d.same_argv(&restore("REPLACE"));
            d.same_argv(&restore("FLUSH"));
            d.same("FCALL g 0");
            d.same_argv(&restore("FOO"));
            d.same_argv(&restore("FLUSH FOO"));
            d.same("FUNCTION DELETE one");
            d.same("FUNCTION DELETE two");
            load(d, "#!lua name=three\nredis.register_function('f', function() return 3 end)");
            d.same_argv(&restore("APPEND"));
            d.same_argv(&restore("REPLACE"));
            d.same("FCALL f 0");
            d.same("FUNCTION STATS");
            d.same_argv(&restore("FLUSH"));
            d.same("FUNCTION DELETE two");
            d.same_argv(&restore("APPEND"));
            d.same("FUNCTION STATS");
            d.same("FUNCTION RESTORE nonsense");
        }
        d.same("FUNCTION FLUSH");
    });
}
