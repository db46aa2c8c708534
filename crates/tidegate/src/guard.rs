//! Starts the guard of a site: its queue, its listener, its routes.

use std::sync::Arc;

use anyhow::Context;
use api::App;
use api::guard::{Guarding, Origin, WhenDown};
use api::serve::Server;
use api::serve::tls::Tls;
use room::{QueueConfig, QueueId, Rate, Room};

use crate::client;
use crate::config::{Config, GuardConfig, value};
use crate::failure::{Failure, Outcome};
use crate::serve::{chain, listen};

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
    prepare(room, &queue, settings).await.map_err(|error| match error {
        room::Error::Invalid { field, message } => {
            Failure::usage(format!("the guard's queue: {field}: {message}"))
                .next("check guard.rate and guard.max_active")
        }
        error => Failure::failed(format!("cannot make the guard's queue: {}", chain(&error))),
    })?;
    let listener = listen(settings.listen, "guard.listen", "--listen").await?;
    let guarding = Guarding {
        queue,
        origin: origin.clone(),
        keep_host: settings.host == value::HostPolicy::Keep,
        when_down: match settings.when_down {
            value::WhenDown::Open => WhenDown::Open,
            value::WhenDown::Closed => WhenDown::Closed,
        },
        max_body: settings.max_body.0,
        connect_timeout: settings.connect_timeout,
        answer_timeout: settings.answer_timeout,
        open_paths: settings.open_paths.0.clone(),
    };
    let router = api::guard::guard(app.clone(), guarding);
    let secure = tls.is_some();
    let mut server = Server::new(app.clone(), listener).with_router(router);
    if let Some(tls) = tls {
        server = server.with_tls(tls);
    }
    let address = server.address().context("cannot tell the guard's address")?;
    Ok(Some(Guarded { server, base: client::base_of(address, secure), origin }))
}

/// Makes the queue, or sets in it what the settings name.
async fn prepare(room: &Room, queue: &QueueId, settings: &GuardConfig) -> Result<(), room::Error> {
    let set = |config: &mut QueueConfig| {
        if let Some(rate) = settings.rate.0 {
            config.admission = Rate::new(rate.count, rate.per_seconds);
        }
        if let Some(most) = settings.max_active.0 {
            config.max_active = most;
        }
    };
    let mut config = QueueConfig::default();
    set(&mut config);
    match room.create_queue(queue, config).await {
        Err(room::Error::QueueExists) => {}
        made => return made.map(drop),
    }
    if settings.rate.0.is_some() || settings.max_active.0.is_some() {
        room.change_queue(queue, None, set).await?;
    }
    Ok(())
}
