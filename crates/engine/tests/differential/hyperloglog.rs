//! HyperLogLogs: counts, and the strings that hold them, byte for byte.

use crate::harness::both;
use crate::wire::words;

#[test]
fn counts_and_bytes_are_those_of_redis() {
    both(|d| {
        d.same("PFADD a");
        d.same("GET a");
        d.same("PFADD a");
        d.same("PFCOUNT a");
        d.same("GET a");
        d.same("PFADD a x y z x");
        d.same("PFADD a x");
        d.same("GET a");
        d.same("PFCOUNT a");
        d.same("PFCOUNT a");
        d.same("GET a");
        d.same("PFCOUNT none");
        d.same("PFCOUNT none a other");
        d.same("PFMERGE m");
        d.same("GET m");
        d.same("PFMERGE m a none");
        d.same("GET m");
        d.same("PFDEBUG DECODE a");
        d.same("PFDEBUG ENCODING a");
        d.same("PFDEBUG TODENSE m");
        d.same("PFDEBUG TODENSE m");
        d.same("PFDEBUG DECODE m");
        d.same("PFDEBUG GETREG a");
        d.same("PFDEBUG NONE a");
        d.same("PFDEBUG ENCODING none");
        d.same("GET m");
        d.same("PFMERGE a m");
        d.same("GET a");
        d.same("TYPE a");
    });
}

#[test]
fn a_sketch_grows_from_runs_to_registers_as_in_redis() {
    both(|d| {
        let mut n = 0u64;
        for batch in 0..60 {
            let mut argv = words("PFADD grows");
            for _ in 0..(1 + batch * batch / 4) {
                n += 1;
                argv.push(format!("element:{}", n * 7919).into_bytes());
            }
            d.same_argv(&argv);
            d.same("GET grows");
            d.same("PFCOUNT grows");
            d.same("PFDEBUG ENCODING grows");
            if batch % 10 == 0 {
                d.same(&format!("COPY grows part{}", batch / 10));
            }
        }
        d.same("PFCOUNT part0 part1 part2 part3 part4 part5");
        d.same("PFMERGE all part0 part1 part2");
        d.same("GET all");
        d.same("PFCOUNT all");
        d.same("CONFIG SET hll-sparse-max-bytes 30");
        d.same("PFADD short a b c d e f g h i j k");
        d.same("GET short");
        d.same("CONFIG SET hll-sparse-max-bytes 3000");
    });
}

#[test]
fn what_is_no_sketch_is_refused() {
    both(|d| {
        d.same("SET s text");
        d.same("SET n 12");
        d.same("RPUSH l x");
        for key in ["s", "n", "l"] {
            d.same(&format!("PFADD {key} x"));
            d.same(&format!("PFCOUNT {key}"));
            d.same(&format!("PFCOUNT none {key}"));
            d.same(&format!("PFMERGE m {key}"));
            d.same(&format!("PFDEBUG ENCODING {key}"));
        }
        d.same("PFADD tail a b c");
        d.same("APPEND tail hello");
        d.same("PFCOUNT tail");
        d.same("PFCOUNT tail tail");
        d.same("PFMERGE m tail");
        d.same("PFADD magic a");
        d.same("SETRANGE magic 0 0123");
        d.same("PFCOUNT magic");
        d.same("PFADD encoding a");
        d.same("SETRANGE encoding 4 x");
        d.same("PFCOUNT encoding");
        d.same("PFADD dense a");
        d.same("PFDEBUG TODENSE dense");
        d.same("APPEND dense x");
        d.same("PFADD dense b");
    });
}
