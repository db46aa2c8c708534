use domain::{
    base::{
        Message, Rtype, Ttl, iana::Rcode, message_builder::HashCompressor, rdata::UnknownRecordData,
    },
    rdata::{A, Mx, Srv, Txt},
};
use proptest::prelude::*;

use super::{testing::*, *};
use crate::{DomainName, Question};

const FRESH: ReplayTtl = ReplayTtl::Fresh { age_seconds: 0, cap_seconds: u32::MAX };

fn normalise(message: &[u8], question: &Question, kind: AnswerKind) -> CachedAnswer {
    CachedAnswer::normalise(message, question, kind, TtlBounds::default()).unwrap()
}

fn replay(cached: &CachedAnswer, packet: &[u8], ttl: ReplayTtl, limit: usize) -> Vec<u8> {
    let query = WireQuery::parse(packet).unwrap();
    let mut out = vec![0xee; limit];
    let length = cached.replay(&query, ttl, ReplyOptions::default(), limit, &mut out).unwrap();
    out.truncate(length);
    out
}

fn refused(packet: &[u8]) -> Option<u16> {
    match WireQuery::parse(packet) {
        Ok(_) => Some(0),
        Err(Rejection::Drop) => None,
        Err(rejection @ Rejection::Reply { rcode, .. }) => {
            let mut out = [0; 1_232];
            let length = write_error(packet, rejection, &mut out).unwrap();
            let reply = Message::from_octets(&out[..length]).unwrap();
            assert!(reply.header().qr() && reply.header().ra() && !reply.header().aa());
            assert_eq!(reply.header().id().to_be_bytes(), packet[..2]);
            assert_eq!(reply.opt_rcode().to_int(), rcode);
            assert!(length <= packet.len(), "an error must not amplify");
            Some(rcode)
        }
    }
}

#[test]
fn bad_input_gets_the_documented_reply() {
    let good = query("a.test", 1);
    let edited = |edits: &[(usize, u8)]| {
        let mut packet = good.clone();
        edits.iter().for_each(|(at, byte)| packet[*at] = *byte);
        packet
    };
    assert_eq!(refused(&good), Some(0));
    assert_eq!(refused(&good[..11]), None, "shorter than a header");
    assert_eq!(refused(&edited(&[(2, 0x81)])), None, "a response");
    assert_eq!(refused(&edited(&[(2, 0x29)])), Some(rcode::NOTIMP), "UPDATE");
    assert_eq!(refused(&edited(&[(5, 0)])), Some(rcode::FORMERR), "no question");
    assert_eq!(refused(&edited(&[(5, 2)])), Some(rcode::FORMERR), "two questions");
    assert_eq!(refused(&edited(&[(4, 0xff)])), Some(rcode::FORMERR), "65,281 questions");
    assert_eq!(refused(&edited(&[(12, 0x41)])), Some(rcode::FORMERR), "label type 01");
    assert_eq!(refused(&edited(&[(12, 0x81)])), Some(rcode::FORMERR), "label type 10");
    assert_eq!(
        refused(&edited(&[(12, 0xc0), (13, 12)])),
        Some(rcode::FORMERR),
        "pointer to itself"
    );
    assert_eq!(
        refused(&edited(&[(12, 0xc0), (13, 0)])),
        Some(rcode::FORMERR),
        "pointer to the header"
    );
    assert_eq!(refused(&good[..12]), Some(rcode::FORMERR), "a question that is not there");
    assert_eq!(refused(&good[..good.len() - 1]), Some(rcode::FORMERR), "half a class");
    assert_eq!(refused(&edited(&[(good.len() - 1, 3)])), Some(rcode::REFUSED), "CHAOS");
    assert_eq!(refused(&query("a.test", 252)), Some(rcode::REFUSED), "AXFR");
    assert_eq!(refused(&query("a.test", 41)), Some(rcode::FORMERR), "a question for OPT");
    assert_eq!(refused(&edited(&[(7, 1)])), Some(rcode::FORMERR), "an answer that is not there");

    let label = "a".repeat(63);
    let long = [&*label, &*label, &*label, &label[..61]].join(".");
    assert_eq!(refused(&query(&long, 1)), Some(0), "255 bytes");
    let long = [&*label, &*label, &*label, &label[..62]].join(".");
    assert_eq!(refused(&query(&long, 1)), Some(rcode::FORMERR), "256 bytes");

    let with_opt = query_with_opt("a.test", 1, 1_232, true);
    assert_eq!(refused(&with_opt), Some(0));
    let opt = with_opt.len() - 11;
    let mut version = with_opt.clone();
    version[opt + 6] = 1;
    assert_eq!(refused(&version), Some(rcode::BADVERS));
    let mut two = with_opt.clone();
    two.extend_from_slice(&with_opt[opt..]);
    two[11] = 2;
    assert_eq!(refused(&two), Some(rcode::FORMERR), "two OPT records");
    let mut owned = with_opt.clone();
    owned.splice(opt..=opt, [1, b'a', 0]);
    assert_eq!(refused(&owned), Some(rcode::FORMERR), "an OPT record with a name");
    let mut option = with_opt.clone();
    option[opt + 10] = 5;
    option.extend_from_slice(&[0, 10, 0, 2, 0]);
    assert_eq!(refused(&option), Some(rcode::FORMERR), "an option longer than the record");
    let mut misplaced = with_opt.clone();
    (misplaced[9], misplaced[11]) = (1, 0);
    assert_eq!(refused(&misplaced), Some(rcode::FORMERR), "OPT in the authority section");
}

