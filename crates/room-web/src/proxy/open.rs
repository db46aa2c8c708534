//! Opens the proxy of a guarded site: its queue, its listener, its routes.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use room::{AdmissionRate, QueueConfig, QueueId, Room};
use serde_json::{Map, Value, json};
use web::cli::{Failure, Outcome, client};
use web::error::chain;
use web::serve::Server;
use web::serve::tls::Tls;
use web::service::ListenerTask;

use super::{Bypass, BypassTokens, GuardOptions};
use crate::config::{GuardSettings, HostPolicy};
use crate::service::RoomState;

/// Opens the proxy, if the settings name a site.
pub(crate) async fn open(
    settings: &GuardSettings,
    state: &RoomState,
    tls: Option<Arc<Tls>>,
) -> Outcome<Option<ListenerTask>> {
    let Some(origin) = settings.origin.0.clone() else { return Ok(None) };
    let room = &state.room;
    let queue = settings.queue.0.clone();
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
        error => Failure::failed(format!("cannot create the guard's queue: {}", chain(&error))),
    })?;
    for route in &settings.routes.0 {
        match room.create_queue(route.queue(), QueueConfig::default()).await {
            Ok(_) => tracing::info!(queue = %route.queue(), "created a queue for a route"),
            Err(room::Error::QueueExists) => {}
            Err(error) => {
                let message =
                    format!("cannot create the queue {}: {}", route.queue(), chain(&error));
                return Err(Failure::failed(message));
            }
        }
    }
    let listener =
        web::serve::bind(settings.listen, "the guarded site", "guard.listen", "--listen").await?;
    let guarding = GuardOptions {
        queue,
        routes: settings.routes.0.clone(),
        origin: origin.clone(),
        origin_ca: Some(settings.origin_ca.clone()).filter(|path| !path.as_os_str().is_empty()),
        keep_host: settings.host == HostPolicy::Keep,
        when_down: settings.when_down,
        max_body: settings.max_body.0,
        connect_timeout: settings.connect_timeout,
        answer_timeout: settings.answer_timeout,
        socket_idle_timeout: settings.socket_idle_timeout,
        bypass,
    };
    let router = super::guard(state.clone(), guarding).map_err(|error| {
        Failure::usage(format!("the site over https: {error}")).next("check guard.origin_ca")
    })?;
    let secure = tls.is_some();
    let mut server = Server::new(state.app.clone(), listener).with_router(router).as_proxy();
    if let Some(tls) = tls {
        server = server.with_tls(tls);
    }
    let address = server.address().context("cannot tell the guard's address")?;
    let base = client::base_of(address, secure);
    Ok(Some(ListenerTask {
        label: "Guard",
        address: format!("{base}/   (in front of {origin})"),
        run: Box::new(move |stop, drain| Box::pin(server.run(stop, drain))),
    }))
}

/// Reads the tokens of programs that need no pass.
fn tokens(path: &Path) -> Outcome<BypassTokens> {
    if path.as_os_str().is_empty() {
        return Ok(BypassTokens::default());
    }
    let wrong = |why: String| {
        Failure::usage(format!("guard.bypass_file: {}: {why}", path.display()))
            .next("a file with one token in each line, made with: openssl rand -hex 24")
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    BypassTokens::parse(&text).map_err(wrong)
}

/// Attribute of the queue with the guard's settings as last applied.
const APPLIED: &str = "guard";

/// Returns the guard's settings in the form that is stored.
fn to_applied(settings: &GuardSettings) -> Map<String, Value> {
    let rate = settings.rate.0.map(|rate| json!([rate.count, rate.per_seconds]));
    let most = settings.max_active.0.map(Value::from);
    [("rate", rate), ("max_active", most)]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

/// Creates the queue, or applies the settings to it unless they were applied before: changes an operator
/// made since are kept.
async fn prepare(
    room: &Room,
    queue: &QueueId,
    settings: &GuardSettings,
) -> Result<(), room::Error> {
    let named = to_applied(settings);
    let set = |config: &mut QueueConfig| {
        let mut applied = match config.attributes.remove(APPLIED) {
            Some(Value::Object(applied)) => applied,
            _ => Map::new(),
        };
        let is_new = |name: &str| named.contains_key(name) && named.get(name) != applied.get(name);
        if let Some(rate) = settings.rate.0.filter(|_| is_new("rate")) {
            config.admission = AdmissionRate::new(rate.count, rate.per_seconds);
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
            tracing::info!(%queue, "created the guard's queue");
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

/// Logs which settings were applied to an existing queue, and which were not and why.
fn report(queue: &QueueId, settings: &GuardSettings, before: &QueueConfig, now: &QueueConfig) {
    let of = |rate: AdmissionRate| format!("{} every {} s", rate.count, rate.per_seconds);
    let rate = settings.rate.0.map(|rate| of(AdmissionRate::new(rate.count, rate.per_seconds)));
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
                "not applied: the queue was changed since; `tidegate room set` changes it"
            );
        }
    }
}
