//! The crowd: people who hear of a sale, stand in line, ask where they are, come in, buy, or give
//! up. Each call goes through the same router as a browser's, from an address made for documents.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use api::App;
use api::auth::{NewToken, Role};
use api::client::Peer;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use room::{Level, NewInvite, QueueConfig, QueueId, Rate};
use serde_json::{Value, json};
use store::Millis;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::tide;

/// People at once at most, whatever the sale brings.
const PEOPLE: usize = 1_500;
const BEAT: Duration = Duration::from_millis(200);

const AGENTS: [&str; 4] = [
    "Mozilla/5.0 (iPhone; CPU iPhone OS 19_2 like Mac OS X) AppleWebKit/605.1.15",
    "Mozilla/5.0 (Linux; Android 16; Pixel 10) AppleWebKit/537.36",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:150.0) Gecko/20100101 Firefox/150.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15",
];

/// One sale and how people come to it.
struct Sale {
    id: &'static str,
    /// People a second when it is calm, and when it is not.
    calm: f64,
    busy: f64,
    /// How long a busy spell and the calm after it take.
    period: i64,
    /// Who is there when the doors open.
    rush: usize,
}

const SALES: [Sale; 3] = [
    Sale { id: "summer-tour", calm: 1.4, busy: 5.2, period: 240_000, rush: 140 },
    Sale { id: "sneaker-drop", calm: 0.2, busy: 1.1, period: 150_000, rush: 12 },
    Sale { id: "members-presale", calm: 0.02, busy: 0.05, period: 300_000, rush: 24 },
];

fn config(sale: &Sale) -> QueueConfig {
    let seconds = Duration::from_secs;
    let base = QueueConfig {
        target_url: "https://tickets.example/checkout".to_owned(),
        claim_window: seconds(30),
        session_timeout: seconds(60),
        session_max: seconds(600),
        // The whole crowd comes from one address.
        max_active_per_address: Some(0),
        ..QueueConfig::default()
    };
    match sale.id {
        "summer-tour" => QueueConfig {
            name: "Summer tour 2027".to_owned(),
            max_active: 80,
            admission: Rate::new(240, 60),
            ..base
        },
        "sneaker-drop" => QueueConfig {
            name: "Sneaker drop".to_owned(),
            max_active: 25,
            admission: Rate::new(50, 60),
            ..base
        },
        _ => QueueConfig {
            name: "Members' presale".to_owned(),
            max_active: 40,
            message: [("en".to_owned(), json!("Doors open at eight. You keep your place."))]
                .into_iter()
                .collect(),
            ..base
        },
    }
}

/// A person, and what they are about to do.
#[derive(Debug)]
struct Person {
    sale: usize,
    peer: Peer,
    agent: &'static str,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// On the way, some with an invite.
    Coming(Option<String>),
    /// In line, with the token of the place.
    Waiting(String),
    /// Inside with this pass, until then.
    Inside { session: String, pass: String, until: Millis },
}

/// Who is due when; the index is into the people.
type Due = BinaryHeap<Reverse<(i64, usize)>>;

struct Crowd {
    app: App,
    router: Router,
    chance: fastrand::Rng,
    people: Vec<Option<Person>>,
    free: Vec<usize>,
    due: Due,
    invites: Vec<String>,
    operator: String,
}

/// Opens the sales and lets people come until told to stop.
pub(super) async fn run(app: App, stop: CancellationToken) -> anyhow::Result<()> {
    let room = app.services().room.clone().context("there is no waiting room")?;
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
    for level in [1, 2] {
        let expires = Millis(app.store().now().0 + 24 * 3_600_000);
        let new = NewInvite {
            id: None,
            level: Level::parse(level)?,
            uses: 100_000,
            expires,
            user_id: String::new(),
        };
        invites.push(room.issue_invite(&summer, new).await?.0);
    }
    let mut crowd = Crowd {
        router: api::app(app.clone()),
        app,
        chance: fastrand::Rng::new(),
        people: Vec::new(),
        free: Vec::new(),
        due: Due::new(),
        invites,
        operator: secret.reveal().to_owned(),
    };
    for (index, sale) in SALES.iter().enumerate() {
        for _ in 0..sale.rush {
            let after = crowd.chance.i64(0..6_000);
            crowd.arrive(index, after);
        }
    }
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut beats: u64 = 0;
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = stop.cancelled() => return Ok(()),
        }
        beats += 1;
        crowd.beat().await;
        // About once a minute and a half somebody turns a knob.
        if beats % 450 == 150 {
            crowd.operate().await;
        }
    }
}

