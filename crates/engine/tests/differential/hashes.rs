//! Hashes.

use crate::harness::both;

#[test]
fn fields_one_by_one() {
    both(|d| {
        for line in [
            "HSET h a 1 b two c 3.5",
            "HSET h a 2 d 4",
            "HSET h a",
            "HSET h a 1 b",
            "HMSET h e 5 f 6",
            "HMSET h e 5 f",
            "HGETALL h",
            "HKEYS h",
            "HVALS h",
            "HLEN h",
            "HGET h a",
            "HGET h nofield",
            "HGET nokey a",
            "HMGET h a nofield b",
            "HMGET nokey a b",
            "HEXISTS h a",
            "HEXISTS h nofield",
            "HEXISTS nokey a",
            "HSTRLEN h b",
            "HSTRLEN h nofield",
            "HSTRLEN nokey b",
            "HSETNX h a 9",
            "HSETNX h new 9",
            "HSETNX newkey f v",
            "HDEL h a nofield b",
            "HDEL nokey a",
            "HDEL newkey f",
            "EXISTS newkey",
            "HGETALL nokey",
            "HKEYS nokey",
            "HVALS nokey",
            "HLEN nokey",
            "HSET h \"\" empty",
            "HGET h \"\"",
            "HSET h bin \"a\\x00b\\r\\n\"",
            "HGET h bin",
            "HSET h uuid 550e8400-e29b-41d4-a716-446655440000",
            "HGET h uuid",
            "HSET h upper 550E8400-E29B-41D4-A716-446655440000",
            "HGET h upper",
            "HSET h 550e8400-e29b-41d4-a716-446655440000 1",
            "HGET h 550e8400-e29b-41d4-a716-446655440000",
            "HSET h 00 x 0 y -0 z",
            "HMGET h 00 0 -0",
            "HGETALL h",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn numbers_in_fields() {
    both(|d| {
        for line in [
            "HINCRBY h n 5",
            "HINCRBY h n -7",
            "HINCRBY h n x",
            "HINCRBY h n 1.5",
            "HSET h big 9223372036854775807 s text f 1.5 space \" 1\"",
            "HINCRBY h big 1",
            "HINCRBY h big -1",
            "HINCRBY h s 1",
            "HINCRBY h f 1",
            "HINCRBY h space 1",
            "HINCRBYFLOAT h n 0.1",
            "HINCRBYFLOAT h f 1e3",
            "HINCRBYFLOAT h f -1501.5",
            "HINCRBYFLOAT h s 1",
            "HINCRBYFLOAT h f x",
            "HINCRBYFLOAT h f inf",
            "HINCRBYFLOAT h f nan",
            "HINCRBYFLOAT h f 1e400",
            "HINCRBYFLOAT h new 3.0e-3",
            "HINCRBYFLOAT h third 0.3333333333333333333",
            "HINCRBYFLOAT h third 0.3333333333333333333",
            "HINCRBYFLOAT h large 1e300",
            "HINCRBYFLOAT h space 1",
            "SET str 1",
            "HINCRBY str a x",
            "HINCRBY str a 1",
            "HINCRBYFLOAT str a 1",
        ] {
            d.same(line);
        }
        d.sorted_pairs("HGETALL h");
    });
}

#[test]
fn wrong_types_and_arities() {
    both(|d| {
        d.same("SET s 1");
        for name in [
            "HSET s a 1",
            "HSETNX s a 1",
            "HGET s a",
            "HMGET s a",
            "HGETALL s",
            "HKEYS s",
            "HVALS s",
            "HLEN s",
            "HSTRLEN s a",
            "HEXISTS s a",
            "HDEL s a",
            "HRANDFIELD s",
            "HRANDFIELD s 1",
            "HSCAN s 0",
            "HSCAN s x",
            "HSCAN s 0 BAD",
            "HSET",
            "HGET a",
            "HGET a b c",
            "HDEL a",
            "HINCRBY a b",
            "HSCAN a",
            "HRANDFIELD",
        ] {
            d.same(name);
        }
    });
}

#[test]
fn encodings_change_where_redis_changes_them() {
    both(|d| {
        for n in 0..515 {
            d.same(&format!("HSET h f{n} {n}"));
            if n > 509 {
                d.same("OBJECT ENCODING h");
            }
        }
        d.same("HDEL h f1 f2 f3 f4 f5");
        d.same("OBJECT ENCODING h");
        d.same(&format!("HSET long a {}", "x".repeat(64)));
        d.same("OBJECT ENCODING long");
        d.same(&format!("HSET long a {}", "x".repeat(65)));
        d.same("OBJECT ENCODING long");
        d.same("HSET long a short");
        d.same("OBJECT ENCODING long");
        d.same(&format!("HSET name {} 1", "x".repeat(65)));
        d.same("OBJECT ENCODING name");
        d.same("CONFIG SET hash-max-listpack-entries 2");
        d.same("HSET few a 1 b 2");
        d.same("OBJECT ENCODING few");
        d.same("HSET few c 3");
        d.same("OBJECT ENCODING few");
        d.same("CONFIG SET hash-max-listpack-entries 512");
        d.same("CONFIG SET hash-max-listpack-value 10");
        d.same("HINCRBYFLOAT float f 0.1234567890123");
        d.same("OBJECT ENCODING float");
        d.same("CONFIG SET hash-max-listpack-value 64");
        d.sorted_pairs("HGETALL h");
    });
}

#[test]
fn random_fields_and_scans() {
    both(|d| {
        d.same("HRANDFIELD nokey");
        d.same("HRANDFIELD nokey 5");
        d.same("HRANDFIELD nokey 5 WITHVALUES");
        d.same("HSET one a 1");
        for line in [
            "HRANDFIELD one",
            "HRANDFIELD one 1",
            "HRANDFIELD one 5",
            "HRANDFIELD one 5 WITHVALUES",
            "HRANDFIELD one -3",
            "HRANDFIELD one -3 WITHVALUES",
            "HRANDFIELD one 0",
            "HRANDFIELD one 0 WITHVALUES",
            "HRANDFIELD one x",
            "HRANDFIELD one 1 BAD",
            "HRANDFIELD one 1 WITHVALUES BAD",
            "HRANDFIELD one 9223372036854775807",
            "HRANDFIELD one -9223372036854775808",
            "HRANDFIELD one 9223372036854775807 WITHVALUES",
            "HRANDFIELD one -9223372036854775807 WITHVALUES",
            "HSCAN one 0",
            "HSCAN one 0 MATCH a* COUNT 100",
            "HSCAN one 0 MATCH b*",
            "HSCAN one 0 COUNT 0",
            "HSCAN one 0 COUNT x",
            "HSCAN one 0 COUNT",
            "HSCAN one 0 TYPE hash",
            "HSCAN one -1",
            "HSCAN one 18446744073709551616",
            "HSCAN nokey 0 BAD",
            "HSCAN nokey x",
        ] {
            d.same(line);
        }
        d.same("HSET h a 1 b 2 c 3 d 4");
        d.shape("HRANDFIELD h 3");
        d.shape("HRANDFIELD h 3 WITHVALUES");
        d.shape("HRANDFIELD h -10");
        d.sorted("HRANDFIELD h 10");
    });
}

#[test]
fn keyspace_events() {
    both(|d| {
        d.same("CONFIG SET notify-keyspace-events KEA");
        let listener = d.client();
        d.same_on(listener, "PSUBSCRIBE __key*");
        for line in ["HSET h a 1 b 2", "HDEL h x", "HINCRBY h a 1", "HINCRBYFLOAT h a 1.5"] {
            d.same(line);
        }
        for _ in 0..6 {
            d.pushed(listener);
        }
        d.same("HDEL h a b");
        for _ in 0..4 {
            d.pushed(listener);
        }
        d.same("CONFIG SET notify-keyspace-events \"\"");
    });
}
