//! The RESP listener of the built-in store, and `tidegate store serve`, which runs only that.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use resp::{RespListener, TlsSource};
use store::Store;
use store::embedded::Embedded;
use tokio_util::sync::CancellationToken;
use web::error::chain;
use web::serve::tls::Tls;

use crate::serve::{end_when_asked, open_store, open_tls};
use crate::shutdown::ShutdownSignals;
use web::cli::Context;
use web::cli::admin_token;
use web::cli::{Failure, Outcome};
use web::config::Config;
use web::protected::ProtectedKeys;

use crate::services::SERVICES;
use crate::{logging, store_password};

/// Commands that the default user of an open port may not run: those that would lift its limits,
/// take control keys away with all others, show what others send, or end the process.
const FORBIDDEN: &[&str] = &[
    "-acl",
    "+acl|whoami",
    "+acl|cat",
    "+acl|genpass",
    "+acl|help",
    "-config|set",
    "-config|rewrite",
    "-debug",
    "-flushall",
    "-flushdb",
    "-monitor",
    "-replicaof",
    "-shutdown",
    "-slaveof",
    "-slowlog|get",
    "-swapdb",
];

/// Opens the port if the store is the built-in one and the setting does not say `off`.
pub(crate) fn open(
    config: &Config,
    store: &Store,
    tls: Option<&Arc<Tls>>,
) -> Outcome<Option<RespListener>> {
    match (config.resp.listen.0, store.embedded()) {
        (Some(address), Some(embedded)) => {
            restrict(config, address, embedded)?;
            listen(config, address, store, tls).map(Some)
        }
        _ => Ok(None),
    }
}

/// On loopback the default user needs no password and may do everything, except with control keys.
/// The owner, and elsewhere everybody, shows the password in the data folder.
fn restrict(config: &Config, address: SocketAddr, embedded: &Embedded) -> Outcome {
    admin_token::make_folder(&config.server.data)?;
    let password = store_password::read_or_make(&config.server.data)?;
    let given = format!(">{password}");
    let all = ["reset", "on", &given, "~*", "&*", "+@all"];
    let set = |name: &str, rules: &[&str]| {
        embedded.set_user(name, rules).map_err(|error| {
            Failure::failed(format!("cannot set up the user {name} of the RESP port: {error}"))
        })
    };
    set(store_password::USER, &all)?;
    embedded.set_owner(store_password::USER);
    if !address.ip().is_loopback() {
        return set("default", &all);
    }
    let excluded: Vec<String> = ProtectedKeys::of(SERVICES)
        .prefixes()
        .iter()
        .map(|prefix| format!("-~{prefix}*"))
        .collect();
    let mut rules = vec!["reset", "on", "nopass", "~*", "&*", "+@all"];
    rules.extend(excluded.iter().map(String::as_str));
    rules.extend(FORBIDDEN);
    set("default", &rules)
}

/// The certificate of the HTTP side, if this port is to speak TLS.
fn certificate(config: &Config, tls: Option<&Arc<Tls>>) -> Outcome<Option<TlsSource>> {
    match (config.resp.tls, tls) {
        (false, _) => Ok(None),
        (true, Some(tls)) => {
            let tls = Arc::clone(tls);
            Ok(Some(TlsSource::new(move || tls.current())))
        }
        (true, None) => Err(Failure::usage("resp.tls needs a certificate")
            .next("set http.tls_cert and http.tls_key")),
    }
}

fn listen(
    config: &Config,
    address: SocketAddr,
    store: &Store,
    tls: Option<&Arc<Tls>>,
) -> Outcome<RespListener> {
    let embedded = store.embedded().ok_or_else(|| {
        Failure::usage("only the built-in store has a RESP port of its own")
            .next("--store embedded:FOLDER; another store is reached at its own address")
    })?;
    let listening = resp::Config { tls: certificate(config, tls)?, ..resp::Config::at(address) };
    RespListener::start(embedded.clone(), listening).map_err(|error| {
        Failure::failed(chain(&error)).next("set resp.listen to another address:port, or to `off`")
    })
}

/// Returns the URL for clients.
pub(crate) fn url(config: &Config, listener: &RespListener) -> String {
    let scheme = if config.resp.tls { "rediss" } else { "redis" };
    format!("{scheme}://{}", listener.address())
}

/// `tidegate store serve`: the built-in store over RESP and nothing else.
pub(crate) fn serve(context: &Context<'_>) -> Outcome {
    let output = context.output;
    let mut sources = context.sources()?;
    // Here `--listen` means this port: there is no other.
    for (name, ..) in &mut sources.flags {
        if name == "http.listen" {
            *name = "resp.listen".to_owned();
        }
    }
    let config = web::cli::load(&sources)?.config;
    logging::start(&config.log)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let signals = ShutdownSignals::new()?;
        let address = config.resp.listen.0.ok_or_else(|| {
            Failure::usage("resp.listen is off: there is nothing to serve")
                .next("--listen 127.0.0.1:6380")
        })?;
        let tls = open_tls(&config)?;
        let store = open_store(&config).await?;
        // A store in memory that no service uses has no control keys.
        if let Some(embedded) = store.embedded()
            && (config.store_folder().is_some() || !address.ip().is_loopback())
        {
            restrict(&config, address, embedded)?;
        }
        let listener = listen(&config, address, &store, tls.as_ref())?;
        output.note(&format!("The store is at {}", url(&config, &listener)));
        let stop = CancellationToken::new();
        let reload = move || {
            if let Some(Err(error)) = tls.as_deref().map(Tls::reload) {
                tracing::error!(problem = %error, "certificate not reloaded; the old one stays");
            }
        };
        let watcher = tokio::spawn(signals.watch(stop.clone(), reload));
        // Returns only when there is a reason to stop.
        end_when_asked(store.clone(), stop.clone()).await;
        watcher.abort();
        drop(listener);
        Ok(())
    })
}
