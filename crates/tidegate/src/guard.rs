//! Starts the guard of a site: its queue, its listener, its routes.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use api::App;
use api::error::chain;
use api::guard::{Bypass, Guarding, Origin, Tokens, WhenDown};
use api::serve::Server;
use api::serve::tls::Tls;
use room::{QueueConfig, QueueId, Rate, Room};
use serde_json::{Map, Value, json};

use crate::client;
use crate::config::{Config, GuardConfig, value};
use crate::failure::{Failure, Outcome};
use crate::serve::listen;

/// A guard that is about to run.
#[derive(Debug)]
pub(crate) struct Guarded {
    pub(crate) server: Server,
    /// Where visitors come to.
    pub(crate) base: String,
    /// Where the site is.
    pub(crate) origin: Origin,
}

/// Opens the guard, if the settings name a site.
pub(crate) async fn open(
    config: &Config,
    app: &App,
    tls: Option<Arc<Tls>>,
) -> Outcome<Option<Guarded>> {
    let settings = &config.guard;
    let Some(origin) = settings.origin.0.clone() else { return Ok(None) };
    let Some(room) = &app.services().room else {
        return Err(Failure::usage("guard.origin is set, but the waiting room does not run here")
            .next("--only room, or leave guard.origin out"));
    };
    let queue = QueueId::parse(&settings.queue).map_err(|error| {
        Failure::usage(format!("guard.queue: {error}")).next("a-z, 0-9 and -, up to 63")
    })?;
    let bypass = Bypass {
        paths: settings.open_paths.0.clone(),
        networks: settings.open_networks.0.clone(),
        tokens: tokens(&settings.bypass_file)?,
    };
    prepare(room, &queue, settings).await.map_err(|error| match error {
        room::Error::Invalid { field, message } => {
            Failure::usage(format!("the guard's queue: {field}: {message}"))
                .next("check guard.rate and guard.max_active")
        }
        error => Failure::failed(format!("cannot make the guard's queue: {}", chain(&error))),
    })?;
    for route in &settings.routes.0 {
        match room.create_queue(route.queue(), QueueConfig::default()).await {
            Ok(_) => tracing::info!(queue = %route.queue(), "made a queue for a route"),
            Err(room::Error::QueueExists) => {}
            Err(error) => {
                let told = format!("cannot make the queue {}: {}", route.queue(), chain(&error));
                return Err(Failure::failed(told));
            }
        }
    }
    let listener = listen(settings.listen, "guard.listen", "--listen").await?;
    let guarding = Guarding {
        queue,
        routes: settings.routes.0.clone(),
        origin: origin.clone(),
        origin_ca: Some(settings.origin_ca.clone()).filter(|path| !path.as_os_str().is_empty()),
        keep_host: settings.host == value::HostPolicy::Keep,
        when_down: match settings.when_down {
            value::WhenDown::Open => WhenDown::Open,
            value::WhenDown::Closed => WhenDown::Closed,
        },
        max_body: settings.max_body.0,
        connect_timeout: settings.connect_timeout,
        answer_timeout: settings.answer_timeout,
        socket_idle_timeout: settings.socket_idle_timeout,
        bypass,
    };
    let router = api::guard::guard(app.clone(), guarding).map_err(|error| {
        Failure::usage(format!("the site over https: {error}")).next("check guard.origin_ca")
    })?;
    let secure = tls.is_some();
    let mut server = Server::new(app.clone(), listener).with_router(router);
    if let Some(tls) = tls {
        server = server.with_tls(tls);
    }
    let address = server.address().context("cannot tell the guard's address")?;
    Ok(Some(Guarded { server, base: client::base_of(address, secure), origin }))
}

/// Reads the tokens of programs that need no pass.
fn tokens(path: &Path) -> Outcome<Tokens> {
    if path.as_os_str().is_empty() {
        return Ok(Tokens::default());
    }
    let wrong = |why: String| {
        Failure::usage(format!("guard.bypass_file: {}: {why}", path.display()))
            .next("a file with one token in each line, made with: openssl rand -hex 24")
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    Tokens::parse(&text).map_err(wrong)
}

/// Where the queue remembers what the guard's settings were when they were last applied.
const APPLIED: &str = "guard";

/// The guard's settings as they are remembered.
fn named(settings: &GuardConfig) -> Map<String, Value> {
    let rate = settings.rate.0.map(|rate| json!([rate.count, rate.per_seconds]));
    let most = settings.max_active.0.map(Value::from);
    [("rate", rate), ("max_active", most)]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

/// Makes the queue, or sets in it what the settings name, unless they were applied before: what an
/// operator changed while the queue ran stays.
async fn prepare(room: &Room, queue: &QueueId, settings: &GuardConfig) -> Result<(), room::Error> {
    let named = named(settings);
    let set = |config: &mut QueueConfig| {
        let mut applied = match config.attributes.remove(APPLIED) {
            Some(Value::Object(applied)) => applied,
            _ => Map::new(),
        };
        let is_new = |name: &str| named.contains_key(name) && named.get(name) != applied.get(name);
        if let Some(rate) = settings.rate.0.filter(|_| is_new("rate")) {
            config.admission = Rate::new(rate.count, rate.per_seconds);
        }
        if let Some(most) = settings.max_active.0.filter(|_| is_new("max_active")) {
            config.max_active = most;
        }
        applied.extend(named.clone());
        if !applied.is_empty() {
            config.attributes.insert(APPLIED.to_owned(), Value::Object(applied));
        }
    };
    let mut config = QueueConfig::default();
    set(&mut config);
    match room.create_queue(queue, config).await {
        Err(room::Error::QueueExists) => {}
        made => {
            tracing::info!(%queue, "made the guard's queue");
            return made.map(drop);
        }
    }
    let before = room.queue(queue).await?.config;
    let mut wanted = before.clone();
    set(&mut wanted);
    if wanted != before {
        room.change_queue(queue, None, set).await?;
    }
    report(queue, settings, &before, &wanted);
    Ok(())
}

/// Says which settings were applied to a queue that was there, and which were not and why.
fn report(queue: &QueueId, settings: &GuardConfig, before: &QueueConfig, now: &QueueConfig) {
    let of = |rate: Rate| format!("{} every {} s", rate.count, rate.per_seconds);
    let rate = settings.rate.0.map(|rate| of(Rate::new(rate.count, rate.per_seconds)));
    let most = settings.max_active.0.map(|most| most.to_string());
    for (setting, wanted, was, is) in [
        ("guard.rate", rate, of(before.admission), of(now.admission)),
        ("guard.max_active", most, before.max_active.to_string(), now.max_active.to_string()),
    ] {
        let Some(wanted) = wanted else { continue };
        if is != was {
            tracing::info!(%queue, setting, from = was, to = is, "applied to the queue");
        } else if is != wanted {
            tracing::info!(
                %queue, setting, given = wanted, kept = is,
                "the queue was changed since this was applied, and stays as it is; \
                 `tidegate room set` changes it"
            );
        }
    }
}
