//! The resolver as a service of the product.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::FromRef;
use axum::routing::get;
use clap::{CommandFactory, FromArgMatches};
use dns::{
    AllowRequests, DesignatedEndpoints, InstanceInfo, ListenOptions, ListenStats, Listeners,
    Policy, QueryLog, QueryLogOptions, Resolver, SeenClients, UpstreamNeeds,
};
use futures_util::future::BoxFuture;
use maud::{Markup, html};
use parking_lot::Mutex;
use store::{history::OwnSample, key_map::KeyMap};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;
use web::cli::{Action, Context, Failure, Outcome};
use web::config::load::Problem;
use web::config::{Config, Section, Values};
use web::doctor::{Diagnosis, Finding};
use web::error::chain;
use web::health::Check;
use web::metrics::MetricInfo;
use web::search::SearchHit;
use web::serve::tls::Tls;
use web::service::{
    FirstStep, Fragments, ListenSetup, ListenerTask, OpenService, Opening, RunningService, Service,
};
use web::ui::{self, NavGroup, NavItem};
use web::webhook::EventType;
use web::{App, Routes, chart, format};

use crate::cli::{self, DnsCommand};
use crate::config::{DnsSettings, TimeOfDay};
use crate::problems::ProblemLog;
use crate::profile::Endpoints;
use crate::recording::Recording;
use crate::remote::RemoteClient;
use crate::sink::Sink;
use crate::sweeps::SweepHistory;
use crate::{ICON, alerts, api, block_page, demo, doctor, gauges, pages};

/// The resolver before it is opened.
#[derive(Debug)]
pub struct DnsService;

impl Service for DnsService {
    fn name(&self) -> &'static str {
        "dns"
    }

    fn summary(&self) -> &'static str {
        "The resolver."
    }

    fn nav(&self) -> NavItem {
        NavItem { path: "/dns", title: "DNS", key: "n", icon: ICON, group: NavGroup::Services }
    }

    fn sections(&self) -> &'static [&'static Section] {
        &[&DnsSettings::SECTION]
    }

    fn secret_keys(&self) -> &'static [&'static str] {
        &dns::SECRET_KEYS
    }

    fn key_map(&self, _: &Values) -> Option<Arc<dyn KeyMap>> {
        Some(Arc::new(dns::DnsKeyMap))
    }

    fn check_settings(&self, values: &Values) -> Result<(), Problem> {
        let settings = DnsSettings::read(values)?;
        let has_certificate =
            values.get("http.tls_cert").is_some_and(|given| !given.text.is_empty());
        if !settings.tls_listen.0.is_empty() && !has_certificate {
            return Err(Problem::new(
                "dns.tls_listen",
                "DNS over TLS needs the certificate of http.tls_cert and http.tls_key",
            ));
        }
        let sink = settings.log_sink.as_str();
        if !sink.is_empty() && !sink.starts_with("http://") && !sink.starts_with("https://") {
            return Err(Problem::new(
                "dns.log_sink",
                "name a URL that begins with http:// or https://",
            ));
        }
        Ok(())
    }

    fn event_types(&self) -> &'static [EventType] {
        alerts::EVENTS
    }

    fn metrics(&self) -> &'static [MetricInfo] {
        gauges::METRICS
    }

    fn document(&self) -> OpenApi {
        api::routes().document()
    }

    fn command(&self) -> Option<clap::Command> {
        Some(DnsCommand::command())
    }

    fn run_command(&self, matches: &clap::ArgMatches, context: &Context<'_>) -> Outcome<Action> {
        let command = DnsCommand::from_arg_matches(matches)
            .map_err(|error| Failure::usage(error.to_string()))?;
        cli::run(command.verb, context)?;
        Ok(Action::Done)
    }

    fn doctor<'a>(&'a self, diagnosis: &'a Diagnosis<'a>) -> BoxFuture<'a, Vec<Finding>> {
        Box::pin(doctor::check(diagnosis))
    }

    fn open<'a>(&'a self, opening: Opening<'a>) -> BoxFuture<'a, Outcome<Arc<dyn RunningService>>> {
        Box::pin(async move { Ok(Arc::new(open(opening).await?) as Arc<dyn RunningService>) })
    }
}

