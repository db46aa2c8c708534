//! `tidegate serve`: what happens between the command and the first request, in this order:
//! settings, data folder and token, the listening socket, the store, the services, the listeners.
//! Stopping goes the other way round.

use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use resp::RespListener;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use web::error::chain;
use web::serve::tls::Tls;

use web::cli::admin_token::{self, AdminTokenFile};
use web::cli::client::{self, RUNNING, RunningServer};
use web::cli::{Failure, Outcome, Output, Progress, Tone, size_of};
use web::config::load::{LoadedConfig, SettingOrigin, Sources, find};
use web::config::value::hide_password;
use web::config::{Config, settings as all_settings};
use web::pages::settings::ShownSetting;
use web::seal::Seal;
use web::serve::{Server, bind};
use web::service::{self, ListenSetup, ListenerTask, OpenService, Opening};
use web::{App, AppParts, Settings};

use crate::cli::transfer;
use crate::services::SERVICES;
use crate::shutdown::ShutdownSignals;
use crate::{logging, resp_listener, store_password};

/// Runs until told to stop.
pub(crate) fn run(sources: Sources, output: &Output, listen_flag: &str) -> Outcome {
    run_with(sources, output, None, listen_flag)
}

/// A function that starts something extra once the server is up, on these tasks, until told to stop.
pub(crate) type Extra = fn(&App, &TaskTracker, &CancellationToken);

/// Runs until told to stop, with something extra. `listen_flag` is the option of the command that
/// moves dashboard and API to another address.
pub(crate) fn run_with(
    sources: Sources,
    output: &Output,
    extra: Option<Extra>,
    listen_flag: &str,
) -> Outcome {
    let loaded = web::cli::load(&sources)?;
    logging::start(&loaded.config.log)?;
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("tidegate")
        // The allocator gives memory back to the system when a thread ends. Threads for blocking work that
        // periodic work keeps alive would hold what a start or a long list took for good.
        .thread_keep_alive(std::time::Duration::from_secs(2))
        .build()
        .context("cannot start the runtime")?;
    // For the whole process: one whose store is moved goes on with the same.
    let traces = {
        let _runtime = runtime.enter();
        web::otel::start(&loaded.config.otel, &instance(&loaded.config), "serve")
    };
    let served = serve_on(&runtime, sources, loaded, output, extra, listen_flag);
    if let Some(traces) = traces {
        runtime.block_on(traces.finish());
    }
    served
}

/// Raises the limit of open files as far as the system lets a process do so. Shells and service managers start
/// it at 1,024, for the sake of programs that use select(2).
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Serves, and goes on where the store was moved to, until told to stop.
fn serve_on(
    runtime: &tokio::runtime::Runtime,
    mut sources: Sources,
    mut loaded: LoadedConfig,
    output: &Output,
    extra: Option<Extra>,
    listen_flag: &str,
) -> Outcome {
    loop {
        let ended = runtime.block_on(serve(sources.clone(), loaded, output, extra, listen_flag))?;
        let Some(Continuation { store_url, listen }) = ended else { return Ok(()) };
        tracing::warn!(
            store = %hide_password(&store_url),
            "the store was moved: going on with its new place; set store.url before the next start"
        );
        let flag = |name: &str, value| (name.to_owned(), value, "store move".to_owned());
        sources.flags.push(flag("store.url", store_url));
        sources.flags.push(flag("http.listen", listen));
        loaded = web::cli::load(&sources)?;
    }
}

/// A server whose store was moved while it ran goes on with these.
struct Continuation {
    store_url: String,
    listen: String,
}

