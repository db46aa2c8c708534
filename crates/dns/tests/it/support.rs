//! What the tests of the resolver share: messages, and a look at the store past the cache.

use std::sync::Arc;

use dns::{
    Question, StoredAnswer,
    wire::{AnswerKind, CachedAnswer, TtlBounds},
};
use domain::{
    base::{
        MessageBuilder, Name, Rtype, Ttl,
        iana::{Class, Rcode},
    },
    rdata::A,
};
use store::{
    Layout, Millis, Store,
    redis::{self, FromRedisValue},
};

pub(crate) fn question(name: &str) -> Question {
    Question { name: name.parse().unwrap(), qtype: 1, qclass: 1 }
}

/// An upstream's answer with one address, as a server without compression and with EDNS writes it.
pub(crate) fn address_message(question: &Question, ttl: u32, last: u8) -> Vec<u8> {
    let mut builder = MessageBuilder::from_target(Vec::new()).unwrap();
    builder.header_mut().set_qr(true);
    builder.header_mut().set_rd(true);
    builder.header_mut().set_rcode(Rcode::NOERROR);
    let name = Name::from_octets(question.name.as_wire().to_vec()).unwrap();
    let mut builder = builder.question();
    builder.push((&name, Rtype::from_int(question.qtype), Class::IN)).unwrap();
    let mut builder = builder.answer();
    builder.push((&name, Ttl::from_secs(ttl), A::from_octets(192, 0, 2, last))).unwrap();
    let mut builder = builder.additional();
    builder
        .opt(|opt| {
            opt.set_udp_payload_size(1_232);
            Ok(())
        })
        .unwrap();
    builder.finish()
}

pub(crate) fn stored(question: &Question, ttl: u32, last: u8, now: Millis) -> StoredAnswer {
    let message = address_message(question, ttl, last);
    let bounds = TtlBounds::default();
    let answer = CachedAnswer::normalise(&message, question, AnswerKind::Plain, bounds).unwrap();
    StoredAnswer::new(Arc::new(answer), now)
}

/// The prefix of metadata keys.
pub(crate) fn metadata(store: &Store, rest: &str) -> String {
    match store.layout() {
        Layout::Standalone => format!("dnsmeta:{rest}"),
        Layout::Cluster => format!("{{dnsmeta}}:{rest}"),
    }
}

/// Runs one command past the cache.
pub(crate) async fn run<T: FromRedisValue>(store: &Store, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(*word));
    command.query_async(&mut store.clone()).await.unwrap()
}

/// Writes a field or a value that is not text.
pub(crate) async fn write_bytes(store: &Store, words: &[&str], bytes: &[u8]) {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(*word));
    command.arg(bytes).query_async::<()>(&mut store.clone()).await.unwrap();
}
