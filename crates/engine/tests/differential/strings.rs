//! Strings: SET and its options, ranges, numbers, bits, LCS.

use crate::harness::both;

#[test]
fn set_with_every_option() {
    both(|d| {
        for line in [
            "SET k v",
            "GET k",
            "SET k v NX",
            "SET k w XX",
            "SET k x GET",
            "SET new x GET",
            "SET other x XX GET",
            "SET k y NX GET",
            "SET k v EX 100 KEEPTTL",
            "SET k v KEEPTTL EX 100",
            "SET k v EX 100 PX 100",
            "SET k v EX",
            "SET k v EX 0",
            "SET k v EX -1",
            "SET k v EX abc",
            "SET k v EX 10 EX 20",
            "SET k v EX 9223372036854775807",
            "SET k v PX 9223372036854775807",
            "SET k v EXAT 9223372036854775807",
            "SET k v PXAT 1",
            "GET k",
            "SET k v NX XX",
            "SET k v XX NX",
            "SET k v FOO",
            "SET k v PERSIST",
            "SET k",
            "SET k v EX 100",
            "SET k w KEEPTTL",
            "SET k w",
            "TTL k",
            "RPUSH l a",
            "GET l",
            "SET l v GET",
            "SET l v NX GET",
            "TYPE l",
            "SET l v",
            "GET l",
            "SET \"\" empty",
            "GET \"\"",
            "SET bin \"a\\x00b\\r\\n\"",
            "GET bin",
        ] {
            d.same(line);
        }
        d.same("SET k v EX 100");
        d.near("PTTL k", 200);
        d.same("SET k v PXAT 33000000000000");
        d.same("PEXPIRETIME k");
        d.same("EXPIRETIME k");
    });
}