async fn serve(
    sources: Sources,
    loaded: LoadedConfig,
    output: &Output,
    extra: Option<Extra>,
    listen_flag: &str,
) -> Outcome<Option<Continuation>> {
    let config = loaded.config.clone();
    let signals = ShutdownSignals::new()?;
    admin_token::make_folder(&config.server.data)
        .map_err(|error| Failure::from(error).next("--data FOLDER, or set server.data"))?;
    let token = admin_token::read_or_make(&config.server.data)?;
    let listener =
        bind(config.http.listen, "dashboard and API", "http.listen", listen_flag).await?;
    let tls = open_tls(&config)?;
    web::metrics::install(SERVICES);
    let store = open_seen(&config, output).await?;

    let resp = resp_listener::open(&config, &store, tls.as_ref())?;

    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    tasks.spawn(end_when_asked(store.clone(), stop.clone()));
    let name = instance(&config);
    let services = open_services(&loaded, &store, &name).await?;
    let app = App::new(AppParts {
        store: store.clone(),
        services,
        known_services: SERVICES,
        settings: settings(&config),
        admin_token: Some(token.secret.clone()),
        instance: name,
        shown_settings: shown_settings(&loaded),
    });
    service::start_background(&app, &tasks, &stop);
    tasks.spawn(web::series::run(app.clone(), stop.clone()));
    // Other instances on the same store should accept this token too; if that fails now, it is
    // only this instance that knows it, and the log says so.
    match app.auth().share_admin_token(&store).await {
        Ok(true) => {}
        Ok(false) => tracing::warn!(
            path = %token.path.display(),
            "the admin token in the data folder was revoked; `tidegate token reset-admin` makes a new one"
        ),
        Err(error) => {
            tracing::warn!(
                error = error.message(),
                "the admin token is known to this instance only"
            );
        }
    }
    tasks.spawn(follow_admin_token(app.clone(), config.server.data.clone(), stop.clone()));
    tasks.spawn(web::audit::run(app.clone(), stop.clone()));
    app.webhooks().set_seal(webhook_seal(&config)?);
    tasks.spawn(web::webhook::run(app.clone(), stop.clone()));

    let mut server = Server::new(app.clone(), listener);
    if let Some(tls) = &tls {
        server = server.with_tls(tls.clone());
    }
    let address = server.address().context("cannot tell the listening address")?;
    let base = client::base_of(address, tls.is_some());
    let listeners = listen(&app, &loaded, tls.as_ref()).await?;
    let resp_url = resp.as_ref().map(|resp| resp_listener::url(&config, resp));
    leave_note(&config.server.data, &base, resp_url);
    let demo = match extra {
        Some(_) => demo_lines(&app, &base, &token, address)?,
        None => Vec::new(),
    };
    banner(output, &config, &base, resp.as_ref(), &listeners, &token, &demo)?;
    let listening = TaskTracker::new();
    for listener in listeners {
        listening.spawn((listener.run)(stop.clone(), config.server.drain));
    }
    listening.close();
    tracing::info!(http = %base, store = %hide_password(&config.store_url()), "started");

    if let Some(extra) = extra {
        extra(&app, &tasks, &stop);
    }

    let watcher = tokio::spawn(signals.watch(stop.clone(), {
        let app = app.clone();
        let mut current = loaded;
        move || reload(&sources, &mut current, &app, tls.as_deref())
    }));
    server.run(stop.clone(), config.server.drain).await;
    // Changes whose clients hung up end, too; each has a deadline of its own.
    app.join().await;
    // The services' background work ends after the last request.
    tasks.close();
    tasks.wait().await;
    drop(resp);
    // Clients of the services' own listeners had the same time to finish.
    listening.wait().await;
    watcher.abort();
    // Gone or not, the note is only a hint.
    let _ = std::fs::remove_file(config.server.data.join(RUNNING));
    tracing::info!("stopped");
    let moved_to = config.store_folder().and_then(|folder| transfer::forward_of(&folder));
    Ok(moved_to.map(|store_url| Continuation { store_url, listen: address.to_string() }))
}