#[test]
fn a_query_says_what_it_asks_for() {
    let packet = query_with_opt("WwW.Example.test", 28, 4_096, true);
    let query = WireQuery::parse(&packet).unwrap();
    assert_eq!(query.question(), question("www.example.test", 28));
    assert_eq!(query.name(), b"\x03WwW\x07Example\x04test\x00");
    assert_eq!((query.id(), query.kind()), (0xabcd, AnswerKind::Signed));
    assert_eq!(query.udp_limit(), UDP_MAX_BYTES);
    for (size, limit) in [(0, 512), (511, 512), (600, 600), (1_232, 1_232), (65_535, 1_232)] {
        let packet = query_with_opt("a.test", 1, size, false);
        assert_eq!(WireQuery::parse(&packet).unwrap().udp_limit(), limit);
    }
    assert_eq!(WireQuery::parse(&super::testing::query("a.test", 1)).unwrap().udp_limit(), 512);
}

#[test]
fn a_replay_has_the_clients_id_question_and_flags() {
    let asked = question("www.example.test", 1);
    let cached = normalise(&addresses(&asked, 300, 2), &asked, AnswerKind::Plain);
    let mut packet = query("wWw.eXample.TEST", 1);
    packet[3] = 0x30; // AD and CD
    let reply = replay(&cached, &packet, FRESH, 512);
    assert_eq!(reply[..2], packet[..2]);
    assert_eq!(reply[12..packet.len()], packet[12..], "spelled as asked");
    assert_eq!(reply[2..4], [0x81, 0x90], "QR RD RA CD, AD only if the upstream said so");
    assert_eq!(records(&reply), records(&addresses(&asked, 300, 2)));
    assert_eq!(opt(&reply), None);
}

#[test]
fn authenticated_data_is_told_only_to_those_who_ask() {
    let asked = question("a.test", 1);
    let mut upstream = addresses(&asked, 300, 1);
    upstream[3] |= 0x20;
    let cached = normalise(&upstream, &asked, AnswerKind::Plain);
    let plain = query("a.test", 1);
    assert_eq!(replay(&cached, &plain, FRESH, 512)[3] & 0x20, 0);
    let mut asks = plain.clone();
    asks[3] |= 0x20;
    assert_eq!(replay(&cached, &asks, FRESH, 512)[3] & 0x20, 0x20);
    let dnssec_ok = query_with_opt("a.test", 1, 1_232, true);
    assert_eq!(replay(&cached, &dnssec_ok, FRESH, 512)[3] & 0x20, 0x20);
}

