//! A TCP proxy that misbehaves on command, between a store and its server.
//!
//! It can delay, cut, reset, swallow, forward a request whose reply it then loses, and cut a connection at
//! a chosen byte. What it does at random it does by a seed, so that a run can be repeated.

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// The proxy. Ends with its connections when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    faults: Mutex<Faults>,
    /// Changes to end all connections there are.
    ends: watch::Sender<End>,
    lost: AtomicU64,
}

/// Finds the end of a connection in what the server sends: it is given the bytes piece by piece, and returns
/// how many of a piece still reach the client when the connection ends within it.
pub type Cutter = Box<dyn FnMut(&[u8]) -> Option<usize> + Send>;

/// Makes the cutter of each connection.
struct CutterMaker(Box<dyn FnMut() -> Cutter + Send>);

impl fmt::Debug for CutterMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CutterMaker")
    }
}

#[derive(Debug)]
struct Faults {
    delay: Duration,
    refuse: bool,
    swallow: bool,
    lose: Option<ReplyLoss>,
    cutters: Option<CutterMaker>,
    random: fastrand::Rng,
}

#[derive(Clone, Debug)]
enum ReplyLoss {
    /// The reply to the next request that contains this.
    Next(Vec<u8>),
    /// A reply in so many.
    OneIn(u32),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Never,
    Close(u64),
    Reset(u64),
}

impl Proxy {
    /// Starts a proxy to a local port. The seed decides what is left to chance.
    pub async fn start(target: u16, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: (Ipv4Addr::LOCALHOST, target).into(),
            faults: Mutex::new(Faults {
                delay: Duration::ZERO,
                refuse: false,
                swallow: false,
                lose: None,
                cutters: None,
                random: fastrand::Rng::with_seed(seed),
            }),
            ends: watch::Sender::new(End::Never),
            lost: AtomicU64::new(0),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    /// Where the proxy is.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// The proxy's port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Holds back everything that passes by so long.
    pub fn delay(&self, delay: Duration) {
        self.shared.faults.lock().delay = delay;
    }

    /// Closes all connections and refuses new ones, until [`Proxy::heal`].
    pub fn cut(&self) {
        self.shared.faults.lock().refuse = true;
        self.end(End::Close);
    }

    /// Resets all connections; new ones are welcome.
    pub fn reset(&self) {
        self.end(End::Reset);
    }

    /// Keeps connections open and lets nothing through, until [`Proxy::heal`].
    pub fn swallow(&self) {
        self.shared.faults.lock().swallow = true;
    }

    /// Passes the next request that contains `text` on, and closes its connection in place of the
    /// reply: it was carried out, and the caller does not know.
    pub fn lose_reply_to(&self, text: &str) {
        self.shared.faults.lock().lose = Some(ReplyLoss::Next(text.as_bytes().to_vec()));
    }

    /// Loses one reply in so many, as [`Proxy::lose_reply_to`] does, until [`Proxy::heal`].
    pub fn lose_replies(&self, one_in: u32) {
        self.shared.faults.lock().lose = Some(ReplyLoss::OneIn(one_in.max(1)));
    }

    /// Ends every new connection where the cutter that is made for it says, until [`Proxy::heal`].
    pub fn cut_replies(&self, make: impl FnMut() -> Cutter + Send + 'static) {
        self.shared.faults.lock().cutters = Some(CutterMaker(Box::new(make)));
    }

    /// How many replies were lost.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// Ends all faults. What was swallowed is gone; those connections are closed.
    pub fn heal(&self) {
        let mut faults = self.shared.faults.lock();
        let swallowed = faults.swallow;
        (faults.delay, faults.refuse, faults.swallow, faults.lose) =
            (Duration::ZERO, false, false, None);
        faults.cutters = None;
        drop(faults);
        if swallowed {
            self.end(End::Close);
        }
    }

    fn end(&self, how: fn(u64) -> End) {
        self.shared.ends.send_modify(|end| {
            let number = match *end {
                End::Never => 0,
                End::Close(number) | End::Reset(number) => number,
            };
            *end = how(number + 1);
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropping the set ends the connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                if !shared.faults.lock().refuse {
                    connections.spawn(pass(client, Arc::clone(&shared)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Passes bytes between a client and the server until either ends, or the proxy ends it.
async fn pass(mut client: TcpStream, shared: Arc<Shared>) {
    let mut ends = shared.ends.subscribe();
    ends.mark_unchanged();
    let Ok(mut server) = TcpStream::connect(shared.target).await else { return };
    // A peer that is gone already is noticed by the reads below.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut request, mut reply) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut losing = false;
    let mut cutter = shared.faults.lock().cutters.as_mut().map(|maker| maker.0());
    loop {
        tokio::select! {
            changed = ends.changed() => {
                if changed.is_ok() && matches!(*ends.borrow(), End::Reset(_)) {
                    // Closing with unsent data discarded is what sends a reset.
                    let _ = client.set_zero_linger();
                }
                return;
            }
            read = client.read(&mut request) => {
                let Ok(read @ 1..) = read else { return };
                let (delay, swallow, lose) = shared.on_request(&request[..read]);
                if swallow {
                    continue;
                }
                losing |= lose;
                tokio::time::sleep(delay).await;
                if server.write_all(&request[..read]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut reply) => {
                let Ok(read @ 1..) = read else { return };
                if losing {
                    shared.lost.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                let (delay, swallow) = shared.on_reply();
                if swallow {
                    continue;
                }
                tokio::time::sleep(delay).await;
                let end = cutter.as_mut().and_then(|cutter| cutter(&reply[..read]));
                let passed = end.unwrap_or(read).min(read);
                if client.write_all(&reply[..passed]).await.is_err() || end.is_some() {
                    return;
                }
            }
        }
    }
}

impl Shared {
    fn on_request(&self, bytes: &[u8]) -> (Duration, bool, bool) {
        let mut faults = self.faults.lock();
        let lose = match faults.lose.clone() {
            None => false,
            Some(ReplyLoss::OneIn(many)) => faults.random.u32(0..many) == 0,
            Some(ReplyLoss::Next(text)) => {
                let found = bytes.windows(text.len().max(1)).any(|window| window == text);
                if found {
                    faults.lose = None;
                }
                found
            }
        };
        (faults.delay, faults.swallow, lose)
    }

    fn on_reply(&self) -> (Duration, bool) {
        let faults = self.faults.lock();
        (faults.delay, faults.swallow)
    }
}