/// Takes over a new admin token that `tidegate token reset-admin` left in the data folder.
async fn follow_admin_token(app: App, data: std::path::PathBuf, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(std::time::Duration::from_millis(500)) => {}
            () = stop.cancelled() => return,
        }
        // A file that is gone or half written says nothing; the next look may.
        let Some(secret) = admin_token::read(&data).ok().and_then(admin_token::usable) else {
            continue;
        };
        match app.auth().replace_admin_token(app.store(), &secret).await {
            Ok(true) => tracing::info!("a new admin token was taken over; the old one is revoked"),
            Ok(false) => {}
            Err(error) => tracing::warn!(error = error.message(), "the new admin token must wait"),
        }
    }
}

/// Stops everything in order when a client of the built-in store says SHUTDOWN.
pub(crate) async fn end_when_asked(store: Store, stop: CancellationToken) {
    let Some(embedded) = store.embedded() else { return };
    tokio::select! {
        () = embedded.asked_to_end() => stop.cancel(),
        () = stop.cancelled() => {}
    }
}

/// Opens the services that run here.
async fn open_services(
    loaded: &LoadedConfig,
    store: &Store,
    name: &str,
) -> Outcome<Vec<OpenService>> {
    let (config, values) = (&loaded.config, &loaded.values);
    let mut services = Vec::new();
    for service in SERVICES.iter().copied().filter(|service| config.runs(*service)) {
        let opening = Opening { store, config, values, instance: name };
        services.push(OpenService { service, running: service.open(opening).await? });
    }
    Ok(services)
}

/// Reads the secret that seals webhooks, or makes it.
fn webhook_seal(config: &Config) -> Outcome<Seal> {
    let file = &config.webhooks.secret_file;
    let kept = config.server.data.join("webhook-secret");
    Seal::read_or_make(if file.as_os_str().is_empty() { &kept } else { file })
        .map_err(|failure| failure.next("check webhooks.secret_file"))
}

/// Opens the listeners of the services.
async fn listen(
    app: &App,
    loaded: &LoadedConfig,
    tls: Option<&Arc<Tls>>,
) -> Outcome<Vec<ListenerTask>> {
    let mut listeners = Vec::new();
    for open in app.services() {
        let setup = ListenSetup { app, values: &loaded.values, tls };
        listeners.extend(open.running.listen(setup).await?);
    }
    Ok(listeners)
}

/// Reads certificate and key, when they are set.
pub(crate) fn open_tls(config: &Config) -> Outcome<Option<Arc<Tls>>> {
    let http = &config.http;
    if http.tls_cert.as_os_str().is_empty() {
        return Ok(None);
    }
    match Tls::load(&http.tls_cert, &http.tls_key) {
        Ok(tls) => Ok(Some(Arc::new(tls))),
        Err(error) => {
            Err(Failure::usage(error.to_string()).next("check http.tls_cert and http.tls_key"))
        }
    }
}

/// Opens the store with a bar on a terminal: reading a large one takes a while.
async fn open_seen(config: &Config, output: &Output) -> Outcome<Store> {
    let url = config.store_url();
    let size = url.strip_prefix("embedded:").filter(|path| !path.is_empty()).map(Path::new);
    let _progress = size.map(size_of).filter(|size| *size > 0).map(|size| {
        Progress::of_bytes(output, "reading the store", size, store::embedded::bytes_read)
    });
    open_store(config).await
}

