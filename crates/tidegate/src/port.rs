//! The RESP port of the built-in store, and `tidegate store serve`, which runs only that.

use std::net::SocketAddr;

use anyhow::Context;
use api::auth::Secret;
use api::error::chain;
use resp::Listener;
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::admin_token::{self, AdminToken};
use crate::cli::Global;
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::serve::{end_when_asked, open_store};
use crate::shutdown::Signals;
use crate::{cli, logging};

/// Opens the port if the store is the built-in one and the setting does not say `off`. Anywhere
/// but on loopback it asks for the admin token.
pub(crate) fn open(
    config: &Config,
    store: &Store,
    token: &AdminToken,
) -> Outcome<Option<Listener>> {
    match (config.resp.listen.0, store.embedded()) {
        (Some(address), Some(_)) => listen(address, store, || Ok(token.secret.clone())).map(Some),
        _ => Ok(None),
    }
}

fn listen(
    address: SocketAddr,
    store: &Store,
    token: impl FnOnce() -> Outcome<Secret>,
) -> Outcome<Listener> {
    let embedded = store.embedded().ok_or_else(|| {
        Failure::usage("only the built-in store has a RESP port of its own")
            .next("--store embedded:FOLDER; another store is reached at its own address")
    })?;
    if !address.ip().is_loopback() {
        embedded.set_password(token()?.reveal());
    }
    Listener::start(embedded.clone(), resp::Config::at(address)).map_err(|error| {
        Failure::failed(chain(&error)).next("set resp.listen to another address:port, or to `off`")
    })
}

/// `tidegate store serve`: the built-in store over RESP and nothing else.
pub(crate) fn serve(global: &Global, output: &Output) -> Outcome {
    let mut sources = global.sources()?;
    // Here `--listen` means this port: there is no other.
    for (name, ..) in &mut sources.flags {
        if name == "http.listen" {
            *name = "resp.listen".to_owned();
        }
    }
    let config = cli::load(&sources)?.config;
    logging::start(&config.log)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let signals = Signals::new()?;
        let address = config.resp.listen.0.ok_or_else(|| {
            Failure::usage("resp.listen is off: there is nothing to serve")
                .next("--listen 127.0.0.1:6380")
        })?;
        let store = open_store(&config).await?;
        let listener = listen(address, &store, || {
            admin_token::make_folder(&config.server.data)?;
            Ok(admin_token::read_or_make(&config.server.data)?.secret)
        })?;
        output.note(&format!("The store is at redis://{}", listener.address()));
        let stop = CancellationToken::new();
        let watcher = tokio::spawn(signals.watch(stop.clone(), || {}));
        // Returns only when there is a reason to stop.
        end_when_asked(store.clone(), stop.clone()).await;
        watcher.abort();
        drop(listener);
        Ok(())
    })
}