#[test]
fn the_opt_record_is_ours_and_only_for_those_who_sent_one() {
    let asked = question("a.test", 1);
    let mut upstream = answer(&asked, Rcode::NOERROR);
    upstream.push((name("a.test"), Ttl::from_secs(60), A::from_octets(1, 2, 3, 4))).unwrap();
    let mut upstream = upstream.additional();
    upstream
        .opt(|opt| {
            opt.set_udp_payload_size(4_000);
            opt.set_dnssec_ok(true);
            opt.push_raw_option(10.into(), 8, |target| {
                domain::base::wire::Compose::compose(&7_u64, target)
            })
        })
        .unwrap();
    let cached = normalise(&upstream.finish().into_target(), &asked, AnswerKind::Plain);
    assert_eq!(opt(&replay(&cached, &query("a.test", 1), FRESH, 512)), None);
    let packet = query_with_opt("a.test", 1, 4_096, false);
    assert_eq!(opt(&replay(&cached, &packet, FRESH, 512)), Some((1_232, false, vec![])));
    let packet = query_with_opt("a.test", 1, 4_096, true);
    let query = WireQuery::parse(&packet).unwrap();
    let mut out = [0; 512];
    let stale = ReplayTtl::Stale { ttl_seconds: 30 };
    let options = ReplyOptions::with_error(ExtendedError::STALE);
    let length = cached.replay(&query, stale, options, 512, &mut out).unwrap();
    assert_eq!(opt(&out[..length]), Some((1_232, true, vec![3])));
    assert_eq!(records(&out[..length])[0].3, 30);
}

#[test]
fn an_answer_to_something_else_is_refused() {
    let asked = question("a.test", 1);
    let check = |message: &[u8]| {
        CachedAnswer::normalise(message, &asked, AnswerKind::Plain, TtlBounds::default())
    };
    assert_eq!(check(&addresses(&question("b.test", 1), 60, 1)), Err(AnswerError::OtherQuestion));
    assert_eq!(check(&addresses(&question("a.test", 28), 60, 1)), Err(AnswerError::OtherQuestion));
    assert_eq!(check(&query("a.test", 1)), Err(AnswerError::OtherQuestion));
    let good = addresses(&asked, 60, 1);
    let mut truncated = good.clone();
    truncated[2] |= 2;
    assert_eq!(check(&truncated), Err(AnswerError::Truncated));
    let mut failed = good.clone();
    failed[3] |= 2;
    assert_eq!(check(&failed), Err(AnswerError::Rcode(rcode::SERVFAIL)));
    for length in 0..good.len() {
        assert!(check(&good[..length]).is_err(), "{length} bytes of {}", good.len());
    }
}

#[test]
fn signatures_are_left_out_of_plain_answers() {
    let asked = question("a.test", 1);
    let mut upstream = answer(&asked, Rcode::NOERROR);
    upstream.push((name("a.test"), Ttl::from_secs(60), A::from_octets(1, 2, 3, 4))).unwrap();
    let signature = UnknownRecordData::from_octets(Rtype::RRSIG, vec![0; 30]).unwrap();
    upstream.push((name("a.test"), Ttl::from_secs(60), signature)).unwrap();
    let upstream = upstream.finish().into_target();
    let count = |kind| read_u16(normalise(&upstream, &asked, kind).as_wire(), 6).unwrap();
    assert_eq!(count(AnswerKind::Plain), 1);
    assert_eq!(count(AnswerKind::Unchecked), 1);
    assert_eq!(count(AnswerKind::Signed), 2);
}