/// Opens the store the settings name.
pub(crate) async fn open_store(config: &Config) -> Outcome<Store> {
    let url = config.store_url();
    let options = store::Options {
        fsync: config.store.fsync,
        maxmemory: Some(config.store.max_memory.0).filter(|limit| *limit > 0),
        maxmemory_policy: config.store.max_memory_policy,
        ..store::Options::default()
    };
    if let Some(folder) = config.store_folder()
        && let Some(to) = transfer::forward_of(&folder)
    {
        return Err(transfer::was_moved(&folder, &to));
    }
    let url = store_password::fill_in(&url, config);
    let store = Store::open_with(&url, options).await.map_err(|error| {
        let told = format!("cannot open the store {}: {}", hide_password(&url), chain(&error));
        let folder = config.store_folder().unwrap_or_default();
        let folder = folder.display();
        match error {
            store::Error::Unavailable { .. } => {
                Failure::unreachable(told).next("is the server up? set another with --store URL")
            }
            store::Error::Damaged { .. } => Failure::failed(told).next(format!(
                "tidegate store check {folder}   (--repair NEW_FOLDER keeps what is good)"
            )),
            store::Error::Locked { pid: Some(pid), .. } => Failure::failed(told)
                .next(format!("stop process {pid}, or name another folder with --data or --store")),
            store::Error::Locked { pid: None, .. } => Failure::failed(told)
                .next("stop that process, or name another folder with --data or --store"),
            store::Error::ReadOnlyDisk { .. } => Failure::failed(told)
                .next("mount it for writing, or name another folder with --data or --store"),
            store::Error::Denied { .. } => {
                Failure::failed(told).next("name the user in the URL: redis://user:password@host")
            }
            _ => Failure::failed(told).next("--store URL; `tidegate serve --help` shows the kinds"),
        }
    })?;
    match store::transfer::unfinished(&store).await {
        Ok(Some(source)) => Err(Failure::failed(format!(
            "the store {} holds an unfinished copy of {source}",
            hide_password(&url)
        ))
        .next("run the same `tidegate store move` or `restore` again to finish it")),
        // What cannot be read now is told by what needs it.
        Ok(None) | Err(_) => Ok(store),
    }
}

/// The HTTP side's settings.
fn settings(config: &Config) -> Settings {
    let (http, auth) = (&config.http, &config.auth);
    Settings {
        max_body: usize::try_from(http.max_body.0).unwrap_or(usize::MAX),
        body_timeout: http.body_timeout,
        header_timeout: http.header_timeout,
        idle_timeout: http.idle_timeout,
        write_timeout: http.write_timeout,
        max_connections: http.max_connections,
        max_connections_per_address: http.max_connections_per_address,
        http2_max_streams: http.http2_max_streams,
        trusted_proxies: http.trusted_proxies.0.clone(),
        client_address_header: http.client_address_header.clone(),
        open_metrics: http.open_metrics,
        session_idle: auth.session_idle,
        session_max: auth.session_max,
        login_tries: auth.login_tries,
        login_lock: auth.login_lock,
        audit_keep: config.audit.keep,
        webhook_networks: config.webhooks.allowed_networks.0.clone(),
    }
}

/// The configuration as the settings page shows it, without secrets.
fn shown_settings(loaded: &LoadedConfig) -> Vec<ShownSetting> {
    all_settings(SERVICES)
        .filter_map(|setting| {
            let given = loaded.values.get(setting.name)?;
            Some(ShownSetting {
                name: setting.name.to_owned(),
                value: (setting.shown)(&given.text),
                origin: given.origin.to_string(),
                changed: given.origin != SettingOrigin::Default,
                doc: setting.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" "),
                live: setting.live,
            })
        })
        .collect()
}

/// Reads the configuration again. A mistake leaves everything as it is.
fn reload(sources: &Sources, current: &mut LoadedConfig, app: &App, tls: Option<&Tls>) {
    match tls.map(Tls::reload) {
        Some(Ok(true)) => tracing::info!("certificate reloaded; new connections get it"),
        Some(Err(error)) => {
            tracing::error!(problem = %error, "certificate not reloaded; the old one stays");
        }
        Some(Ok(false)) | None => {}
    }

    let new = match sources.load() {
        Ok(new) => new,
        Err(problems) => {
            for problem in problems {
                tracing::error!(problem = %problem, "configuration not reloaded");
            }
            return;
        }
    };
    let changed: Vec<&str> = new
        .values
        .iter()
        .filter(|(name, given)| current.values.get(name).is_none_or(|old| old.text != given.text))
        .map(|(name, _)| name)
        .collect();
    let is_live = |name: &str| find(SERVICES, name).is_some_and(|setting| setting.live);
    let (now, later): (Vec<&str>, Vec<&str>) = changed.into_iter().partition(|name| is_live(name));
    if let Err(failure) = logging::set_levels(&new.config.log.level) {
        tracing::error!(problem = %failure.message, "configuration not reloaded");
        return;
    }
    app.set_settings(settings(&new.config), shown_settings(&new));
    for open in app.services() {
        open.running.reload(&new.values);
    }
    tracing::info!(applied = ?now, "configuration reloaded");
    if !later.is_empty() {
        tracing::warn!(settings = ?later, "these changes count after a restart");
    }
    *current = new;
}

