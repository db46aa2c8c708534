//! Demo traffic: visitors who enqueue for a sale, poll, start a session, buy, or leave. Each call goes
//! through the same router as a browser's, from an address reserved for documentation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use room::{AdmissionRate, NewInvite, QueueConfig, QueueId, Room, VisitorPriority};
use serde_json::{Value, json};
use store::Millis;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use web::App;
use web::auth::{NewToken, Role};
use web::client::Peer;
use web::demo::{report_end, tide};

/// Starts the demo traffic, on `tasks` until `stop`.
pub(crate) fn start(room: &Room, app: &App, tasks: &TaskTracker, stop: &CancellationToken) {
    let (room, app, stop) = (room.clone(), app.clone(), stop.clone());
    tasks.spawn(async move { report_end(run(room, app, stop).await, "the demo visitors") });
}

/// Maximum of simulated visitors.
const MAX_PEOPLE: usize = 1_500;
const TICK: Duration = Duration::from_millis(200);

const AGENTS: [&str; 4] = [
    "Mozilla/5.0 (iPhone; CPU iPhone OS 19_2 like Mac OS X) AppleWebKit/605.1.15",
    "Mozilla/5.0 (Linux; Android 16; Pixel 10) AppleWebKit/537.36",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:150.0) Gecko/20100101 Firefox/150.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15",
];

/// One sale and its arrivals.
struct Sale {
    id: &'static str,
    /// Arrivals per second when it is calm, and when it is busy.
    calm: f64,
    busy: f64,
    /// Duration of a busy and a calm spell together.
    period_ms: i64,
    /// Visitors waiting at the start.
    rush: usize,
}

const SALES: [Sale; 3] = [
    Sale { id: "summer-tour", calm: 1.4, busy: 5.2, period_ms: 240_000, rush: 140 },
    Sale { id: "sneaker-drop", calm: 0.2, busy: 1.1, period_ms: 150_000, rush: 12 },
    Sale { id: "members-presale", calm: 0.02, busy: 0.05, period_ms: 300_000, rush: 24 },
];

fn config(sale: &Sale) -> QueueConfig {
    let seconds = Duration::from_secs;
    let base = QueueConfig {
        target_url: "https://tickets.example/checkout".to_owned(),
        admission_window: seconds(30),
        session_timeout: seconds(60),
        session_max: seconds(600),
        // All demo visitors share one address.
        max_active_per_address: Some(0),
        ..QueueConfig::default()
    };
    match sale.id {
        "summer-tour" => QueueConfig {
            name: "Summer tour 2027".to_owned(),
            max_active: 80,
            admission: AdmissionRate::new(240, 60),
            ..base
        },
        "sneaker-drop" => QueueConfig {
            name: "Sneaker drop".to_owned(),
            max_active: 25,
            admission: AdmissionRate::new(50, 60),
            ..base
        },
        _ => QueueConfig {
            name: "Members' presale".to_owned(),
            max_active: 40,
            message: [("en".to_owned(), json!("Doors open at eight. You keep your position."))]
                .into_iter()
                .collect(),
            ..base
        },
    }
}

/// A simulated visitor and its next action.
#[derive(Debug)]
struct Person {
    sale: usize,
    peer: Peer,
    agent: &'static str,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// About to enqueue, some with an invite.
    Coming(Option<String>),
    /// Waiting, with the token of the position.
    Waiting(String),
    /// Active with this pass, until then.
    Active { session: String, pass: String, until: Millis },
}

/// Times of next actions; the index is into the people.
type DueQueue = BinaryHeap<Reverse<(i64, usize)>>;

struct Crowd {
    app: App,
    router: Router,
    chance: fastrand::Rng,
    people: Vec<Option<Person>>,
    free: Vec<usize>,
    due: DueQueue,
    invites: Vec<String>,
    operator: String,
}

