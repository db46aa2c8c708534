//! Clients of the chat whose connections are cut at every place: between frames, within their heads and
//! within their contents. They end with the list that the archive has, each message once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Cutter, Proxy, RedisServer};

use crate::chat_client::{
    Follower, Transport, add_agent, find, messages, ok, shared_settings, start, start_conversation,
    text_of, visit_as, widen_limits,
};

/// Messages that flow.
const COUNT: usize = 500;
/// Bytes beyond the end of a frame at which a connection is cut: 0 is the boundary, 1 within the head of
/// the next frame, the others within its contents.
const BEYOND: [usize; 6] = [0, 1, 2, 5, 0, 90];
/// Frames after which a connection is cut. Agents are also told of each other's coming and going, which every
/// cut makes more of: some connections have to live longer than others.
const FRAMES: [usize; 11] = [0, 1, 2, 3, 4, 5, 6, 8, 13, 34, 89];

/// Cuts made between two frames, and within one.
#[derive(Debug, Default)]
struct CutCount {
    between: AtomicUsize,
    within: AtomicUsize,
}

/// Finds the ends of frames in a stream of bytes.
trait FrameEnds: Send {
    /// Takes bytes, and reports the place of every end, counted from the beginning of the stream.
    fn take(&mut self, bytes: &[u8], found: &mut Vec<usize>);
}

/// Frames of a WebSocket server: not masked, behind the head of the response.
#[derive(Default)]
struct SocketFrames {
    pending: Vec<u8>,
    /// Place of the first byte of `pending` in the stream.
    place: usize,
    has_head: bool,
}

impl FrameEnds for SocketFrames {
    fn take(&mut self, bytes: &[u8], found: &mut Vec<usize>) {
        self.pending.extend_from_slice(bytes);
        loop {
            let length = if !self.has_head {
                let Some(end) = find(&self.pending, b"\r\n\r\n") else { return };
                self.has_head = true;
                end + 4
            } else {
                let Some(&second) = self.pending.get(1) else { return };
                let (head, length) = match second & 0x7f {
                    126 => {
                        let Some(long) = self.pending.get(2..4) else { return };
                        (4, usize::from(u16::from_be_bytes([long[0], long[1]])))
                    }
                    127 => panic!("a frame of more than 64 KiB"),
                    short => (2, usize::from(short)),
                };
                head + length
            };
            if self.pending.len() < length {
                // The head is found again with the next bytes.
                return;
            }
            self.pending.drain(..length);
            self.place += length;
            found.push(self.place);
        }
    }
}

/// Server-sent events: an empty line ends one.
#[derive(Default)]
struct EventFrames {
    place: usize,
    last: u8,
}

impl FrameEnds for EventFrames {
    fn take(&mut self, bytes: &[u8], found: &mut Vec<usize>) {
        for &byte in bytes {
            self.place += 1;
            if byte == b'\n' && self.last == b'\n' {
                found.push(self.place);
            }
            self.last = byte;
        }
    }
}

/// Cuts after this many frames and so many bytes more.
fn cutter(
    mut frames: Box<dyn FrameEnds>,
    after: usize,
    beyond: usize,
    count: Arc<CutCount>,
) -> Cutter {
    let (mut ends, mut place) = (Vec::new(), 0);
    Box::new(move |bytes| {
        frames.take(bytes, &mut ends);
        let start = place;
        place += bytes.len();
        // The first end is that of the response's head, or of the greeting.
        let cut = ends.get(after)? + beyond;
        if place < cut {
            return None;
        }
        let kind = if beyond == 0 { &count.between } else { &count.within };
        kind.fetch_add(1, Ordering::Relaxed);
        Some(cut - start)
    })
}

/// A proxy whose connections are cut at one place after the other.
async fn cutting_proxy(target: &str, transport: Transport, count: &Arc<CutCount>) -> Proxy {
    let port = target.rsplit(':').next().unwrap().parse().unwrap();
    let proxy = Proxy::start(port, 1).await.unwrap();
    let (count, mut number) = (Arc::clone(count), 0);
    proxy.cut_replies(move || {
        let frames: Box<dyn FrameEnds> = match transport {
            Transport::WebSocket => Box::<SocketFrames>::default(),
            Transport::ServerSent => Box::<EventFrames>::default(),
        };
        let after = FRAMES[number % FRAMES.len()];
        let beyond = BEYOND[(number / 2) % BEYOND.len()];
        number += 1;
        cutter(frames, after, beyond, Arc::clone(&count))
    });
    proxy
}

