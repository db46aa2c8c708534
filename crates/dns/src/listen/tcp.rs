//! TCP: pipelined queries, answered in the order in which answers are ready (RFC 7766).
//!
//! Invariant: a client costs at most one connection slot, so many answers in flight as are named here,
//! and no time beyond the idle timeout.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream, tcp::OwnedWriteHalf},
    sync::{Semaphore, mpsc},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Counts, ListenOptions, add};
use crate::{Resolver, Transport};

/// Queries of one connection being answered; more wait in the socket.
const PIPELINE_MAX: usize = 64;

/// Wait after a failed accept, such as without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The TCP side of a listener.
#[derive(Clone, Debug)]
pub(super) struct TcpServer {
    resolver: Resolver,
    slots: Arc<Semaphore>,
    idle: Duration,
    counts: Arc<Counts>,
    cancel: CancellationToken,
}

impl TcpServer {
    pub(super) fn new(
        resolver: &Resolver,
        options: &ListenOptions,
        counts: &Arc<Counts>,
        cancel: &CancellationToken,
    ) -> Self {
        Self {
            resolver: resolver.clone(),
            slots: Arc::new(Semaphore::new(options.tcp_max_connections.max(1))),
            idle: options.tcp_idle,
            counts: Arc::clone(counts),
            cancel: cancel.clone(),
        }
    }

    /// Accepts connections until cancelled.
    pub(super) async fn run(self, listener: TcpListener, tasks: TaskTracker) {
        loop {
            let accepted = tokio::select! {
                () = self.cancel.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((client, _)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            // Closed at once: a client that is told so can ask another server.
            let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else { continue };
            let server = self.clone();
            tasks.spawn(async move {
                let cancel = server.cancel.clone();
                tokio::select! {
                    () = cancel.cancelled() => {}
                    () = server.serve(client) => {}
                }
                drop(slot);
            });
        }
    }

    async fn serve(&self, client: TcpStream) {
        // A peer that is gone already is noticed by the read.
        let _ = client.set_nodelay(true);
        let (reader, writer) = client.into_split();
        let (replies, waiting) = mpsc::channel(PIPELINE_MAX);
        let reading = self.read_queries(BufReader::new(reader), replies);
        tokio::join!(reading, write_replies(writer, waiting, self.idle));
    }

    /// Reads queries and starts to answer each. Ends with the client, the idle timeout, or when the
    /// writer has given up; answers in flight are still written.
    async fn read_queries(
        &self,
        mut reader: BufReader<tokio::net::tcp::OwnedReadHalf>,
        replies: mpsc::Sender<Vec<u8>>,
    ) {
        let pipeline = Arc::new(Semaphore::new(PIPELINE_MAX));
        let answers = TaskTracker::new();
        loop {
            let query = tokio::select! {
                () = replies.closed() => break,
                query = tokio::time::timeout(self.idle, read_message(&mut reader)) => query,
            };
            let Ok(Ok(query)) = query else { break };
            add(&self.counts.tcp_queries, 1);
            let Ok(permit) = Arc::clone(&pipeline).acquire_owned().await else { break };
            let (resolver, replies) = (self.resolver.clone(), replies.clone());
            answers.spawn(async move {
                if let Some(reply) = resolver.answer(&query, Transport::Stream).await {
                    // An error means that the client is gone.
                    let _ = replies.send(reply).await;
                }
                drop(permit);
            });
        }
        drop(replies);
        answers.close();
        answers.wait().await;
    }
}

async fn read_message(
    reader: &mut BufReader<tokio::net::tcp::OwnedReadHalf>,
) -> std::io::Result<Vec<u8>> {
    let length = reader.read_u16().await?;
    let mut message = vec![0; usize::from(length)];
    reader.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_replies(
    mut writer: OwnedWriteHalf,
    mut waiting: mpsc::Receiver<Vec<u8>>,
    timeout: Duration,
) {
    let mut framed = Vec::new();
    while let Some(reply) = waiting.recv().await {
        framed.clear();
        let mut next = Some(reply);
        // Whatever is ready leaves in one write.
        while let Some(reply) = next {
            let length = u16::try_from(reply.len()).unwrap_or(u16::MAX);
            framed.extend_from_slice(&length.to_be_bytes());
            framed.extend_from_slice(&reply);
            next = if framed.len() < 65_536 { waiting.try_recv().ok() } else { None };
        }
        match tokio::time::timeout(timeout, writer.write_all(&framed)).await {
            Ok(Ok(())) => {}
            // The client is gone or does not read.
            _ => return,
        }
    }
}