/// Opens the sales and simulates visitors until stopped.
async fn run(room: Room, app: App, stop: CancellationToken) -> anyhow::Result<()> {
    for sale in &SALES {
        let id = QueueId::parse(sale.id)?;
        match room.create_queue(&id, config(sale)).await {
            // An earlier demo on the same store made it.
            Ok(_) | Err(room::Error::QueueExists) => {}
            Err(error) => return Err(error.into()),
        }
    }
    room.pause_queue(&QueueId::parse("members-presale")?).await?;
    let operator =
        NewToken { name: "demo operator".to_owned(), role: Role::Operator, scopes: Vec::new() };
    let (_, secret) = app
        .auth()
        .create_token(app.store(), operator, "demo")
        .await
        .map_err(|error| anyhow::anyhow!("{}", error.message()))?;
    let mut invites = Vec::new();
    let summer = QueueId::parse("summer-tour")?;
    for priority in [1, 2] {
        let expires = Millis(app.store().now().0 + 24 * 3_600_000);
        let new = NewInvite {
            id: None,
            priority: VisitorPriority::parse(priority)?,
            uses: 100_000,
            expires,
            user_id: String::new(),
        };
        invites.push(room.issue_invite(&summer, new).await?.0);
    }
    let mut crowd = Crowd {
        router: web::app(app.clone()),
        app,
        chance: fastrand::Rng::new(),
        people: Vec::new(),
        free: Vec::new(),
        due: DueQueue::new(),
        invites,
        operator: secret.reveal().to_owned(),
    };
    for (index, sale) in SALES.iter().enumerate() {
        for _ in 0..sale.rush {
            let after = crowd.chance.i64(0..6_000);
            crowd.arrive(index, after);
        }
    }
    let mut timer = interval(TICK);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ticks: u64 = 0;
    loop {
        tokio::select! {
            _ = timer.tick() => {}
            () = stop.cancelled() => return Ok(()),
        }
        ticks += 1;
        crowd.tick().await;
        // About every 90 seconds an operator changes something.
        if ticks % 450 == 150 {
            crowd.operate().await;
        }
    }
}

impl Crowd {
    fn now(&self) -> Millis {
        self.app.store().now()
    }

    /// Adds a visitor who enqueues after a delay.
    fn arrive(&mut self, sale: usize, after_ms: i64) {
        if self.people.len() - self.free.len() >= MAX_PEOPLE {
            return;
        }
        let invite = (sale == 0 && self.chance.f64() < 0.05)
            .then(|| self.chance.choice(&self.invites).cloned())
            .flatten();
        let person = Person {
            sale,
            peer: Peer { addr: SocketAddr::new(self.address(), 40_000), tls: true },
            agent: self.chance.choice(AGENTS).unwrap_or(AGENTS[0]),
            stage: Stage::Coming(invite),
        };
        let index = self.free.pop().unwrap_or(self.people.len());
        if index == self.people.len() {
            self.people.push(None);
        }
        self.people[index] = Some(person);
        self.due.push(Reverse((self.now().0 + after_ms, index)));
    }

    /// Returns an address from the ranges reserved for documentation.
    fn address(&mut self) -> IpAddr {
        let n = self.chance.u16(..);
        match self.chance.u8(0..4) {
            0 => Ipv4Addr::new(192, 0, 2, n as u8).into(),
            1 => Ipv4Addr::new(198, 51, 100, n as u8).into(),
            2 => Ipv4Addr::new(203, 0, 113, n as u8).into(),
            _ => Ipv6Addr::new(0x2001, 0xdb8, n, 1, 0, 0, 0, 1).into(),
        }
    }

    /// Adds new visitors, and runs the next action of those that are due.
    async fn tick(&mut self) {
        let now = self.now();
        for (index, sale) in SALES.iter().enumerate() {
            let rate = sale.calm + (sale.busy - sale.calm) * tide(now, sale.period_ms).powi(2);
            if self.chance.f64() < rate * TICK.as_secs_f64() {
                self.arrive(index, 0);
            }
        }
        while let Some(Reverse((at, index))) = self.due.peek().copied() {
            if at > now.0 {
                break;
            }
            self.due.pop();
            let Some(mut person) = self.people.get_mut(index).and_then(Option::take) else {
                continue;
            };
            match self.next(&mut person).await {
                Some(wait_ms) => {
                    self.people[index] = Some(person);
                    self.due.push(Reverse((self.now().0 + wait_ms.max(1), index)));
                }
                None => self.free.push(index),
            }
        }
    }