#[test]
fn lifetimes_follow_the_rfcs() {
    let asked = question("a.test", 1);
    let ttls = |message: &[u8], bounds| {
        let cached = CachedAnswer::normalise(message, &asked, AnswerKind::Plain, bounds).unwrap();
        (cached.auth_ttl(), cached.stored_ttl())
    };
    let default = TtlBounds::default();
    let floor = TtlBounds { min_seconds: 300, ..default };
    assert_eq!(ttls(&addresses(&asked, 60, 2), default), (60, 60));
    assert_eq!(ttls(&addresses(&asked, 60, 2), floor), (60, 300));
    assert_eq!(ttls(&addresses(&asked, 900_000, 2), default), (900_000, 86_400));
    assert_eq!(ttls(&addresses(&asked, 0, 2), floor), (0, 0), "TTL 0 is never stored");
    assert_eq!(ttls(&addresses(&asked, 0x8000_0001, 2), default), (0, 0), "RFC 2181 §8");

    // RFC 2308 §5: the lesser of the SOA's TTL and MINIMUM.
    for rcode in [Rcode::NXDOMAIN, Rcode::NOERROR] {
        assert_eq!(ttls(&negative(&asked, rcode, 900, 60), default), (60, 60));
        assert_eq!(ttls(&negative(&asked, rcode, 30, 600), default), (30, 30));
        assert_eq!(ttls(&negative(&asked, rcode, 86_400, 86_400), default), (86_400, 10_800));
        let bare = answer(&asked, rcode).finish().into_target();
        assert_eq!(ttls(&bare, default), (0, 0), "without an SOA it is not stored");
    }
    let cached = normalise(&negative(&asked, Rcode::NXDOMAIN, 900, 60), &asked, AnswerKind::Plain);
    let reply = replay(
        &cached,
        &query("a.test", 1),
        ReplayTtl::Fresh { age_seconds: 20, cap_seconds: u32::MAX },
        512,
    );
    assert_eq!(records(&reply)[0].3, 40, "the SOA's TTL counts down from MINIMUM");

    // An alias whose target does not exist lives as long as the shorter of both.
    let mut upstream = answer(&asked, Rcode::NXDOMAIN);
    upstream.push((name("a.test"), Ttl::from_secs(20), alias("b.test"))).unwrap();
    let mut upstream = upstream.authority();
    upstream.push((name("test"), Ttl::from_secs(100), soa(50))).unwrap();
    assert_eq!(ttls(&upstream.finish().into_target(), default), (20, 20));
}

#[test]
fn long_answers_are_cut_between_rrsets() {
    let asked = question("a.test", 1);
    let mut upstream = answer(&asked, Rcode::NOERROR);
    upstream.push((name("a.test"), Ttl::from_secs(60), alias("b.test"))).unwrap();
    for last in 0..40 {
        let address = A::from_octets(10, 0, 0, last);
        upstream.push((name("b.test"), Ttl::from_secs(60), address)).unwrap();
    }
    let mut upstream = upstream.additional();
    for last in 0..20 {
        let address = A::from_octets(10, 0, 1, last);
        upstream.push((name("ns.test"), Ttl::from_secs(60), address)).unwrap();
    }
    let upstream = upstream.finish().into_target();
    let cached = normalise(&upstream, &asked, AnswerKind::Plain);
    let whole = records(&upstream);
    let packet = query_with_opt("a.test", 1, 4_096, false);
    for limit in 100..=1_232 {
        let reply = replay(&cached, &packet, FRESH, limit);
        assert!(reply.len() <= limit);
        let left = records(&reply);
        assert!(matches!(left.len(), 0 | 1 | 41 | 61), "{} records at {limit}", left.len());
        assert_eq!(left[..], whole[..left.len()]);
        assert_eq!(reply[2] & 2 != 0, left.len() < 41, "TC at {limit}, {} records", left.len());
        assert!(opt(&reply).is_some(), "OPT is kept");
    }
    // 12 + 12 + 1 * … : the whole fits into a message over TCP.
    assert_eq!(records(&replay(&cached, &packet, FRESH, 65_535)), whole);
}