async fn open(opening: Opening<'_>) -> Outcome<RunningDns> {
    let settings =
        DnsSettings::read(opening.values).map_err(|problem| Failure::usage(problem.to_string()))?;
    let folder = opening.config.server.data.join("dns");
    let authorities =
        Some(settings.upstream_ca.as_path()).filter(|path| !path.as_os_str().is_empty());
    let refused = |error: web::serve::tls::TlsError| {
        Failure::usage(error.to_string()).next("check dns.upstream_ca")
    };
    let remote = Arc::new(RemoteClient::new(authorities).map_err(refused)?);
    let mut options = settings.to_resolver();
    options.upstream_needs.tls =
        Some(Arc::new(web::serve::tls::client(authorities).map_err(refused)?));
    options.upstream_needs.exchange = Some(remote.clone());
    options.fetch = Some(remote.clone());
    let needs = options.upstream_needs.clone();
    options.list_folder = Some(folder.join("lists"));
    options.endpoints = endpoints(&settings, opening.config);
    let designated = options.endpoints.clone();
    let resolver = Resolver::open(opening.store.clone(), options).await.map_err(|error| {
        Failure::usage(format!("cannot open the resolver: {}", chain(&error)))
            .next("tidegate config reference   (the settings that start with dns.)")
    })?;
    let log = open_log(&folder.join("log"), &settings).await?;
    let recording = Recording::open(opening.store, opening.instance, log, &resolver).await;
    let mut parts = DnsParts::new(opening.store, resolver, recording, needs);
    parts.endpoints = Arc::new(Endpoints {
        name: designated.name,
        https_port: designated.https_port,
        tls_port: designated.tls_port,
    });
    parts.listeners.expect(!settings.listen.0.is_empty());
    let sink = (!settings.log_sink.is_empty()).then(|| SinkSetup {
        client: RemoteClient::clone(&remote),
        url: settings.log_sink.clone(),
    });
    Ok(RunningDns {
        instance: Instance { name: opening.instance.to_owned(), started_ms: opening.store.now().0 },
        parts,
        listen: settings.to_listeners(),
        tls_listen: settings.tls_listen.0.clone(),
        tls_name: settings.tls_name.clone(),
        block_page_listen: settings.block_page_listen.0.clone(),
        sink,
        summary_at: settings.summary_at,
        sweep_interval: settings.sweep_interval,
        dot: Arc::default(),
    })
}

/// The encrypted endpoints that clients may discover, if there are a certificate and a name.
fn endpoints(settings: &DnsSettings, config: &Config) -> DesignatedEndpoints {
    let has_certificate = !config.http.tls_cert.as_os_str().is_empty();
    if settings.tls_name.is_empty() || !has_certificate {
        return DesignatedEndpoints::default();
    }
    DesignatedEndpoints {
        name: Some(settings.tls_name.clone()),
        tls_port: settings.tls_listen.0.first().map(SocketAddr::port),
        https_port: Some(config.http.listen.port()),
    }
}

async fn open_log(folder: &Path, settings: &DnsSettings) -> Outcome<QueryLog> {
    let options = QueryLogOptions {
        folder: folder.to_owned(),
        max_bytes: settings.log_max_size.0,
        max_age: settings.log_max_age,
    };
    let opened = tokio::task::spawn_blocking(move || QueryLog::open(options)).await;
    let opened = opened.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    opened.map_err(|error| {
        Failure::failed(format!("cannot open the query log in {}: {error}", folder.display()))
            .next("check the folder's owner, or move the folder away")
    })
}

