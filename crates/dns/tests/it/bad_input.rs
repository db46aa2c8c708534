//! What bad input gets, on UDP and TCP, for names that are in memory and names that are not.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use dns::{ListenOptions, Listeners, Resolver, ResolverOptions, UpstreamOptions};
use store::Store;

use crate::support::{ScriptedUpstream, address_reply, packet, packet_with_opt};

struct ResolverFixture {
    resolver: Resolver,
    listeners: Listeners,
    upstream: ScriptedUpstream,
}

impl ResolverFixture {
    async fn start() -> Self {
        let upstream = ScriptedUpstream::start(|query, _| vec![address_reply(query, 300, 1)]).await;
        let options = ResolverOptions {
            upstream: UpstreamOptions {
                servers: vec![upstream.address()],
                ..UpstreamOptions::default()
            },
            ..ResolverOptions::default()
        };
        let store = Store::open("embedded:").await.unwrap();
        let resolver = Resolver::open(store, options).await.unwrap();
        let listen = ListenOptions {
            addresses: vec!["127.0.0.1:0".parse().unwrap()],
            threads: 1,
            ..ListenOptions::default()
        };
        let listeners = Listeners::open(&resolver, listen).await.unwrap();
        Self { resolver, listeners, upstream }
    }

    fn address(&self) -> SocketAddr {
        self.listeners.addresses()[0]
    }

    async fn close(self) {
        self.listeners.close().await;
        self.resolver.close().await;
    }
}

/// Sends a packet and good queries after it. Returns the reply to the packet, which may come after
/// those to the others; none if three good queries in turn are answered and it is not.
fn exchange(
    send: &mut dyn FnMut(&[u8]),
    receive: &mut dyn FnMut() -> Vec<u8>,
    bad: &[u8],
    expects_reply: bool,
) -> Option<Vec<u8>> {
    let mut good = packet("good.test");
    (good[0], good[1]) = (0xaa, 0xbb);
    send(bad);
    if expects_reply {
        return Some(receive());
    }
    for _ in 0..3 {
        send(&good);
        let reply = receive();
        if reply[..2] != [0xaa, 0xbb] {
            return Some(reply);
        }
    }
    None
}

fn over_udp(address: SocketAddr, bad: &[u8], expects_reply: bool) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    exchange(
        &mut |packet| _ = socket.send(packet).unwrap(),
        &mut || {
            let mut reply = vec![0; 4_096];
            let length = socket.recv(&mut reply).unwrap();
            reply.truncate(length);
            reply
        },
        bad,
        expects_reply,
    )
}

fn over_tcp(address: SocketAddr, bad: &[u8], expects_reply: bool) -> Option<Vec<u8>> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (mut writer, mut reader) = (&stream, &stream);
    exchange(
        &mut |packet| {
            let mut framed = u16::try_from(packet.len()).unwrap().to_be_bytes().to_vec();
            framed.extend_from_slice(packet);
            writer.write_all(&framed).unwrap();
        },
        &mut || {
            let mut length = [0; 2];
            reader.read_exact(&mut length).unwrap();
            let mut reply = vec![0; u16::from_be_bytes(length).into()];
            reader.read_exact(&mut reply).unwrap();
            reply
        },
        bad,
        expects_reply,
    )
}

fn changed(mut packet: Vec<u8>, change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    change(&mut packet);
    packet
}