/// A record of some type, by numbers.
fn push_some(
    builder: &mut impl domain::base::message_builder::RecordSectionBuilder<HashCompressor<Vec<u8>>>,
    (kind, owner, ttl, number): (u8, u8, u32, u16),
) {
    let names = ["www.Example.test", "Example.test", "mail.example.test", "x.other", "test"];
    let pick = |index: usize| name(names[index % names.len()]);
    let (owner, other) = (pick(owner.into()), pick(number.into()));
    let ttl = Ttl::from_secs(ttl);
    let [high, low] = number.to_be_bytes();
    match kind % 6 {
        0 => builder.push((owner, ttl, A::from_octets(10, 0, high, low))),
        1 => builder.push((owner, ttl, domain::rdata::Cname::new(other))),
        2 => builder.push((owner, ttl, Mx::new(number, other))),
        3 => builder.push((owner, ttl, Txt::<Vec<u8>>::build_from_slice(&[low; 300]).unwrap())),
        4 => builder.push((owner, ttl, Srv::new(1, 2, number, other))),
        _ => {
            let data = UnknownRecordData::from_octets(Rtype::from_int(65_280), vec![low; 9]);
            builder.push((owner, ttl, data.unwrap()))
        }
    }
    .unwrap();
}

proptest! {
    /// What comes in from an upstream goes out to the client but for id, case, TTL and OPT.
    #[test]
    fn wire_in_equals_wire_out(
        sections in prop::collection::vec(
            prop::collection::vec((any::<u8>(), any::<u8>(), 1..100_000_u32, any::<u16>()), 0..8),
            3,
        ),
        age in 0..200_000_u32,
        later in 0..1_000_u32,
        limit in 512..1_300_usize,
        upper in any::<u16>(),
    ) {
        let asked = question("www.example.test", 1);
        let mut upstream = answer(&asked, Rcode::NOERROR);
        sections[0].iter().for_each(|record| push_some(&mut upstream, *record));
        let mut upstream = upstream.authority();
        sections[1].iter().for_each(|record| push_some(&mut upstream, *record));
        let mut upstream = upstream.additional();
        sections[2].iter().for_each(|record| push_some(&mut upstream, *record));
        upstream.opt(|opt| { opt.set_udp_payload_size(1_400); Ok(()) }).unwrap();
        let upstream = upstream.finish().into_target();

        let unbounded = TtlBounds { min_seconds: 0, max_seconds: u32::MAX, max_negative_seconds: u32::MAX };
        let cached = CachedAnswer::normalise(&upstream, &asked, AnswerKind::Plain, unbounded).unwrap();
        let spelled: String = "www.example.test".chars().enumerate().map(|(at, letter)| {
            if upper >> (at % 16) & 1 == 1 { letter.to_ascii_uppercase() } else { letter }
        }).collect();
        let packet = query(&spelled, 1);
        let expected = records(&upstream);
        prop_assert_eq!(&records(&replay(&cached, &packet, FRESH, 65_535)), &expected);

        // TTLs count down and never grow.
        let at = |age_seconds| {
            records(&replay(&cached, &packet, ReplayTtl::Fresh { age_seconds, cap_seconds: u32::MAX }, 65_535))
        };
        let (now, then) = (at(age), at(age + later));
        for ((source, now), then) in expected.iter().zip(&now).zip(&then) {
            prop_assert_eq!(now.3, source.3.saturating_sub(age).max(1));
            prop_assert!(then.3 <= now.3 && now.3 <= source.3);
        }

        // However small the client's buffer, a prefix of the records goes out.
        let cut = replay(&cached, &packet, FRESH, limit);
        prop_assert!(cut.len() <= limit);
        let left = records(&cut);
        prop_assert_eq!(&left[..], &expected[..left.len()]);

        // The cached form is a fixed point, as it is when it comes back from the store.
        let again = CachedAnswer::normalise(cached.as_wire(), &asked, AnswerKind::Plain, unbounded).unwrap();
        prop_assert_eq!(again.as_wire(), cached.as_wire());
    }
}