impl DnsService {
    /// The service on a resolver that is open already, with its log in a folder and without listeners.
    pub async fn on(
        resolver: Resolver,
        store: &store::Store,
        folder: &Path,
        instance: &str,
    ) -> std::io::Result<OpenService> {
        let log = QueryLog::open(QueryLogOptions::new(folder.to_owned()))?;
        let recording = Recording::open(store, instance, log, &resolver).await;
        let running = RunningDns {
            instance: Instance { name: instance.to_owned(), started_ms: store.now().0 },
            parts: DnsParts::new(store, resolver, recording, UpstreamNeeds::default()),
            listen: ListenOptions { addresses: Vec::new(), ..ListenOptions::default() },
            tls_listen: Vec::new(),
            tls_name: String::new(),
            block_page_listen: Vec::new(),
            sink: None,
            summary_at: TimeOfDay { minutes: 0 },
            sweep_interval: Duration::from_secs(15),
            dot: Arc::default(),
        };
        Ok(OpenService { service: &DnsService, running: Arc::new(running) })
    }
}

/// The listeners, once they are open and until they are closed.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedListeners {
    open: Arc<Mutex<Option<Listeners>>>,
    /// True if there should be some.
    is_expected: bool,
}

impl SharedListeners {
    fn expect(&mut self, is_expected: bool) {
        self.is_expected = is_expected;
    }

    /// Tells whether listeners that should be open are not.
    pub(crate) fn is_expected_but_closed(&self) -> bool {
        self.is_expected && self.open.lock().is_none()
    }

    /// Returns the addresses; none while nothing listens.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.open.lock().as_ref().map(|open| open.addresses().to_vec()).unwrap_or_default()
    }

    /// Returns the counts.
    pub(crate) fn stats(&self) -> ListenStats {
        self.open.lock().as_ref().map(Listeners::stats).unwrap_or_default()
    }
}

/// This instance, as it announces itself.
#[derive(Debug, Clone)]
struct Instance {
    name: String,
    started_ms: i64,
}

/// The resolver on its store.
#[derive(Debug)]
struct RunningDns {
    instance: Instance,
    parts: DnsParts,
    listen: ListenOptions,
    tls_listen: Vec<SocketAddr>,
    tls_name: String,
    block_page_listen: Vec<SocketAddr>,
    sink: Option<SinkSetup>,
    summary_at: TimeOfDay,
    sweep_interval: Duration,
    /// The certificate of DNS over TLS, once it is served.
    dot: Arc<Mutex<Option<DotCertificate>>>,
}

/// The receiver of the log sink.
#[derive(Debug)]
struct SinkSetup {
    client: RemoteClient,
    url: String,
}

/// Parts of the service that handlers and background work share. A cheap clone.
#[derive(Debug, Clone)]
pub(crate) struct DnsParts {
    pub(crate) resolver: Resolver,
    pub(crate) listeners: SharedListeners,
    pub(crate) recording: Recording,
    pub(crate) requests: AllowRequests,
    pub(crate) seen: SeenClients,
    pub(crate) problems: ProblemLog,
    pub(crate) sweeps: SweepHistory,
    pub(crate) sink: Sink,
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) needs: UpstreamNeeds,
    pub(crate) unique: UniqueCounts,
}

impl DnsParts {
    fn new(
        store: &store::Store,
        resolver: Resolver,
        recording: Recording,
        needs: UpstreamNeeds,
    ) -> DnsParts {
        DnsParts {
            resolver,
            listeners: SharedListeners::default(),
            recording,
            requests: AllowRequests::new(store),
            seen: SeenClients::new(store),
            problems: ProblemLog::default(),
            sweeps: SweepHistory::default(),
            sink: Sink::default(),
            endpoints: Arc::default(),
            needs,
            unique: UniqueCounts::default(),
        }
    }
}

