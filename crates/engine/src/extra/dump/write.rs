//! Values in Redis's format.
//!
//! All but streams are written element by element, in the forms that every version reads (but
//! deadlines of fields, which Redis knows since 7.4); the reader packs them by its own
//! limits.

use std::ops::ControlFlow;

use super::format::{push_len, push_string};
use crate::db::NEVER;
use crate::pack::Scratch;
use crate::t_list::ListEnd;
use crate::value::Value;

/// The payload of a value, without version and checksum.
pub(super) fn value(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let mut scratch: Scratch = [0; 36];
    match value {
        Value::Str(string) => {
            out.push(super::STRING);
            string.with_bytes(|bytes| push_string(&mut out, bytes));
        }
        Value::List(list) => {
            out.push(super::LIST);
            push_len(&mut out, list.len() as u64);
            list.walk(0, ListEnd::Right, |element, _| {
                push_string(&mut out, element.bytes(&mut scratch));
                ControlFlow::Continue(())
            });
        }
        Value::Set(set) => {
            out.push(super::SET);
            push_len(&mut out, set.len() as u64);
            for member in set.iter() {
                push_string(&mut out, member.bytes(&mut scratch));
            }
        }
        Value::Zset(zset) => {
            out.push(super::ZSET_2);
            push_len(&mut out, zset.len() as u64);
            for (member, score) in zset.iter() {
                push_string(&mut out, member.bytes(&mut scratch));
                out.extend(score.to_le_bytes());
            }
        }
        Value::Hash(hash) if hash.next_deadline() != NEVER => {
            let first = hash.next_deadline();
            out.push(super::HASH_WITH_DEADLINES);
            out.extend(first.to_le_bytes());
            push_len(&mut out, hash.len() as u64);
            for (name, value) in hash.iter() {
                let name = name.bytes(&mut scratch);
                // 0 is for none, so the others count from 1.
                let after = hash.deadline(name).map_or(0, |at_ms| at_ms.abs_diff(first) + 1);
                push_len(&mut out, after);
                push_string(&mut out, name);
                push_string(&mut out, value.bytes(&mut scratch));
            }
        }
        Value::Hash(hash) => {
            out.push(super::HASH);
            push_len(&mut out, hash.len() as u64);
            for (name, value) in hash.iter() {
                push_string(&mut out, name.bytes(&mut scratch));
                push_string(&mut out, value.bytes(&mut scratch));
            }
        }
        Value::Stream(stream) => {
            out.push(super::STREAM_2);
            super::stream::write(stream, &mut out);
        }
    }
    out
}