#[test]
fn chat_clients_cut_at_every_frame_and_within_end_with_the_list_of_the_archive() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let settings = shared_settings(folder.path());
    let gates = [start(&redis.url(), &settings), start(&redis.url(), &settings)];
    widen_limits(&[&gates[0], &gates[1]]);
    let anna = add_agent(&gates[0], "anna", "agent", 10);
    let visitor = visit_as(&gates[1].base, "eva");
    let id = start_conversation(&gates[1].base, &visitor, "message 0 of nobody");

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let kinds = [
        (Transport::WebSocket, false),
        (Transport::WebSocket, true),
        (Transport::ServerSent, false),
        (Transport::ServerSent, true),
    ];
    let is_sent = AtomicBool::new(false);
    let finished = Mutex::new(Vec::new());
    // Both sides write, each through another instance; every tenth of the agent's is a note.
    let senders = [
        (&gates[0].base, &anna.token, format!("/api/v1/conversations/{id}/messages")),
        (&gates[1].base, &visitor, format!("/api/v1/widget/conversations/{id}/messages")),
    ];
    std::thread::scope(|scope| {
        // Every client meets both instances, each behind a proxy that cuts.
        for (transport, is_agent) in kinds {
            let count = Arc::new(CutCount::default());
            let proxies: Vec<Proxy> = gates
                .iter()
                .map(|gate| runtime.block_on(cutting_proxy(&gate.base, transport, &count)))
                .collect();
            let token = if is_agent { &anna.token } else { &visitor };
            let mut client = Follower::new(transport, token, is_agent, &id);
            let (gates, id, finished, is_sent) = (&gates, &id, &finished, &is_sent);
            let visitor = &visitor;
            scope.spawn(move || {
                let deadline = Instant::now() + Duration::from_secs(180);
                let mut number = 0;
                loop {
                    let proxy = format!("http://127.0.0.1:{}", proxies[number % 2].port());
                    let base = &gates[(number + 1) % 2].base;
                    if !client.step(&proxy, base, Duration::from_millis(200)) {
                        number += 1;
                    }
                    // All is sent, and the list has the last message: nothing more comes.
                    if is_sent.load(Ordering::Relaxed) {
                        let path = format!("/api/v1/widget/conversations/{id}");
                        let found = ok(base, visitor, &format!("GET {path}"), Value::Null);
                        let last = found["last_seq"].as_i64().unwrap();
                        if client.list.last_key_value().is_some_and(|(seq, _)| *seq == last) {
                            break;
                        }
                    }
                    assert!(
                        Instant::now() < deadline,
                        "{transport:?} agent={is_agent}: {} messages after {} connections",
                        client.list.len(),
                        client.connections,
                    );
                }
                finished.lock().unwrap().push((transport, is_agent, client, count));
            });
        }
        let writing: Vec<_> = senders
            .iter()
            .enumerate()
            .map(|(side, (base, token, path))| {
                scope.spawn(move || {
                    for n in 0..COUNT / 2 {
                        let mut message = json!({
                            "content": format!("message {n} of side {side}"),
                            "client_id": format!("s{side}-{n}"),
                        });
                        if side == 0 && n % 10 == 9 {
                            message["type"] = json!("note");
                        }
                        ok(base, token, &format!("POST {path}"), message);
                    }
                })
            })
            .collect();
        for side in writing {
            side.join().unwrap();
        }
        // The last is none that only agents see.
        let path = format!("POST /api/v1/widget/conversations/{id}/messages");
        ok(&gates[0].base, &visitor, &path, json!({ "content": "the last", "client_id": "last" }));
        is_sent.store(true, Ordering::Relaxed);
    });

    for (transport, is_agent, client, count) in finished.into_inner().unwrap() {
        let what = format!("{transport:?} agent={is_agent}");
        let token = if is_agent { &anna.token } else { &visitor };
        let kept = messages(&gates[0].base, token, &client.messages_path(), 0);
        let kept: Vec<(i64, String)> = kept
            .iter()
            .map(|message| (message["seq"].as_i64().unwrap(), text_of(&message["content"])))
            .collect();
        let own: Vec<(i64, String)> = client.list.into_iter().collect();
        assert_eq!(own, kept, "{what}");
        // The archive has 500, the first and the last, in one sequence; system messages are in it, too.
        let notes = COUNT / 20;
        let expected = if is_agent { COUNT + 2 } else { COUNT + 2 - notes };
        let written =
            own.iter().filter(|(_, text)| text.starts_with("message ") || text == "the last");
        assert_eq!(written.count(), expected, "{what}");
        let (between, within) =
            (count.between.load(Ordering::Relaxed), count.within.load(Ordering::Relaxed));
        println!(
            "{what}: {} connections, {} resumed, {} fetched anew, cut {between} times between frames \
             and {within} times within one",
            client.connections, client.resumed, client.fetched,
        );
        assert!(between >= 10 && within >= 10, "{what}: cut {between} and {within} times");
        assert!(client.resumed >= 10, "{what}: resumed {} times", client.resumed);
    }
}