/// Number of cases of a fuzz loop; `DNS_FUZZ_CASES` sets another.
fn fuzz_cases() -> u32 {
    std::env::var("DNS_FUZZ_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000)
}

/// Changes some bytes, cuts or doubles a part.
fn mutate(random: &mut fastrand::Rng, packet: &mut Vec<u8>) {
    for _ in 0..random.u8(1..6) {
        if packet.is_empty() {
            return;
        }
        let at = random.usize(..packet.len());
        match random.u8(..8) {
            0 => packet.truncate(at),
            1 => {
                let part = packet[at..].to_vec();
                packet.extend_from_slice(&part);
            }
            2 => packet[at] = 0xc0,
            3 => packet[at] = 0xff,
            4 => packet.insert(at, random.u8(..)),
            _ => packet[at] = random.u8(..),
        }
    }
    packet.truncate(2_000);
}

#[test]
fn mutated_packets_are_answered_or_dropped() {
    let seed = 0x7053;
    let mut random = fastrand::Rng::with_seed(seed);
    let queries = [query("www.example.test", 1), query_with_opt("a.b.c.test", 28, 1_400, true)];
    let asked = question("www.example.test", 1);
    let cached = normalise(&addresses(&asked, 60, 60), &asked, AnswerKind::Plain);
    let mut out = [0; UDP_MAX_BYTES];
    for case in 0..fuzz_cases() {
        let mut packet = random.choice(&queries).unwrap().clone();
        mutate(&mut random, &mut packet);
        let length = match WireQuery::parse(&packet) {
            Ok(query) => {
                assert!(DomainName::from_wire(query.name()).is_ok(), "seed {seed}, case {case}");
                query.options().for_each(drop);
                write_reply(&query, rcode::SERVFAIL, ReplyOptions::default(), &mut out).unwrap();
                cached.replay(&query, FRESH, ReplyOptions::default(), query.udp_limit(), &mut out)
            }
            Err(rejection) => write_error(&packet, rejection, &mut out),
        };
        if let Some(length) = length {
            assert!(Message::from_octets(&out[..length]).is_ok(), "seed {seed}, case {case}");
        }
    }
}

#[test]
fn mutated_answers_are_normalised_or_refused() {
    let seed = 0x1035;
    let mut random = fastrand::Rng::with_seed(seed);
    let asked = question("www.example.test", 1);
    let mut long = answer(&asked, Rcode::NOERROR);
    for number in 0..12 {
        push_some(&mut long, (number, number, 60, u16::from(number) * 77));
    }
    let mut long = long.authority();
    long.push((name("test"), Ttl::from_secs(60), soa(60))).unwrap();
    let long = long.finish().into_target();
    let answers = [addresses(&asked, 60, 3), negative(&asked, Rcode::NXDOMAIN, 60, 30), long];
    let packet = query_with_opt("www.example.test", 1, 600, false);
    let query = WireQuery::parse(&packet).unwrap();
    let mut out = [0; UDP_MAX_BYTES];
    let mut normalised = 0;
    for case in 0..fuzz_cases() {
        let mut message = random.choice(&answers).unwrap().clone();
        mutate(&mut random, &mut message);
        let kind = if random.bool() { AnswerKind::Plain } else { AnswerKind::Signed };
        let Ok(cached) = CachedAnswer::normalise(&message, &asked, kind, TtlBounds::default())
        else {
            continue;
        };
        normalised += 1;
        let length = cached.replay(&query, FRESH, ReplyOptions::default(), 600, &mut out).unwrap();
        assert!(length <= 600, "seed {seed}, case {case}");
        // Whatever was let in is whole: it can be read again, and so can what is sent.
        let again = CachedAnswer::normalise(cached.as_wire(), &asked, kind, TtlBounds::default());
        assert!(again.is_ok(), "seed {seed}, case {case}");
        let sent = Message::from_octets(&out[..length]).unwrap();
        assert!(sent.sections().is_ok(), "seed {seed}, case {case}");
    }
    assert!(normalised > 100, "only {normalised} got through: the loop tests nothing");
}