const FORMERR: Option<u16> = Some(1);
const NOTIMP: Option<u16> = Some(4);
const REFUSED: Option<u16> = Some(5);
const BADVERS: Option<u16> = Some(16);

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_what_the_table_says() {
    let served = ResolverFixture::start().await;
    let address = served.address();
    // `good.test` is in memory after this, `missed.test` is not.
    over_udp(address, b"", false);
    for name in ["good.test", "missed.test"] {
        let query = || packet(name);
        let edns = || packet_with_opt(name, 1_232, false);
        let opt = packet_with_opt("x", 1_232, false)[packet("x").len()..].to_vec();
        let rows: Vec<(&str, Vec<u8>, Option<u16>)> = vec![
            ("11 bytes", query()[..11].to_vec(), None),
            ("a response", changed(query(), |p| p[2] |= 0x80), None),
            ("no question", changed(query(), |p| p[5] = 0), FORMERR),
            ("two questions", changed(query(), |p| p[5] = 2), FORMERR),
            ("a question that ends early", query()[..query().len() - 3].to_vec(), FORMERR),
            (
                "two OPT",
                changed(edns(), |p| {
                    p[11] = 2;
                    p.extend_from_slice(&opt);
                }),
                FORMERR,
            ),
            ("label type 01", changed(query(), |p| p[12] = 0x44), FORMERR),
            ("label type 10", changed(query(), |p| p[12] = 0x84), FORMERR),
            (
                "a pointer in the question",
                changed(query(), |p| (p[12], p[13]) = (0xc0, 12)),
                FORMERR,
            ),
            (
                "a name over 255 bytes",
                {
                    let label = "a".repeat(60);
                    packet(&format!("{label}.{label}.{label}.{label}.{label}"))
                },
                FORMERR,
            ),
            (
                "EDNS version 1",
                changed(edns(), |p| {
                    let at = p.len() - 5;
                    p[at] = 1;
                }),
                BADVERS,
            ),
            ("a status query", changed(query(), |p| p[2] |= 0x10), NOTIMP),
            ("an update", changed(query(), |p| p[2] |= 0x28), NOTIMP),
            (
                "class CHAOS",
                changed(query(), |p| {
                    let at = p.len() - 1;
                    p[at] = 3;
                }),
                REFUSED,
            ),
            (
                "AXFR",
                changed(query(), |p| {
                    let at = p.len() - 3;
                    p[at] = 252;
                }),
                REFUSED,
            ),
            (
                "IXFR",
                changed(query(), |p| {
                    let at = p.len() - 3;
                    p[at] = 251;
                }),
                REFUSED,
            ),
            ("RD=0", changed(query(), |p| p[2] = 0), REFUSED),
            (
                "a cookie of 5 bytes",
                changed(edns(), |p| {
                    let at = p.len() - 1;
                    p[at] = 9;
                    p.extend_from_slice(&[0, 10, 0, 5, 1, 2, 3, 4, 5]);
                }),
                FORMERR,
            ),
        ];
        for (what, bad, expected) in rows {
            for (protocol, reply) in [
                ("UDP", over_udp(address, &bad, expected.is_some())),
                ("TCP", over_tcp(address, &bad, expected.is_some())),
            ] {
                let code = reply.as_ref().map(|reply| {
                    let extended = match reply[11] {
                        0 => 0,
                        _ => u16::from(reply[reply.len() - 6]),
                    };
                    extended << 4 | u16::from(reply[3] & 0xf)
                });
                assert_eq!(code, expected, "{what} over {protocol} for {name}: {reply:?}");
                if let Some(reply) = reply {
                    assert!(reply.len() <= bad.len() + 11, "{what}: no amplification");
                    assert_eq!(reply[2] & 0x80, 0x80);
                }
            }
        }
    }
    let asked: Vec<_> = served.upstream.seen();
    assert_eq!(asked.len(), 1, "nothing bad was forwarded: {asked:?}");
    served.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_packet_is_answered_or_dropped() {
    let served = ResolverFixture::start().await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let client = dns::QueryClient::local(dns::QueryProtocol::Udp);
    let mut front = dns::FrontTable::new(64);
    let mut out = [0; 1_232];
    let now = served.resolver.now();
    for round in 0..100_000_u32 {
        let mut bytes = match random.u8(..4) {
            0 => (0..random.usize(..80)).map(|_| random.u8(..)).collect(),
            1 => packet_with_opt("a.b.example.test", random.u16(..), random.bool()),
            _ => packet("www.example.test"),
        };
        for _ in 0..random.usize(..4) {
            if !bytes.is_empty() {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
        }
        let hit = served.resolver.answer_hit(&mut front, &bytes, client, now, &mut out);
        if let dns::HitResult::Reply(length) = hit {
            assert!(length <= 1_232 && out[2] & 0x80 != 0);
        }
        if round % 1_000 == 0 {
            served.resolver.hand_over(&mut front);
        }
    }
    served.close().await;
}