impl Crowd {
    fn now(&self) -> Millis {
        self.app.store().now()
    }

    /// Somebody sets off, to be at the door in a while.
    fn arrive(&mut self, sale: usize, after_ms: i64) {
        if self.people.len() - self.free.len() >= PEOPLE {
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

    /// An address from the ranges set aside for documents.
    fn address(&mut self) -> IpAddr {
        let n = self.chance.u16(..);
        match self.chance.u8(0..4) {
            0 => Ipv4Addr::new(192, 0, 2, n as u8).into(),
            1 => Ipv4Addr::new(198, 51, 100, n as u8).into(),
            2 => Ipv4Addr::new(203, 0, 113, n as u8).into(),
            _ => Ipv6Addr::new(0x2001, 0xdb8, n, 1, 0, 0, 0, 1).into(),
        }
    }

    /// New people come, and everybody who is due does the next thing.
    async fn beat(&mut self) {
        let now = self.now();
        for (index, sale) in SALES.iter().enumerate() {
            let rate = sale.calm + (sale.busy - sale.calm) * tide(now, sale.period).powi(2);
            if self.chance.f64() < rate * BEAT.as_secs_f64() {
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

    /// The next thing a person does; answers when they will do something again, if ever.
    async fn next(&mut self, person: &mut Person) -> Option<i64> {
        let queue = format!("/api/v1/queues/{}", SALES[person.sale].id);
        match &mut person.stage {
            Stage::Coming(invite) => {
                let body = match invite.take() {
                    Some(invite) => json!({ "invite": invite }),
                    None => json!({}),
                };
                let place = self.call(person, &format!("POST {queue}/enqueue"), "", body).await?;
                person.stage = Stage::Waiting(place["token"].as_str()?.to_owned());
                Some(self.soon(&place))
            }
            Stage::Waiting(token) => {
                let token = token.clone();
                if self.chance.f64() < 0.006 {
                    self.call(person, &format!("POST {queue}/leave"), &token, Value::Null).await;
                    return None;
                }
                let place = self
                    .call(person, &format!("POST {queue}/heartbeat"), &token, Value::Null)
                    .await?;
                if place["admitted"] != true {
                    return Some(self.soon(&place));
                }
                // A few are let in and have wandered off.
                if self.chance.f64() < 0.05 {
                    return None;
                }
                let session =
                    self.call(person, &format!("POST {queue}/claim"), &token, Value::Null).await?;
                let until = Millis(self.now().0 + self.chance.i64(8_000..42_000));
                let id = session["session_id"].as_str()?.to_owned();
                let pass = session["session_token"].as_str()?.to_owned();
                person.stage = Stage::Inside { session: id, pass, until };
                Some(self.chance.i64(3_000..7_000))
            }
            Stage::Inside { session, pass, until } => {
                let (path, pass) = (format!("/api/v1/sessions/{session}"), pass.clone());
                if until.0 > self.app.store().now().0 {
                    self.call(person, &format!("POST {path}/activity"), &pass, Value::Null).await?;
                    return Some(self.chance.i64(3_000..9_000));
                }
                // Most say goodbye; the others just close the tab.
                if self.chance.f64() < 0.85 {
                    self.call(person, &format!("POST {path}/complete"), &pass, Value::Null).await;
                }
                None
            }
        }
    }

    /// When the server said to ask again, give or take a little.
    fn soon(&mut self, place: &Value) -> i64 {
        let told = place["next_poll_ms"].as_i64().unwrap_or(5_000).clamp(1_000, 12_000);
        told + self.chance.i64(0..=told / 5)
    }

    /// One request of a person; nothing when it was refused.
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

    /// What the person at the desk does now and then.
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
