//! `CLIENT TRACKING`: who is told of which key, when, and in which words.

use crate::harness::{Differential, both, resp3};

/// Lines of one client, each with the same answer on both sides.
fn lines(d: &mut Differential, client: usize, lines: &[&str]) {
    for line in lines {
        d.same_on(client, line);
    }
}

/// Nothing is on its way to this client: what comes next is the answer.
fn quiet(d: &mut Differential, client: usize) {
    d.same_on(client, "ECHO quiet");
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    both(|d| {
        lines(
            d,
            0,
            &[
                "CLIENT TRACKING",
                "CLIENT TRACKING maybe",
                "CLIENT TRACKING maybe NOLOOP",
                "CLIENT TRACKING ON nothing",
                "CLIENT TRACKING ON REDIRECT",
                "CLIENT TRACKING ON REDIRECT word",
                "CLIENT TRACKING ON REDIRECT 0",
                "CLIENT TRACKING ON REDIRECT 123456789",
                "CLIENT TRACKING ON REDIRECT -1",
                "CLIENT TRACKING ON PREFIX",
                "CLIENT TRACKING ON PREFIX a",
                "CLIENT TRACKING OFF PREFIX a",
                "CLIENT TRACKING ON BCAST OPTIN",
                "CLIENT TRACKING ON BCAST OPTOUT",
                "CLIENT TRACKING ON OPTIN OPTOUT",
                "CLIENT TRACKING ON BCAST PREFIX FOOBAR PREFIX FOO",
                "CLIENT TRACKING ON BCAST PREFIX FOO PREFIX FOOBAR",
                "CLIENT CACHING YES",
                "CLIENT CACHING",
                "CLIENT TRACKINGINFO",
                "CLIENT GETREDIR",
                "CLIENT TRACKING ON",
                "CLIENT CACHING YES",
                "CLIENT CACHING NO",
                "CLIENT CACHING maybe",
                "CLIENT TRACKINGINFO",
                "CLIENT GETREDIR",
                "CLIENT TRACKING ON BCAST",
                "CLIENT TRACKING ON OPTIN",
                "CLIENT TRACKINGINFO",
                "CLIENT TRACKING ON OPTOUT",
                "CLIENT CACHING NO",
                "CLIENT CACHING YES",
                "CLIENT TRACKINGINFO",
                "CLIENT TRACKINGINFO x",
                "PING",
                "CLIENT TRACKINGINFO",
                "CLIENT CACHING YES",
                "CLIENT TRACKING ON NOLOOP",
                "CLIENT TRACKINGINFO",
                "CLIENT TRACKING OFF",
                "CLIENT TRACKING ON OPTOUT",
                "CLIENT CACHING YES",
                "CLIENT CACHING NO",
                "CLIENT TRACKINGINFO",
                "CLIENT TRACKING OFF",
                "CLIENT TRACKING ON BCAST PREFIX FOO PREFIX BAR",
                "CLIENT TRACKING ON BCAST PREFIX FO",
                "CLIENT TRACKING ON BCAST PREFIX BARB",
                "CLIENT TRACKING ON BCAST PREFIX FOO",
                "CLIENT TRACKING ON BCAST PREFIX c NOLOOP",
                "CLIENT TRACKINGINFO",
                "CLIENT TRACKING ON BCAST",
                "CLIENT TRACKINGINFO",
                "CLIENT TRACKING OFF",
                "CLIENT TRACKINGINFO",
                "CLIENT TRACKING ON BCAST",
                "CLIENT TRACKINGINFO",
                "RESET",
                "CLIENT TRACKINGINFO",
            ],
        );
    });
}

#[test]
fn one_who_has_read_a_key_is_told_once() {
    resp3(|d| {
        let reader = d.client();
        lines(d, reader, &["CLIENT TRACKING ON", "GET k", "MGET a b c", "HGET h f", "TTL t"]);
        d.same("SET k 1");
        d.pushed(reader);
        d.same("SET k 2");
        d.same("DEL b");
        d.same("SET b 1");
        d.pushed(reader);
        d.same("HSET h f 1 g 2");
        d.pushed(reader);
        d.same("SET t 1");
        d.pushed(reader);
        quiet(d, reader);
        // Names of keys are the same in all databases.
        d.same("SELECT 3");
        d.same("SET a 1");
        d.pushed(reader);
        d.same("SELECT 0");
        // Commands that write are not remembered, even if they answer what was there.
        lines(d, reader, &["GETSET x 1", "INCR n", "GETDEL x", "GETEX n"]);
        d.same("MSET x 1 n 2");
        quiet(d, reader);
        // Its own changes it is told behind the reply; those of a transaction behind all of it.
        lines(d, reader, &["GET k", "SET k 3", "GET k", "MULTI", "INCR k", "GET k", "EXEC"]);
        lines(d, reader, &["HGET h f", "HDEL h f g"]);
        lines(d, reader, &["MGET k c", "RENAME k c"]);
        lines(d, reader, &["GET k", "GET n"]);
        for line in ["FLUSHDB", "SET n 1", "FLUSHALL"] {
            d.same(line);
            if line.starts_with("FLUSH") {
                d.pushed(reader);
            }
        }
        lines(d, reader, &["GET k", "FLUSHALL", "CLIENT TRACKING OFF", "GET k"]);
        d.same("SET k 1");
        quiet(d, reader);
    });
}

#[test]
fn keys_that_die_are_told() {
    resp3(|d| {
        let reader = d.client();
        for line in ["SET k v", "SET l v", "RPUSH list a"] {
            d.same(line);
        }
        lines(d, reader, &["CLIENT TRACKING ON", "GET k", "GET l", "LRANGE list 0 -1"]);
        d.same("PEXPIRE k 1");
        d.pushed(reader);
        d.same("LPOP list");
        d.pushed(reader);
        d.same("EXPIRE l -1");
        d.pushed(reader);
        quiet(d, reader);
    });
}

