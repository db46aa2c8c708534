//! A hit allocates nothing, with policy, a list, rate limit and records on; a query that waits takes little
//! memory. A program of its own, because it counts allocations.
#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_dns as dns;

use std::net::{Ipv4Addr, SocketAddr};

use allocation_counter::measure;
use dns::{
    FrontTable, HitResult, Policy, QueryClient, QueryProtocol, Resolver, ResolverOptions,
    UpstreamOptions,
};
use store::Store;
use tokio::net::UdpSocket;

fn packet(name: &str, cookie: bool) -> Vec<u8> {
    let mut packet = vec![0x70, 0x53, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(cookie)];
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).unwrap());
        packet.extend_from_slice(label.as_bytes());
    }
    packet.extend_from_slice(&[0, 0, 1, 0, 1]);
    if cookie {
        packet.extend_from_slice(&[
            0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 12, 0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8,
        ]);
    }
    packet
}

/// An upstream that answers every query with one address.
async fn upstream() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 1_232];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let mut end = 12;
            while buffer[end] != 0 {
                end += 1 + usize::from(buffer[end]);
            }
            end += 5;
            let mut reply = buffer[..end.min(length)].to_vec();
            (reply[2], reply[3]) = (0x81, 0x80);
            reply[4..12].copy_from_slice(&[0, 1, 0, 1, 0, 0, 0, 0]);
            reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1]);
            socket.send_to(&reply, from).await.unwrap();
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hit_allocates_nothing() {
    let upstream = upstream().await;
    let mut policy = Policy::starting();
    policy.rules = vec!["||blocked.test^".to_owned(), "/^ad[0-9]+\\./".to_owned()];
    let options = ResolverOptions {
        upstream: UpstreamOptions {
            servers: vec![upstream.to_string().parse().unwrap()],
            ..UpstreamOptions::default()
        },
        default_policy: policy,
        ..ResolverOptions::default()
    };
    let resolver = Resolver::open(Store::open("embedded:").await.unwrap(), options).await.unwrap();
    // Not loopback, so that the rate limit counts; of a group with the default list and rules.
    let client = QueryClient {
        address: Ipv4Addr::new(192, 168, 1, 10).into(),
        id: None,
        protocol: QueryProtocol::Udp,
    };
    let packets = [
        packet("www.passes.test", false),
        packet("x.blocked.test", false),
        packet("www.passes.test", true),
    ];
    for packet in &packets {
        resolver.answer(packet, client).await.unwrap();
    }
    let mut front = FrontTable::new(64);
    let mut out = [0; 1_232];
    let now = resolver.now();
    let mut round = |count: usize| {
        for _ in 0..count {
            for packet in &packets {
                let hit = resolver.answer_hit(&mut front, packet, client, now, &mut out);
                assert!(matches!(hit, HitResult::Reply(_)), "{hit:?}");
            }
        }
        resolver.hand_over(&mut front);
    };
    // The first rounds make the room that is used from then on.
    let mut drained = dns::QueryBatch::default();
    for _ in 0..3 {
        (0..8).for_each(|_| round(10));
        resolver.queries().drain(&mut drained);
    }
    let counted = measure(|| round(10));
    assert_eq!(counted.count_total, 0, "{counted:?}");
    resolver.close().await;
}

/// Queries that may wait at the same time, and the memory that all of them may take.
const WAITING: usize = 10_000;
const WAITING_MAX_BYTES: u64 = 64 << 20;

#[test]
fn ten_thousand_queries_that_wait_take_little_memory() {
    // In virtual time: nobody has waited long enough, however slow the machine is.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    // One that never answers.
    let silent = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = silent.local_addr().unwrap();
    let resolver = runtime.block_on(async {
        let options = ResolverOptions {
            upstream: UpstreamOptions {
                servers: vec![address.to_string().parse().unwrap()],
                ..UpstreamOptions::default()
            },
            ..ResolverOptions::default()
        };
        Resolver::open(Store::open("embedded:").await.unwrap(), options).await.unwrap()
    });
    let client = QueryClient::local(QueryProtocol::Udp);
    let packets: Vec<_> = (0..WAITING).map(|n| packet(&format!("n{n}.test"), false)).collect();
    let mut waiting = Vec::with_capacity(WAITING);
    // One thread, so all that is allocated meanwhile is counted.
    let counted = measure(|| {
        runtime.block_on(async {
            for packet in &packets {
                let mut query = Box::pin(resolver.answer(packet, client));
                assert!(futures_util::poll!(query.as_mut()).is_pending());
                waiting.push(query);
            }
            // Its flight asks the store first, and then the upstream.
            while resolver.upstreams().stats()[0].queries < WAITING as u64 {
                for query in &mut waiting {
                    assert!(futures_util::poll!(query.as_mut()).is_pending());
                }
                tokio::task::yield_now().await;
            }
        });
    });
    assert!(counted.bytes_max < WAITING_MAX_BYTES, "{counted:?}");
    runtime.block_on(async {
        drop(waiting);
        resolver.close().await;
    });
}