/// Names that only one list has, counted once for each state of the lists: it takes a look at every name.
#[derive(Debug, Clone, Default)]
pub(crate) struct UniqueCounts(Arc<Mutex<Option<(UniqueKey, CountsByList)>>>);

/// Version of the policy, and number of the filter.
type UniqueKey = (u64, u32);

/// Number of names by id of the list.
type CountsByList = Arc<HashMap<String, u64>>;

impl UniqueCounts {
    /// Returns the counts of a state, if they are known.
    pub(crate) fn get(&self, key: UniqueKey) -> Option<Arc<HashMap<String, u64>>> {
        let known = self.0.lock();
        known.as_ref().filter(|(of, _)| *of == key).map(|(_, counts)| Arc::clone(counts))
    }

    /// Keeps the counts of a state.
    pub(crate) fn set(
        &self,
        key: UniqueKey,
        counts: HashMap<String, u64>,
    ) -> Arc<HashMap<String, u64>> {
        let counts = Arc::new(counts);
        *self.0.lock() = Some((key, Arc::clone(&counts)));
        counts
    }
}

/// The certificate of the HTTP side, for DNS over TLS.
#[derive(Debug, Clone)]
struct DotCertificate {
    source: Arc<Tls>,
    /// The configuration that was taken over last.
    known: Arc<rustls::ServerConfig>,
    served: Arc<ArcSwap<rustls::ServerConfig>>,
}

impl DotCertificate {
    fn new(source: &Arc<Tls>) -> DotCertificate {
        let known = source.current();
        let served = Arc::new(ArcSwap::from_pointee(for_dot(&known)));
        DotCertificate { source: Arc::clone(source), known, served }
    }

    /// Takes over a certificate that was reloaded.
    fn follow(&mut self) {
        let current = self.source.current();
        if !Arc::ptr_eq(&current, &self.known) {
            self.served.store(Arc::new(for_dot(&current)));
            self.known = current;
        }
    }
}

/// The same certificate under the protocol name of DNS over TLS, RFC 7858.
fn for_dot(config: &rustls::ServerConfig) -> rustls::ServerConfig {
    let mut config = config.clone();
    config.alpn_protocols = vec![b"dot".to_vec()];
    config
}

/// The `State` of handlers and pages.
#[derive(Debug, Clone, FromRef)]
pub(crate) struct DnsState {
    pub(crate) app: App,
    pub(crate) parts: Arc<DnsParts>,
}

impl std::ops::Deref for DnsState {
    type Target = DnsParts;

    fn deref(&self) -> &DnsParts {
        &self.parts
    }
}

impl DnsState {
    /// Reads the policy as it is in the store.
    pub(crate) async fn load_policy(&self) -> Result<Policy, dns::Error> {
        Ok(self.resolver.policies().load().await?.policy)
    }
}

/// Tells whether queries are filtered, and by what.
pub(crate) fn describe_filtering(resolver: &Resolver) -> (bool, String) {
    let version = resolver.policy();
    let policy = &version.policy;
    let status = resolver.lists().status(&policy.lists);
    let loaded = status.iter().filter(|list| list.is_loaded).count();
    let wanted = policy.lists.iter().filter(|list| list.enabled).count();
    let rules: u64 = status.iter().map(|list| list.figures.rules).sum();
    let own =
        policy.rules.len() + policy.groups.iter().map(|group| group.rules.len()).sum::<usize>();
    match (loaded, own) {
        (0, 0) if wanted == 0 => {
            (false, "filtering is off: no list and no rule is in use".to_owned())
        }
        (0, 0) => (false, format!("filtering is not on yet: no list of {wanted} is loaded")),
        (_, _) => {
            let rules = web::format::count(rules);
            let lists = format!("{loaded} of {wanted} lists loaded with {rules} rules");
            (true, format!("filtering is on: {lists}, {own} rules of your own"))
        }
    }
}

