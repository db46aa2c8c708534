//! Listeners: real sockets on loopback. Nothing here depends on the kind of store.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use dns::{Error, ListenOptions, Listeners, Resolver, ResolverOptions, UpstreamOptions};
use store::Store;

use crate::support::{ScriptedUpstream, address_reply, packet, packet_with_opt};

struct Bench {
    resolver: Resolver,
    listeners: Listeners,
    upstream: ScriptedUpstream,
}

fn on(address: &str) -> ListenOptions {
    ListenOptions {
        addresses: vec![address.parse().unwrap()],
        threads: 2,
        ..ListenOptions::default()
    }
}

async fn open(options: ListenOptions) -> Bench {
    let upstream = ScriptedUpstream::start(|query, _| vec![address_reply(query, 300, 1)]).await;
    let resolver = open_resolver(&upstream).await;
    let listeners = Listeners::open(&resolver, options).await.unwrap();
    Bench { resolver, listeners, upstream }
}

async fn open_resolver(upstream: &ScriptedUpstream) -> Resolver {
    let options = ResolverOptions {
        upstream: UpstreamOptions {
            servers: vec![upstream.address()],
            ..UpstreamOptions::default()
        },
        ..ResolverOptions::default()
    };
    let store = Store::open("embedded:").await.unwrap();
    Resolver::open(store, options).await.unwrap()
}

impl Bench {
    fn address(&self) -> SocketAddr {
        self.listeners.addresses()[0]
    }

    async fn close(self) {
        self.listeners.close().await;
        self.resolver.close().await;
    }
}

/// A client that takes replies from the address it asks only.
fn client(server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

fn ask(socket: &UdpSocket, query: &[u8]) -> Vec<u8> {
    socket.send(query).unwrap();
    let mut reply = vec![0; 4_096];
    let length = socket.recv(&mut reply).unwrap();
    reply.truncate(length);
    reply
}

fn send_framed(stream: &mut TcpStream, query: &[u8]) {
    let mut framed = u16::try_from(query.len()).unwrap().to_be_bytes().to_vec();
    framed.extend_from_slice(query);
    stream.write_all(&framed).unwrap();
}

fn read_framed(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut reply = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut reply).unwrap();
    reply
}

