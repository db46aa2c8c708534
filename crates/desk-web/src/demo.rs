//! An invented shop: its traffic is counted, a scraper runs into a limit, one user is blocked, and its support
//! answers in the chat.

pub(crate) mod chat;

use std::sync::atomic::Ordering;
use std::time::Duration;

use desk::AppName;
use desk::PolicyName;
use desk::UserId;
use desk::limit::{LimitedParty, PolicySpec};
use desk::traffic::{FinishedRequest, RequestOutcome, Traffic};
use desk::users::{OpenOutcome, VerifiedLogin};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use web::App;
use web::demo::{report_end, tide};

use crate::service::Desk;

const BEAT: Duration = Duration::from_millis(250);

/// Endpoints of the shop: method, route, share of requests, usual time in ms.
const ENDPOINTS: [(&str, &str, f64, f64); 7] = [
    ("GET", "/", 0.20, 12.0),
    ("GET", "/products/:id", 0.35, 18.0),
    ("GET", "/search", 0.20, 45.0),
    ("POST", "/cart", 0.12, 25.0),
    ("POST", "/checkout", 0.05, 160.0),
    ("GET", "/account", 0.06, 30.0),
    ("POST", "/login", 0.02, 90.0),
];

/// Starts the shop, on `tasks` until `stop`.
pub(crate) fn start(desk: &Desk, _: &App, tasks: &TaskTracker, stop: &CancellationToken) {
    desk.is_demo.store(true, Ordering::Relaxed);
    if let Some(support) = desk.chat.clone() {
        let stop = stop.clone();
        tasks
            .spawn(async move { report_end(chat::run(support, stop).await, "the shop's support") });
    }
    let (desk, stop) = (desk.clone(), stop.clone());
    tasks.spawn(async move { report_end(run(desk, stop).await, "the shop's desk") });
}

async fn run(desk: Desk, stop: CancellationToken) -> anyhow::Result<()> {
    let shop = desk.traffic_of(Some(&AppName::parse("shop")?));
    let search = PolicySpec {
        algorithm: "sliding".to_owned(),
        limit: 20,
        window_ms: 10_000,
        ..PolicySpec::named("search")
    };
    desk.book.put(&search).await?;
    let burst = PolicySpec {
        algorithm: "bucket".to_owned(),
        limit: 600,
        window_ms: 60_000,
        burst: Some(50),
        shadow: true,
        ..PolicySpec::named("shop-burst")
    };
    desk.book.put(&burst).await?;
    users(&desk).await?;
    let connections: Vec<_> = (0..24).map(|_| shop.open_connection()).collect();
    let mut chance = fastrand::Rng::new();
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut beats = 0_u64;
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = stop.cancelled() => break,
        }
        beats += 1;
        let busy = tide(desk.store.now(), 240_000);
        let expected = (8.0 + 40.0 * busy) * BEAT.as_secs_f64();
        let count = expected.trunc() as u32 + u32::from(chance.f64() < expected.fract());
        for _ in 0..count {
            visit(&desk, &shop, &mut chance).await?;
        }
        // The scraper asks four times a second, and is turned away after twenty in ten seconds.
        search_as(&desk, &shop, "203.0.113.66", &mut chance).await?;
        if beats.is_multiple_of(4) {
            shop.flush().await?;
        }
    }
    drop(connections);
    shop.leave().await?;
    Ok(())
}

/// A few customers, one of them blocked for spam.
async fn users(desk: &Desk) -> anyhow::Result<()> {
    for (id, device) in [
        ("anna", "iPhone 15"),
        ("bert", "Firefox on Linux"),
        ("carla", "Pixel 9"),
        ("mallory", "curl"),
    ] {
        let user = UserId::parse(id)?;
        let address = Some([198, 51, 100, 7].into());
        let login = VerifiedLogin { device_id: device, ip_address: address, replaces: None };
        if let OpenOutcome::Opened(token) = desk.users.open_session(&user, login).await? {
            desk.users.check_token(&token.to_string()).await?;
        }
    }
    desk.users.block(&UserId::parse("mallory")?, "spam in reviews", None).await?;
    Ok(())
}

/// A request of a customer.
async fn visit(desk: &Desk, shop: &Traffic, chance: &mut fastrand::Rng) -> anyhow::Result<()> {
    let mut at = chance.f64();
    let chosen = ENDPOINTS.iter().find(|(_, _, share, _)| {
        at -= share;
        at <= 0.0
    });
    let (method, route, _, usual_ms) = chosen.unwrap_or(&ENDPOINTS[0]);
    let address = format!("198.51.100.{}", chance.u8(1..200));
    if *route == "/search" {
        return search_as(desk, shop, &address, chance).await;
    }
    let status = match chance.u8(0..100) {
        0 => 500,
        1..=3 => 404,
        4 if *route == "/login" => 401,
        _ => 200,
    };
    record(shop, method, route, status, usual_ms * (0.5 + 2.0 * chance.f64() * chance.f64()));
    let party = LimitedParty::ip(address.parse()?);
    if let Some(policy) = desk.book.find(&PolicyName::parse("shop-burst")?) {
        desk.book.check(&party, &[policy], 1, None).await?;
    }
    Ok(())
}

/// A search, which is limited.
async fn search_as(
    desk: &Desk,
    shop: &Traffic,
    address: &str,
    chance: &mut fastrand::Rng,
) -> anyhow::Result<()> {
    let Some(policy) = desk.book.find(&PolicyName::parse("search")?) else { return Ok(()) };
    let party = LimitedParty::ip(address.parse()?);
    let decision = desk.book.check(&party, &[policy], 1, None).await?;
    let status = if decision.allowed { 200 } else { 429 };
    let ms = if decision.allowed { 20.0 + 60.0 * chance.f64() } else { 0.4 };
    record(shop, "GET", "/search", status, ms);
    Ok(())
}

fn record(shop: &Traffic, method: &str, route: &str, status: u16, ms: f64) {
    shop.record(&FinishedRequest {
        method,
        route: Some(route),
        outcome: RequestOutcome::Status(status),
        is_refused: status == 429,
        duration: Duration::from_secs_f64(ms / 1e3),
    });
}