impl RunningDns {
    fn state(&self, app: &App) -> DnsState {
        DnsState { app: app.clone(), parts: Arc::new(self.parts.clone()) }
    }
}

impl std::ops::Deref for RunningDns {
    type Target = DnsParts;

    fn deref(&self) -> &DnsParts {
        &self.parts
    }
}

impl RunningService for RunningDns {
    fn routes(&self, app: &App) -> Routes {
        let pages = Router::new()
            .route("/dns", get(pages::overview::page))
            .route("/dns/queries", get(pages::queries::page))
            .route("/dns/queries/{instance}/{number}", get(pages::queries::one))
            .route("/dns/lists", get(pages::lists::page))
            .route("/dns/rules", get(pages::rules::page))
            .route("/dns/services", get(pages::services::page))
            .route("/dns/groups", get(pages::groups::page))
            .route("/dns/groups/{id}", get(pages::groups::one))
            .route("/dns/clients", get(pages::clients::page))
            .route("/dns/clients/{id}", get(pages::clients::one))
            .route("/dns/records", get(pages::records::page))
            .route("/dns/problems", get(pages::problems::page))
            .route("/dns/settings", get(pages::settings::page))
            .route("/dns/upstreams", get(pages::upstreams::page))
            .route("/dns/cache", get(pages::cache::page))
            .route("/dns/instances", get(pages::instances::page));
        let state = self.state(app);
        api::routes()
            .merge(api::doh::routes(&state))
            .merge(Routes { pages, ..Routes::default() })
            .with_state(state)
    }

    fn fragments(&self) -> Fragments {
        let parts = Arc::new(self.parts.clone());
        Fragments::default()
            .add("dns", async |state: DnsState, argument| {
                pages::overview::part(&state, &argument).await
            })
            .add("dns-queries", async |state: DnsState, argument| {
                pages::queries::part(&state, &argument).await
            })
            .add("dns-lists", async |state: DnsState, acts| {
                pages::lists::part(&state, acts == "acts").await
            })
            .add("dns-client", async |state: DnsState, argument| {
                pages::clients::part(&state, &argument).await
            })
            .add("dns-clients", async |state: DnsState, acts| {
                pages::clients::unknown(&state, acts == "acts").await
            })
            .add("dns-upstreams", async |state: DnsState, acts| {
                pages::upstreams::part(&state, acts == "acts")
            })
            .add("dns-cache", async |state: DnsState, acts| {
                pages::cache::part(&state, acts == "acts").await
            })
            .add("dns-problems", async |state: DnsState, acts| {
                pages::problems::part(&state, acts == "acts").await
            })
            .add("dns-instances", async |state: DnsState, _| pages::instances::part(&state).await)
            .with_state(move |app| DnsState { app, parts: Arc::clone(&parts) })
    }

    fn tiles(&self, app: &App) -> Option<Markup> {
        let series = app.series();
        let last = format::short(series.last("dns.queries").unwrap_or(0.0));
        let counts = self.recording.counts();
        let note = format!("{} blocked since the start", format::count(counts.blocked));
        let spark = chart::spark(&series.line("dns.queries"), 3);
        Some(html! { (ui::tile("DNS queries", &last, "/s", &note, &spark)) })
    }

    fn key_prefixes(&self) -> Vec<String> {
        ["dns:", "dnsmeta:", "{dnsmeta}:", "resolver:"].map(str::to_owned).into()
    }