#[tokio::test(flavor = "multi_thread")]
async fn misses_and_hits_are_answered_over_udp() {
    let bench = open(on("127.0.0.1:0")).await;
    let socket = client(bench.address());
    for number in 0..200_u16 {
        let mut query = packet_with_opt("wWw.Example.com", 1_232, false);
        query[..2].copy_from_slice(&number.to_be_bytes());
        let reply = ask(&socket, &query);
        assert_eq!(reply[..2], query[..2]);
        assert_eq!(reply[12..33], query[12..33], "spelled as asked");
        assert_eq!((reply[3] & 0xf, reply[7], reply[11]), (0, 1, 1));
    }
    assert_eq!(bench.upstream.seen().len(), 1);
    let stats = bench.listeners.stats();
    assert_eq!((stats.udp_queries, stats.dropped_queries, stats.dropped_replies), (200, 0, 0));
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_queries_is_answered_in_batches() {
    let bench = open(on("127.0.0.1:0")).await;
    let sockets: Vec<_> = (0..8).map(|_| client(bench.address())).collect();
    ask(&sockets[0], &packet("www.example.com"));
    for round in 0..10_u8 {
        for socket in &sockets {
            for number in 0..20 {
                let mut query = packet("www.example.com");
                (query[0], query[1]) = (round, number);
                socket.send(&query).unwrap();
            }
        }
        for socket in &sockets {
            let mut ids: Vec<u8> = (0..20)
                .map(|_| {
                    let mut reply = [0; 512];
                    socket.recv(&mut reply).unwrap();
                    assert_eq!(reply[0], round);
                    reply[1]
                })
                .collect();
            ids.sort_unstable();
            assert_eq!(ids, (0..20).collect::<Vec<_>>());
        }
    }
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_leaves_from_the_address_that_was_asked() {
    let bench = open(on("0.0.0.0:0")).await;
    let port = bench.address().port();
    // Missed at first, then hits: both ways of sending.
    for _ in 0..3 {
        for last in 1..=4 {
            let socket = client(SocketAddr::from(([127, 0, 0, last], port)));
            let reply = ask(&socket, &packet(&format!("n{last}.example.com")));
            assert_eq!((reply[3] & 0xf, reply[7]), (0, 1));
        }
    }
    assert_eq!(bench.upstream.seen().len(), 4);
    // Several addresses within one batch.
    let sockets: Vec<_> =
        (1..=4).map(|last| client(SocketAddr::from(([127, 0, 0, last], port)))).collect();
    for _ in 0..20 {
        sockets.iter().for_each(|socket| _ = socket.send(&packet("n1.example.com")).unwrap());
    }
    for socket in &sockets {
        for _ in 0..20 {
            assert!(socket.recv(&mut [0; 512]).unwrap() > 12);
        }
    }
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_works_on_a_wildcard_too() {
    let bench = open(on("[::]:0")).await;
    let socket = UdpSocket::bind("[::1]:0").unwrap();
    socket.connect(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], bench.address().port()))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for _ in 0..3 {
        assert_eq!(ask(&socket, &packet("www.example.com"))[7], 1);
    }
    bench.close().await;
}

/// A query behind a PROXY header, version 2, of a client at 192.168.7.7.
fn behind_proxy(query: &[u8], is_tcp: bool) -> Vec<u8> {
    let mut packet = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    packet.extend([if is_tcp { 0x11 } else { 0x12 }, 0, 12]);
    packet.extend([192, 168, 7, 7, 127, 0, 0, 1, 0x12, 0x34, 0, 53]);
    if is_tcp {
        packet.extend(u16::try_from(query.len()).unwrap().to_be_bytes());
    }
    packet.extend(query);
    packet
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_headers_count_from_trusted_proxies_only() {
    let upstream = ScriptedUpstream::start(|query, _| vec![address_reply(query, 300, 1)]).await;
    let policy = serde_json::json!({
        "groups": [{"id": "kids", "rules": ["||www.example.com^"]}],
        "clients": [{"id": "tv", "addresses": ["192.168.7.7"], "group": "kids"}],
    });
    let options = ResolverOptions {
        upstream: UpstreamOptions {
            servers: vec![upstream.address()],
            ..UpstreamOptions::default()
        },
        default_policy: serde_json::from_value(policy).unwrap(),
        ..ResolverOptions::default()
    };
    let resolver = Resolver::open(Store::open("embedded:").await.unwrap(), options).await.unwrap();
    let query = packet("www.example.com");
    let trusting = ListenOptions {
        trusted_proxies: vec!["127.0.0.1/32".parse().unwrap()],
        ..on("127.0.0.1:0")
    };
    let listeners = Listeners::open(&resolver, trusting).await.unwrap();
    let address = listeners.addresses()[0];
    for _ in ["miss", "hit"] {
        let reply = ask(&client(address), &behind_proxy(&query, false));
        assert_eq!(reply[reply.len() - 4..], [0, 0, 0, 0], "blocked for the client behind it");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&behind_proxy(&query, true)).unwrap();
        let reply = read_framed(&mut stream);
        assert_eq!(reply[reply.len() - 4..], [0, 0, 0, 0], "over TCP too");
        // The proxy itself may ask over UDP.
        let reply = ask(&client(address), &query);
        assert_eq!(reply[reply.len() - 4..], [192, 0, 2, 1]);
    }
    // A header that breaks off is nobody's.
    let socket = client(address);
    socket.send(&behind_proxy(&query, false)[..20]).unwrap();
    assert_eq!(ask(&socket, &query)[7], 1, "the reply is to the second");
    listeners.close().await;

    let listeners = Listeners::open(&resolver, on("127.0.0.1:0")).await.unwrap();
    let address = listeners.addresses()[0];
    let reply = ask(&client(address), &behind_proxy(&query, false));
    assert_eq!((reply[3] & 0xf, reply[7]), (4, 0), "a header of anybody else is no query");
    let reply = ask(&client(address), &query);
    assert_eq!(reply[reply.len() - 4..], [192, 0, 2, 1]);
    listeners.close().await;
    resolver.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_ipv4_and_all_of_ipv6_may_share_a_port() {
    let bench = open(on("127.0.0.1:0")).await;
    let port = testkit::reserve_port();
    let addresses = ["0.0.0.0", "::"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).to_vec();
    let options = ListenOptions { addresses, ..ListenOptions::default() };
    let listeners = Listeners::open(&bench.resolver, options).await.unwrap();
    for ip in ["127.0.0.1", "::1"] {
        let socket = UdpSocket::bind(SocketAddr::new(ip.parse().unwrap(), 0)).unwrap();
        socket.connect(SocketAddr::new(ip.parse().unwrap(), port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(ask(&socket, &packet("www.example.com"))[7], 1, "{ip}");
        let mut stream = TcpStream::connect(SocketAddr::new(ip.parse().unwrap(), port)).unwrap();
        send_framed(&mut stream, &packet("www.example.com"));
        assert_eq!(read_framed(&mut stream)[7], 1, "{ip} over TCP");
    }
    listeners.close().await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_on_the_same_port_is_refused() {
    let bench = open(on("127.0.0.1:0")).await;
    let address = bench.address();
    let again = Listeners::open(&bench.resolver, on(&address.to_string())).await;
    assert!(matches!(again, Err(Error::Listen { .. })), "{again:?}");
    let socket = client(address);
    assert_eq!(ask(&socket, &packet("www.example.com"))[7], 1, "the first one is not disturbed");

    // The port is free again once it is closed.
    bench.listeners.close().await;
    let again = Listeners::open(&bench.resolver, on(&address.to_string())).await.unwrap();
    assert_eq!(ask(&client(address), &packet("www.example.com"))[7], 1);
    again.close().await;

    // Held by another program for UDP alone.
    let _taken = UdpSocket::bind(address).unwrap();
    let again = Listeners::open(&bench.resolver, on(&address.to_string())).await;
    assert!(matches!(again, Err(Error::Listen { .. })), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_datagrams_harm_nobody() {
    let bench = open(on("127.0.0.1:0")).await;
    let socket = client(bench.address());
    for bad in [&b""[..], b"short", &[0xff; 600], &[0; 5_000]] {
        socket.send(bad).unwrap();
    }
    let mut malformed = packet("www.example.com");
    malformed[12] = 0x41;
    assert_eq!(ask(&socket, &malformed)[3] & 0xf, 1, "FORMERR");
    assert_eq!(ask(&socket, &packet("www.example.com"))[7], 1);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_queries_are_pipelined_and_answered_as_they_are_ready() {
    let bench = open(on("127.0.0.1:0")).await;
    // One name is not answered until its second attempt.
    bench.upstream.behave(|query, _| {
        let is_slow = query[13..17].eq_ignore_ascii_case(b"slow");
        if is_slow { vec![] } else { vec![address_reply(query, 300, 1)] }
    });
    let mut stream = TcpStream::connect(bench.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    send_framed(&mut stream, &packet("slow.example.com"));
    for number in 0..30_u8 {
        let mut query = packet("fast.example.com");
        (query[0], query[1]) = (0, number);
        send_framed(&mut stream, &query);
    }
    let mut ids: Vec<u8> = (0..30)
        .map(|_| {
            let reply = read_framed(&mut stream);
            assert_eq!((reply[0], reply[7]), (0, 1));
            reply[1]
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..30).collect::<Vec<_>>());
    let last = read_framed(&mut stream);
    assert_eq!((&last[..2], last[3] & 0xf), (&[0x70, 0x53][..], 2), "the slow one comes last");

    // A query in single bytes, then the end of the client's side.
    let query = packet("fast.example.com");
    for byte in [&[0, u8::try_from(query.len()).unwrap()][..], &query].concat() {
        stream.write_all(&[byte]).unwrap();
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_framed(&mut stream)[7], 1);
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "closed");
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_bounded_and_closed() {
    let options = ListenOptions {
        tcp_max_connections: 4,
        tcp_idle: Duration::from_millis(300),
        ..on("127.0.0.1:0")
    };
    let bench = open(options).await;
    let silent: Vec<_> = (0..10).map(|_| TcpStream::connect(bench.address()).unwrap()).collect();
    assert_eq!(ask(&client(bench.address()), &packet("www.example.com"))[7], 1, "UDP goes on");
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "closed by the server");
    }
    let mut stream = TcpStream::connect(bench.address()).unwrap();
    send_framed(&mut stream, &packet("www.example.com"));
    assert_eq!(read_framed(&mut stream)[7], 1, "there is room again");
    bench.close().await;
}