#[test]
fn getset_getdel_getex_setnx_setex() {
    both(|d| {
        for line in [
            "GETSET k a",
            "GETSET k b",
            "GETDEL k",
            "GETDEL k",
            "SETNX k 1",
            "SETNX k 2",
            "SETEX k 100 v",
            "SETEX k 0 v",
            "SETEX k -5 v",
            "SETEX k x v",
            "PSETEX k 0 v",
            "PSETEX k 100000 w",
            "GETEX k",
            "GETEX k PERSIST",
            "TTL k",
            "GETEX k EX 100",
            "GETEX k EXAT 33000000000",
            "PEXPIRETIME k",
            "GETEX k PXAT 33000000000001",
            "PEXPIRETIME k",
            "GETEX k EX 100 PERSIST",
            "GETEX k PERSIST EX 100",
            "GETEX k KEEPTTL",
            "GETEX k EX 0",
            "GETEX k EX x",
            "GETEX k NX",
            "GETEX missing EX x",
            "GETEX missing EX",
            "GETEX k EXAT 1",
            "EXISTS k",
            "RPUSH l a",
            "GETEX l",
            "GETDEL l",
            "GETSET l a",
            "SETNX l a",
            "SETEX l 100 x",
            "TYPE l",
            "MSET a 1 b 2 a 3",
            "MGET a b c a",
            "MSET a",
            "MSET a 1 b",
            "MSETNX x 1 a 2",
            "MSETNX x 1 y 2",
            "MSETNX x 1 y",
            "MGET x y",
            "LPUSH list a",
            "MGET x list",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn ranges() {
    both(|d| {
        for line in [
            "SETRANGE k 0 hello",
            "SETRANGE k 6 world",
            "GET k",
            "SETRANGE k 2 \"\"",
            "SETRANGE missing 2 \"\"",
            "EXISTS missing",
            "SETRANGE k -1 x",
            "SETRANGE k x x",
            "SETRANGE k 536870911 xy",
            "SETRANGE k 9223372036854775807 xy",
            "SETRANGE m 536870911 xy",
            "OBJECT ENCODING k",
            "GETRANGE k 0 -1",
            "GETRANGE k 1 3",
            "GETRANGE k -3 -1",
            "GETRANGE k -1 -3",
            "GETRANGE k 5 2",
            "GETRANGE k 100 200",
            "GETRANGE k 0 100",
            "GETRANGE k -100 2",
            "GETRANGE k -100 -50",
            "GETRANGE k a 1",
            "GETRANGE missing 0 1",
            "GETRANGE missing a 1",
            "SUBSTR k 0 2",
            "SET n 12345",
            "GETRANGE n 1 2",
            "SETRANGE n 1 x",
            "GET n",
            "OBJECT ENCODING n",
            "STRLEN n",
            "STRLEN missing",
            "APPEND n tail",
            "APPEND fresh 12",
            "OBJECT ENCODING fresh",
            "APPEND fresh 3",
            "OBJECT ENCODING fresh",
            "INCR fresh",
            "OBJECT ENCODING fresh",
            "APPEND fresh \"\"",
            "OBJECT ENCODING fresh",
            "RPUSH l a",
            "APPEND l x",
            "STRLEN l",
            "SETRANGE l 0 x",
            "GETRANGE l 0 1",
            "SET s \"\"",
            "GETRANGE s 0 -1",
            "STRLEN s",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn counting() {
    both(|d| {
        for line in [
            "INCR n",
            "DECR n",
            "INCRBY n 10",
            "DECRBY n 3",
            "INCRBY n -100",
            "INCRBY n x",
            "INCRBY n 1.5",
            "DECRBY n -9223372036854775808",
            "INCRBY n 9223372036854775807",
            "INCRBY n 9223372036854775807",
            "DECRBY n -9223372036854775807",
            "SET n 9223372036854775807",
            "INCR n",
            "DECR n",
            "SET n -9223372036854775808",
            "DECR n",
            "SET n \" 1\"",
            "INCR n",
            "SET n 1x",
            "INCR n",
            "SET n 007",
            "INCR n",
            "OBJECT ENCODING n",
            "SET n 20000",
            "OBJECT ENCODING n",
            "OBJECT REFCOUNT n",
            "SET n 20",
            "OBJECT REFCOUNT n",
            "SET n abc",
            "OBJECT REFCOUNT n",
            "RPUSH l a",
            "INCR l",
            "SET f 3.0e3",
            "INCRBYFLOAT f 200",
            "OBJECT ENCODING f",
            "SET f 10.50",
            "INCRBYFLOAT f 0.1",
            "INCRBYFLOAT f -5",
            "INCRBYFLOAT f 5.0e3",
            "INCRBYFLOAT f abc",
            "INCRBYFLOAT f nan",
            "INCRBYFLOAT f inf",
            "INCRBYFLOAT f -inf",
            "INCRBYFLOAT f \"\"",
            "INCRBYFLOAT f \" 1\"",
            "INCRBYFLOAT f 1e5000",
            "INCRBYFLOAT f 0x10",
            "INCRBYFLOAT l 1",
            "SET f abc",
            "INCRBYFLOAT f 1",
            "INCRBYFLOAT new 0.1",
            "INCRBYFLOAT new 0.2",
            "INCRBYFLOAT new 3.0000000000000000000000000001",
            "SET f 1",
            "INCRBYFLOAT f 1",
            "INCR f",
            "SET f 0",
            "INCRBYFLOAT f -0.0",
            "SET f 17179869184",
            "INCRBYFLOAT f 1.5",
            "SET f 1e30",
            "INCRBYFLOAT f 1",
            "SET f 1e-17",
            "INCRBYFLOAT f 5e-18",
            "SET f 0.000000000000000005",
            "INCRBYFLOAT f 0",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn long_doubles_agree_on_many_sums() {
    both(|d| {
        let mut rng = fastrand::Rng::with_seed(11);
        for n in 0..1500 {
            let exponent = rng.i32(-25..25);
            let digits = rng.u64(..) >> rng.u32(0..63);
            let sign = if rng.bool() { "-" } else { "" };
            let value = match n % 4 {
                0 => format!("{sign}{digits}e{exponent}"),
                1 => format!("{sign}{}.{}", digits >> 20, rng.u32(..)),
                2 => format!("{sign}0.{digits:020}"),
                _ => format!("{sign}0x{:x}.{:x}p{exponent}", digits >> 13, rng.u16(..)),
            };
            d.same(&format!("INCRBYFLOAT k{} {value}", n % 7));
            if n % 50 == 0 {
                d.same(&format!("DEL k{}", rng.u32(0..7)));
            }
        }
    });
}

#[test]
fn bits() {
    both(|d| {
        for line in [
            "SETBIT b 7 1",
            "SETBIT b 7 0",
            "SETBIT b 100 1",
            "GET b",
            "GETBIT b 100",
            "GETBIT b 1000",
            "GETBIT missing 0",
            "SETBIT b -1 1",
            "SETBIT b 4294967296 1",
            "SETBIT b x 1",
            "SETBIT b 1 2",
            "SETBIT b 1 x",
            "OBJECT ENCODING b",
            "SET n 123",
            "SETBIT n 6 1",
            "GET n",
            "OBJECT ENCODING n",
            "SET s foobar",
            "BITCOUNT s",
            "BITCOUNT s 0 0",
            "BITCOUNT s 1 1",
            "BITCOUNT s -2 -1",
            "BITCOUNT s -1 -2",
            "BITCOUNT s 5 30 BIT",
            "BITCOUNT s 1 1 BYTE",
            "BITCOUNT s 1 -10 BIT",
            "BITCOUNT s -10 -1 BIT",
            "BITCOUNT s 0",
            "BITCOUNT s a b",
            "BITCOUNT s 0 1 FOO",
            "BITCOUNT missing 0",
            "BITCOUNT missing",
            "SET z \"\\xff\\xf0\\x00\"",
            "BITPOS z 0",
            "BITPOS z 1",
            "BITPOS z 1 2",
            "BITPOS z 0 0 0",
            "BITPOS z 0 0 -1 BIT",
            "BITPOS z 0 13 15 BIT",
            "BITPOS z 1 9 15 BIT",
            "BITPOS z 1 20 23 BIT",
            "BITPOS z 2",
            "BITPOS z x",
            "BITPOS z 1 a",
            "BITPOS z 1 0 1 FOO",
            "BITPOS z 1 0 1 BIT x",
            "BITPOS missing 0",
            "BITPOS missing 1",
            "SET f \"\\xff\\xff\"",
            "BITPOS f 0",
            "BITPOS f 0 0",
            "BITPOS f 0 0 -1",
            "BITPOS f 0 2",
            "SET e \"\"",
            "BITPOS e 0",
            "BITPOS e 1",
            "BITOP AND dest s z",
            "GET dest",
            "BITOP OR dest s z missing",
            "GET dest",
            "BITOP XOR dest s z b",
            "GET dest",
            "OBJECT ENCODING dest",
            "BITOP NOT dest s",
            "GET dest",
            "BITOP NOT dest s z",
            "BITOP FOO dest s",
            "BITOP AND dest missing other",
            "EXISTS dest",
            "RPUSH l a",
            "BITOP AND dest s l",
            "SETBIT l 0 1",
            "GETBIT l 0",
            "BITCOUNT l",
            "BITPOS l 0",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn bitfields() {
    both(|d| {
        for line in [
            "BITFIELD b SET u8 0 255 GET u8 0 GET i8 0",
            "BITFIELD b INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1",
            "BITFIELD b INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1",
            "BITFIELD b INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1",
            "BITFIELD b INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1",
            "BITFIELD b OVERFLOW FAIL INCRBY u2 102 1",
            "BITFIELD b OVERFLOW FAIL SET u2 102 9",
            "BITFIELD b OVERFLOW SAT SET i4 #3 100",
            "BITFIELD b OVERFLOW SAT SET i4 #3 -100",
            "BITFIELD b SET i64 64 -9223372036854775808",
            "BITFIELD b OVERFLOW WRAP INCRBY i64 64 -1",
            "BITFIELD b OVERFLOW SAT INCRBY i64 64 1",
            "BITFIELD b OVERFLOW FAIL INCRBY i64 64 1",
            "BITFIELD b SET u63 200 9223372036854775807",
            "BITFIELD b INCRBY u63 200 1",
            "BITFIELD b SET u8 0 -1",
            "BITFIELD b OVERFLOW SAT SET u8 0 -1",
            "BITFIELD b OVERFLOW SAT INCRBY u8 0 -300",
            "BITFIELD b GET u64 0",
            "BITFIELD b GET i65 0",
            "BITFIELD b GET x8 0",
            "BITFIELD b GET u8 -1",
            "BITFIELD b GET u8 #-1",
            "BITFIELD b GET u8 4294967296",
            "BITFIELD b GET u8",
            "BITFIELD b FOO",
            "BITFIELD b OVERFLOW FOO",
            "BITFIELD b SET u8 0 x",
            "BITFIELD b",
            "BITFIELD missing GET u8 0",
            "EXISTS missing",
            "BITFIELD_RO b GET u8 0 GET i5 3",
            "BITFIELD_RO b SET u8 0 1",
            "GET b",
            "RPUSH l a",
            "BITFIELD l GET u8 0",
            "BITFIELD l SET u8 0 1",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn longest_common_subsequences() {
    both(|d| {
        for line in [
            "MSET a ohmytext b mynewtext",
            "LCS a b",
            "LCS a b LEN",
            "LCS a b IDX",
            "LCS a b IDX MINMATCHLEN 4",
            "LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN",
            "LCS a b IDX WITHMATCHLEN",
            "LCS a b IDX LEN",
            "LCS a b MINMATCHLEN x",
            "LCS a b MINMATCHLEN",
            "LCS a b FOO",
            "LCS a missing",
            "LCS missing other IDX",
            "LCS a a IDX",
            "RPUSH l x",
            "LCS a l",
            "SET x aXbXcXd",
            "SET y aYbYcYd",
            "LCS x y",
            "LCS x y IDX WITHMATCHLEN",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn bits_are_bounded_by_the_longest_string() {
    both(|d| {
        d.same("CONFIG SET proto-max-bulk-len 2mb");
        for bit in ["16777215", "16777216", "4294967295", "4294967296", "-1"] {
            d.same(&format!("SETBIT b {bit} 1"));
            d.same(&format!("GETBIT b {bit}"));
            d.same(&format!("BITFIELD b GET u1 {bit} SET u1 #{bit} 1"));
        }
        d.same("STRLEN b");
        d.same("CONFIG SET proto-max-bulk-len 512mb");
    });
}