    /// Runs the next action of a visitor; returns the delay before the one after it, if any.
    async fn next(&mut self, person: &mut Person) -> Option<i64> {
        let queue = format!("/api/v1/queues/{}", SALES[person.sale].id);
        match &mut person.stage {
            Stage::Coming(invite) => {
                let body = match invite.take() {
                    Some(invite) => json!({ "invite": invite }),
                    None => json!({}),
                };
                let position =
                    self.call(person, &format!("POST {queue}/enqueue"), "", body).await?;
                person.stage = Stage::Waiting(position["token"].as_str()?.to_owned());
                Some(self.poll_delay(&position))
            }
            Stage::Waiting(token) => {
                let token = token.clone();
                if self.chance.f64() < 0.006 {
                    self.call(person, &format!("POST {queue}/leave"), &token, Value::Null).await;
                    return None;
                }
                let position = self
                    .call(person, &format!("POST {queue}/heartbeat"), &token, Value::Null)
                    .await?;
                if position["admitted"] != true {
                    return Some(self.poll_delay(&position));
                }
                // A few are admitted and never come.
                if self.chance.f64() < 0.05 {
                    return None;
                }
                let session = self
                    .call(person, &format!("POST {queue}/start-session"), &token, Value::Null)
                    .await?;
                let until = Millis(self.now().0 + self.chance.i64(8_000..42_000));
                let id = session["session_id"].as_str()?.to_owned();
                let pass = session["session_token"].as_str()?.to_owned();
                person.stage = Stage::Active { session: id, pass, until };
                Some(self.chance.i64(3_000..7_000))
            }
            Stage::Active { session, pass, until } => {
                let (path, pass) = (format!("/api/v1/sessions/{session}"), pass.clone());
                if until.0 > self.app.store().now().0 {
                    self.call(person, &format!("POST {path}/activity"), &pass, Value::Null).await?;
                    return Some(self.chance.i64(3_000..9_000));
                }
                // Most complete their session; the others just close the tab.
                if self.chance.f64() < 0.85 {
                    self.call(person, &format!("POST {path}/complete"), &pass, Value::Null).await;
                }
                None
            }
        }
    }

    /// Returns the poll delay the server asked for, with jitter.
    fn poll_delay(&mut self, position: &Value) -> i64 {
        let delay = position["next_poll_ms"].as_i64().unwrap_or(5_000).clamp(1_000, 12_000);
        delay + self.chance.i64(0..=delay / 5)
    }

    /// Sends a request of a visitor; `None` if it was refused.
    async fn call(&self, person: &Person, what: &str, token: &str, body: Value) -> Option<Value> {
        self.ask(person.peer, person.agent, what, token, body).await
    }

    async fn ask(
        &self,
        peer: Peer,
        agent: &str,
        what: &str,
        token: &str,
        body: Value,
    ) -> Option<Value> {
        let (method, path) = what.split_once(' ')?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .extension(peer)
            .header(header::USER_AGENT, agent);
        if !token.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = if body.is_null() {
            Body::empty()
        } else {
            request = request.header(header::CONTENT_TYPE, "application/json");
            Body::from(body.to_string())
        };
        let response = self.router.clone().oneshot(request.body(body).ok()?).await.ok()?;
        if !response.status().is_success() {
            return None;
        }
        let bytes = to_bytes(response.into_body(), 1 << 20).await.ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Runs an operator's action.
    async fn operate(&mut self) {
        let queue = "/api/v1/admin/queues/summer-tour";
        let (what, body) = match self.chance.u8(0..3) {
            0 => (format!("POST {queue}/admit"), json!({ "count": 10 })),
            1 => (
                format!("POST {queue}/rate"),
                json!({ "count": self.chance.u32(20..28) * 10, "per_seconds": 60 }),
            ),
            _ => (
                format!("POST {queue}/message"),
                json!({ "text": { "en": "Still plenty of seats left in blocks C and D." } }),
            ),
        };
        self.ask(Peer::default(), "demo", &what, &self.operator, body).await;
    }
}