#[test]
fn no_loop_opt_in_and_opt_out() {
    resp3(|d| {
        let reader = d.client();
        lines(d, reader, &["CLIENT TRACKING ON NOLOOP", "MGET a b", "SET a 1", "SET b 1"]);
        d.same("MSET a 2 b 2");
        quiet(d, reader);
        lines(d, reader, &["GET a", "EVAL \"return redis.call('set', KEYS[1], 1)\" 1 a"]);
        quiet(d, reader);
        lines(d, reader, &["CLIENT TRACKING OFF", "CLIENT TRACKING ON OPTIN", "GET a"]);
        d.same("SET a 3");
        lines(d, reader, &["CLIENT CACHING YES", "CLIENT INFO x", "GET a", "GET b"]);
        d.same("MSET a 4 b 4");
        d.pushed(reader);
        quiet(d, reader);
        lines(d, reader, &["CLIENT CACHING YES", "MULTI", "GET a", "GET b", "EXEC", "GET c"]);
        d.same("MSET a 5 b 5 c 5");
        d.pushed(reader);
        d.pushed(reader);
        quiet(d, reader);
        lines(d, reader, &["CLIENT TRACKING OFF", "CLIENT TRACKING ON OPTOUT", "GET a"]);
        lines(d, reader, &["CLIENT CACHING NO", "GET b"]);
        d.same("MSET b 6 a 6");
        d.pushed(reader);
        quiet(d, reader);
    });
}

#[test]
fn scripts_track_the_keys_they_declare() {
    resp3(|d| {
        let reader = d.client();
        d.same("MSET k1 1 k2 1");
        lines(d, reader, &["CLIENT TRACKING ON", "EVAL \"redis.call('set', 'k3', 'x')\" 2 k1 k2"]);
        d.same("MSET k1 2 k2 2");
        quiet(d, reader);
        for script in [
            "EVAL \"return redis.call('get', 'k3')\" 2 k1 k2",
            "EVAL_RO \"return redis.call('get', 'k1')\" 2 k1 k2",
        ] {
            d.same_on(reader, script);
            d.same("MSET k2 2 k1 2");
            d.pushed(reader);
            d.pushed(reader);
        }
        d.same_on(reader, "EVAL_RO \"return redis.call('ping')\" 2 k1 k2");
        d.same("MSET k2 2 k1 2");
        quiet(d, reader);
        // What is read and then written is told behind the reply.
        let both = "EVAL \"redis.call('get', KEYS[1]) return redis.call('incr', KEYS[1])\" 1 k1";
        d.same_on(reader, both);
        quiet(d, reader);
    });
}

#[test]
fn prefixes_are_broadcast() {
    resp3(|d| {
        let (all, some) = (d.client(), d.client());
        d.same_on(all, "CLIENT TRACKING ON BCAST");
        d.same_on(some, "CLIENT TRACKING ON BCAST PREFIX a: PREFIX b: NOLOOP");
        d.same("MSET b 1 a 2");
        d.pushed(all);
        d.same("MSET b:1 1 a:2 2 a:1 3");
        d.pushed(all);
        d.pushed(some);
        d.pushed(some);
        lines(d, 0, &["MULTI", "INCR a:1", "INCR a:9", "DEL a:1", "INCR other", "EXEC"]);
        d.pushed(all);
        d.pushed(some);
        // Its own changes it does not hear of, but for those of a script.
        d.same_on(some, "SET a:1 1");
        d.pushed(all);
        quiet(d, some);
        d.same("FLUSHALL");
        d.pushed(all);
        d.pushed(some);
        d.same_on(some, "CLIENT TRACKING OFF");
        d.same("SET a:1 1");
        d.pushed(all);
        quiet(d, some);
    });
}

#[test]
fn somebody_else_can_be_told() {
    both(|d| {
        let (reader, listener) = (d.client(), d.client());
        d.same_about(reader, "CLIENT TRACKING ON REDIRECT <id>", listener);
        lines(d, reader, &["GET a", "GET b"]);
        if d.resp() == 2 {
            // A RESP2 connection hears of nothing before it subscribes.
            d.same("SET a 1");
            quiet(d, listener);
        }
        d.same_on(listener, "SUBSCRIBE __redis__:invalidate");
        d.same("SET b 1");
        d.pushed(listener);
        lines(d, reader, &["GET a"]);
        d.same("FLUSHALL");
        d.pushed(listener);
        d.same_about(reader, "CLIENT TRACKING ON REDIRECT <id> REDIRECT <id>", 0);
        d.same_about(reader, "CLIENT TRACKING ON NOLOOP REDIRECT <id>", listener);
        lines(d, reader, &["MGET a b", "SET a 1", "CLIENT TRACKING OFF"]);
        d.same_about(reader, "CLIENT TRACKING ON BCAST REDIRECT <id>", listener);
        d.same("MSET b 1 a 2");
        d.pushed(listener);
        d.same_on(listener, "RESET");
        d.same_on(listener, "QUIT");
    });
}

#[test]
fn messages_to_oneself_stand_where_they_belong() {
    resp3(|d| {
        lines(d, 0, &["SUBSCRIBE c", "PUBLISH c hello", "PSUBSCRIBE c*", "PUBLISH c twice"]);
        d.same("CONFIG SET notify-keyspace-events KEA");
        lines(d, 0, &["PSUBSCRIBE __key*", "SET k 1"]);
        d.same("CONFIG SET notify-keyspace-events \"\"");
    });
}