    fn search<'a>(&'a self, app: &'a App, text: &'a str) -> BoxFuture<'a, Vec<SearchHit>> {
        Box::pin(async move { pages::search(&self.state(app), text) })
    }

    fn first_steps(&self) -> BoxFuture<'_, Vec<FirstStep>> {
        Box::pin(async {
            vec![FirstStep {
                title: "Ask the resolver",
                text: "It answers from its cache, or asks an upstream; ads and trackers get no answer.",
                command: "tidegate dns query example.org",
                path: "/dns",
                is_done: self.recording.counts().queries > 0,
            }]
        })
    }

    fn reload(&self, values: &Values) {
        if let Ok(settings) = DnsSettings::read(values) {
            self.resolver.l1().set_max_keys(settings.max_keys);
        }
    }

    fn own_samples(&self) -> Vec<OwnSample> {
        gauges::own_samples(&self.resolver, &self.recording)
    }

    fn update_metrics(&self) {
        gauges::update(&self.parts);
    }

    fn health(&self) -> BoxFuture<'_, Vec<Check>> {
        Box::pin(async {
            let addresses = self.listeners.addresses();
            if addresses.is_empty() && !self.listen.addresses.is_empty() {
                return vec![Check::failed("dns", "the resolver does not listen yet")];
            }
            let at = addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
            let at = if at.is_empty() { "answers over HTTP only".to_owned() } else { at };
            // No filtering is what an operator chose, or a matter of seconds: no reason to take no queries.
            let (_, filtering) = describe_filtering(&self.resolver);
            let log = match self.recording.query_log.stats().is_failing {
                true => "not written: see to the disk; queries are answered all the same",
                false => "written",
            };
            vec![
                Check::ok("dns", at),
                Check::ok("dns_filtering", filtering),
                Check::ok("dns_log", log),
            ]
        })
    }

    fn listen<'a>(&'a self, setup: ListenSetup<'a>) -> BoxFuture<'a, Outcome<Vec<ListenerTask>>> {
        Box::pin(async move {
            let mut options = self.listen.clone();
            if let Some(tls) = setup.tls.filter(|_| !self.tls_listen.is_empty()) {
                let certificate = DotCertificate::new(tls);
                options.tls_addresses = self.tls_listen.clone();
                options.tls = Some(Arc::clone(&certificate.served));
                options.tls_host = Some(self.tls_name.clone()).filter(|name| !name.is_empty());
                *self.dot.lock() = Some(certificate);
            }
            let mut tasks = self.listen_for_browsers(setup.app).await?;
            if options.addresses.is_empty() && options.tls_addresses.is_empty() {
                return Ok(tasks);
            }
            let tls_addresses = options.tls_addresses.clone();
            let open = Listeners::open(&self.resolver, options).await;
            let open = open.map_err(|error| refused(&error))?;
            let plain = open.addresses().iter().map(|address| format!("{address} (UDP, TCP)"));
            let secure = tls_addresses.iter().map(|address| format!("{address} (TLS)"));
            let mut address = plain.chain(secure).collect::<Vec<_>>().join(", ");
            if tls_addresses.is_empty()
                && open.addresses().iter().all(|address| address.ip().is_loopback())
            {
                address.push_str("   this machine only");
            }
            *self.listeners.open.lock() = Some(open);
            let listeners = self.listeners.clone();
            let run = move |stop: CancellationToken, _: Duration| -> BoxFuture<'static, ()> {
                Box::pin(async move {
                    stop.cancelled().await;
                    let open = listeners.open.lock().take();
                    if let Some(open) = open {
                        open.close().await;
                    }
                })
            };
            tasks.insert(0, ListenerTask { label: "DNS", address, run: Box::new(run) });
            Ok(tasks)
        })
    }

    fn run(self: Arc<Self>, app: App, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let tasks = TaskTracker::new();
            let recording = &self.recording;
            tasks.spawn(recording.clone().run_drain(self.resolver.clone(), stop.clone()));
            tasks.spawn(recording.clone().run_log(app.store().clone(), stop.clone()));
            let (log, token) = (recording.log.clone(), stop.clone());
            tasks.spawn(async move { log.run(token).await });
            let dns = Arc::clone(&self);
            let describe = move || dns.describe();
            tasks.spawn(recording.clone().run_announce(describe, stop.clone()));
            if let Some(SinkSetup { client, url }) = &self.sink {
                let (sink, rows) = (self.parts.sink.clone(), recording.query_log.follow());
                tasks.spawn(sink.run(client.clone(), url.clone(), rows, stop.clone()));
            }
            tasks.spawn(alerts::run(self.state(&app), self.summary_at, stop.clone()));
            tasks.close();
            self.sweep(&stop).await;
            tasks.wait().await;
            self.resolver.close().await;
        })
    }

    fn demo(self: Arc<Self>, app: &App, tasks: &TaskTracker, stop: &CancellationToken) {
        demo::start(self.state(app), tasks, stop);
    }
}