pub(crate) fn instance(config: &Config) -> String {
    if !config.server.name.is_empty() {
        return config.server.name.clone();
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_else(|_| "tidegate".to_owned());
    format!("{host}:{}", std::process::id())
}

/// Tells commands on this machine where the server is.
fn leave_note(data: &Path, base: &str, resp: Option<String>) {
    let note = RunningServer { http: base.to_owned(), pid: std::process::id(), resp };
    let written = serde_json::to_vec(&note)
        .map_err(io::Error::other)
        .and_then(|json| std::fs::write(data.join(RUNNING), json));
    if let Err(error) = written {
        tracing::warn!(error = %error, "cannot leave a note in the data folder; commands on this machine need --server");
    }
}

/// The lines of a demo's banner: a link that logs in once, and pages worth opening.
fn demo_lines(
    app: &App,
    base: &str,
    token: &AdminTokenFile,
    address: std::net::SocketAddr,
) -> Outcome<Vec<(String, String)>> {
    let link = app
        .auth()
        .make_login_link(app.store(), token.secret.reveal(), address.ip())
        .map_err(|error| Failure::failed(error.message().to_owned()))?;
    let mut lines = vec![
        ("Log in".to_owned(), format!("{base}{link}")),
        (String::new(), "works once, within ten minutes, in a browser on this machine".to_owned()),
    ];
    for (label, path) in service::demo_pages(app) {
        lines.push(((*label).to_owned(), format!("{base}{path}")));
    }
    Ok(lines)
}

/// Prints the addresses. The token is shown only when it was made just now.
fn banner(
    output: &Output,
    config: &Config,
    base: &str,
    resp: Option<&RespListener>,
    listeners: &[ListenerTask],
    token: &AdminTokenFile,
    demo: &[(String, String)],
) -> Outcome {
    let mut lines = vec![
        String::new(),
        format!("  {} {}", output.paint(Tone::Strong, "Tidegate"), env!("CARGO_PKG_VERSION")),
        String::new(),
        format!("  Dashboard    {base}/"),
    ];
    for (label, text) in demo {
        match label.as_str() {
            "" => lines.push(format!("               {}", output.paint(Tone::Dim, text))),
            label => lines.push(format!("  {label:<12} {text}")),
        }
    }
    lines.extend([
        format!("  API          {base}/api   (OpenAPI: {base}/api/openapi.json)"),
        format!("  Docs         {base}/docs"),
        format!("  Store        {}", hide_password(&config.store_url())),
    ]);
    for listener in listeners {
        lines.push(format!("  {:<12} {}", listener.label, listener.address));
    }
    if let Some(resp) = resp {
        lines.push(format!("  RESP         {}", resp_listener::url(config, resp)));
    }
    if token.is_new {
        lines.push(format!("  Admin token  {}", output.paint(Tone::Strong, token.secret.reveal())));
        let note = format!("shown this once; kept in {}", token.path.display());
        lines.push(format!("               {}", output.paint(Tone::Dim, &note)));
    } else {
        lines.push(format!("  Admin token  in {}", token.path.display()));
    }
    lines.push(String::new());
    output.text(&(lines.join("\n") + "\n"))
}