impl RunningDns {
    /// Opens the listeners of the block page.
    async fn listen_for_browsers(&self, app: &App) -> Outcome<Vec<ListenerTask>> {
        let mut tasks = Vec::new();
        for address in &self.block_page_listen {
            let (setting, flag) = ("dns.block_page_listen", "--set dns.block_page_listen=");
            let listener = web::serve::bind(*address, "the block page", setting, flag).await?;
            let server = web::serve::Server::new(app.clone(), listener)
                .with_router(block_page::router(self.state(app)));
            let address = server.address().unwrap_or(*address);
            let run = move |stop: CancellationToken, drain: Duration| -> BoxFuture<'static, ()> {
                Box::pin(server.run(stop, drain))
            };
            let address = format!("http://{address}");
            tasks.push(ListenerTask { label: "Block page", address, run: Box::new(run) });
        }
        Ok(tasks)
    }

    /// Returns this instance, as it announces itself.
    fn describe(&self) -> InstanceInfo {
        let counts = self.recording.counts();
        InstanceInfo {
            name: self.instance.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_ms: self.instance.started_ms,
            seen_ms: self.resolver.now().0,
            listen: self.listeners.addresses().iter().map(ToString::to_string).collect(),
            queries: counts.queries,
            blocked: counts.blocked,
            memory_hits: counts.memory_hits,
            store_hits: counts.store_hits,
            log_rows: self.recording.query_log.stats().rows,
            policy_version: self.resolver.policy().version,
        }
    }

    /// Sweeps the cache and refreshes lists until told to stop.
    async fn sweep(&self, stop: &CancellationToken) {
        let mut beat = tokio::time::interval(self.sweep_interval);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = beat.tick() => {}
            }
            if let Some(certificate) = self.dot.lock().as_mut() {
                certificate.follow();
            }
            let work = async {
                self.resolver.refresh_lists().await;
                self.resolver.sweep().await
            };
            let swept = tokio::select! {
                () = stop.cancelled() => return,
                swept = work => swept,
            };
            match swept {
                Ok(report) => {
                    self.sweeps.add(report, self.resolver.now());
                    tracing::debug!(?report, "cache swept");
                }
                Err(error) => tracing::warn!(
                    error = chain(&error),
                    "the cache was not swept; it is tried again"
                ),
            }
        }
    }
}

/// Says why an address cannot be listened on, and what to do about it.
fn refused(error: &dns::Error) -> Failure {
    let dns::Error::Listen { address, source } = error else {
        return Failure::failed(format!("cannot listen for DNS: {}", chain(error)));
    };
    match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            let holder =
                doctor::holder(*address).map_or_else(String::new, |holder| format!(" by {holder}"));
            Failure::failed(format!("DNS: {address} is in use already{holder}")).next(format!(
                "end that program, or choose another port: --set dns.listen={} \
                 (or dns.listen=off)",
                SocketAddr::new(address.ip(), 7054)
            ))
        }
        std::io::ErrorKind::PermissionDenied => Failure::failed(format!(
            "DNS: this user may not listen on {address}"
        ))
        .next("docs/start-dns.md explains how to take port 53; or --set dns.listen=127.0.0.1:7053"),
        _ => Failure::failed(format!("DNS: cannot listen on {address}: {source}"))
            .next("--set dns.listen=127.0.0.1:7053"),
    }
}
