//! Checks of `tidegate doctor`: the store must not evict counters, policies must be able to allow, nobody
//! from outside may report traffic without a token, and proxies that tell clients' addresses must be
//! trusted. Of the chat: its archive, backups and files, agents, e-mail, web push and addresses. The clock is
//! checked for every service alike.

use std::path::{Path, PathBuf};
use std::time::Duration;

use desk::archive::{Archive, ArchiveFacts, ArchivePlace};
use desk::chat::Chat;
use serde_json::Value;
use store::Store;
use store::redis;
use web::cli::Global;
use web::cli::client::Client;
use web::doctor::{Diagnosis, Finding};
use web::metrics::UNTRUSTED_FORWARDING;

use crate::chat::{self, in_folder};
use crate::config::{DeskSettings, OtlpAccess, default_policies};
use crate::courier::CourierSettings;
use crate::courier::smtp::{self, MailError, SmtpServer};

/// Time for the archive, and for the SMTP server.
const ARCHIVE_TIME: Duration = Duration::from_secs(15);
const SMTP_TIME: Duration = Duration::from_secs(15);

/// Looks for what could go wrong.
pub(crate) async fn findings(diagnosis: &Diagnosis<'_>) -> Vec<Finding> {
    let settings = match DeskSettings::read(diagnosis.values) {
        Ok(settings) => settings,
        Err(problem) => {
            let fix = "tidegate config reference";
            return vec![Finding::bad("desk: settings", problem.to_string(), fix)];
        }
    };
    // A server that does not run has nothing to tell.
    let server = diagnosis
        .running
        .and_then(|_| Client::with_admin_token(&Global::default(), diagnosis.config).ok());
    let mut found = vec![
        eviction(diagnosis).await,
        policies(diagnosis, &settings, server.as_ref()),
        otlp(diagnosis, &settings),
        proxies(diagnosis, server.as_ref()),
    ];
    let facts = archive(diagnosis, &settings, &mut found).await;
    found.push(files(diagnosis, &settings));
    found.push(smtp(diagnosis, &settings).await);
    found.push(addresses(&settings, facts.agents > 0));
    found.push(push(&settings, &facts));
    found
}

/// The archive: it opens, has the tables of this program, takes writes, and is the one that all instances use.
/// Also its backups, the agents in it, and what could not be sent.
async fn archive(
    diagnosis: &Diagnosis<'_>,
    settings: &DeskSettings,
    found: &mut Vec<Finding>,
) -> ArchiveFacts {
    const WHAT: &str = "desk: archive";
    let text = in_folder(&settings.archive, &diagnosis.config.server.data);
    let fix = "check desk.archive; tidegate desk archive check";
    let place = match ArchivePlace::parse(&text) {
        Ok(place) => place,
        Err(error) => {
            found.push(Finding::bad(WHAT, error.to_string(), "set desk.archive"));
            return ArchiveFacts::default();
        }
    };
    if let ArchivePlace::Sqlite(path) = &place
        && !path.exists()
    {
        found.push(Finding::good(WHAT, format!("{place} is made at the next start")));
        return ArchiveFacts::default();
    }
    let look = async {
        let archive = Archive::open_existing(&place, chat::sync_of(diagnosis.config)).await?;
        archive.check().await?;
        let (facts, backup) = (archive.facts().await?, archive.last_backup().await?);
        Ok::<_, desk::Error>((archive, facts, backup))
    };
    let (archive, facts, backup) = match tokio::time::timeout(ARCHIVE_TIME, look).await {
        Ok(Ok(seen)) => seen,
        Ok(Err(error)) => {
            found.push(Finding::bad(WHAT, error.to_string(), fix));
            return ArchiveFacts::default();
        }
        Err(_) => {
            found.push(Finding::bad(WHAT, format!("{place} did not answer within 15 s"), fix));
            return ArchiveFacts::default();
        }
    };
    found.push(Finding::good(WHAT, format!("{place} takes writes, its tables are up to date")));
    found.push(archive_id(diagnosis, settings, &archive).await);
    found.push(backups(backup, facts.agents > 0));
    found.push(match (facts.agents, facts.ready_agents) {
        (0, _) => Finding::good("desk: agents", "none yet; the chat is not in use"),
        (_, 0) => Finding::warning(
            "desk: agents",
            format!("{} invited, none has set a password", facts.agents),
            "send them their links again: tidegate desk agents reset-password",
        ),
        (all, ready) => Finding::good("desk: agents", format!("{ready} of {all} have a password")),
    });
    found.push(match facts.dead_letters {
        0 => Finding::good("desk: outbox", "nothing was given up"),
        count => Finding::warning(
            "desk: outbox",
            format!("{count} e-mails or notifications could not be sent"),
            "see why, and send them again, at /desk/manage#outbox",
        ),
    });
    facts
}

/// All instances on a store must use one archive.
async fn archive_id(
    diagnosis: &Diagnosis<'_>,
    settings: &DeskSettings,
    archive: &Archive,
) -> Finding {
    const WHAT: &str = "desk: archive id";
    let url = diagnosis.config.store_url();
    if url.starts_with("embedded:") {
        return Finding::good(WHAT, "the built-in store is this instance's alone");
    }
    let read = async {
        let store = Store::open(&url).await.ok()?;
        Chat::archive_id_in(&store, &settings.prefix.0).await.ok()
    };
    match tokio::time::timeout(Duration::from_secs(5), read).await.ok().flatten() {
        None => Finding::warning(WHAT, "the store did not tell which archive is used", "is it up?"),
        Some(None) => Finding::good(WHAT, "no instance has used this store yet"),
        Some(Some(id)) if id == archive.id() => {
            Finding::good(WHAT, "the one that all instances on this store use")
        }
        Some(Some(_)) => Finding::bad(
            WHAT,
            format!("other instances on this store use another archive than {}", archive.place()),
            "set desk.archive to theirs",
        ),
    }
}

/// A backup is a week old at most.
fn backups(last: Option<i64>, is_used: bool) -> Finding {
    const WHAT: &str = "desk: backup";
    let fix = "tidegate desk archive backup FOLDER, every day";
    let now = u64::try_from(store::Clock::system().now().as_secs()).unwrap_or(0);
    match last.and_then(|last| u64::try_from(last).ok()) {
        None if !is_used => Finding::good(WHAT, "none yet; the chat is not in use"),
        None => Finding::warning(WHAT, "none was made with this program", fix),
        Some(last) => {
            let days = now.saturating_sub(last) / 86_400;
            let found = format!("the last one is {days} days old");
            if days > 7 { Finding::warning(WHAT, found, fix) } else { Finding::good(WHAT, found) }
        }
    }
}

/// Room for the files of chats.
fn files(diagnosis: &Diagnosis<'_>, settings: &DeskSettings) -> Finding {
    const WHAT: &str = "desk: files";
    let folder = PathBuf::from(in_folder(&settings.files, &diagnosis.config.server.data));
    let there = folder.ancestors().find(|folder| folder.exists());
    let there = there.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match rustix::fs::statvfs(there) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let found = format!("{} MB free for {}", free >> 20, folder.display());
            if free < 10 * settings.max_file_bytes.0 {
                let fix = "make room, or set desk.files to a folder of a larger disk";
                Finding::warning(WHAT, found, fix)
            } else {
                Finding::good(WHAT, found)
            }
        }
        Err(error) => {
            Finding::bad(WHAT, format!("{}: {error}", folder.display()), "check desk.files")
        }
    }
}

/// The SMTP server answers and lets us in.
async fn smtp(diagnosis: &Diagnosis<'_>, settings: &DeskSettings) -> Finding {
    const WHAT: &str = "desk: smtp";
    let Some(server) = SmtpServer::of(settings) else {
        let found = "off: visitors who have left get no e-mail; set desk.smtp_host for it";
        return Finding::good(WHAT, found);
    };
    let allowed = &diagnosis.config.webhooks.allowed_networks.0;
    let fix = "check desk.smtp_host, smtp_port, smtp_tls, smtp_user and smtp_password";
    let SmtpServer { host, port, from, .. } = &server;
    match tokio::time::timeout(SMTP_TIME, smtp::probe(&server, allowed)).await {
        Ok(Ok(())) => {
            Finding::good(WHAT, format!("{host}:{port} answers; e-mails are from {from}"))
        }
        Ok(Err(MailError::Failed(reason) | MailError::Refused(reason))) => {
            Finding::bad(WHAT, reason, fix)
        }
        Err(_) => Finding::bad(WHAT, format!("{host}:{port} did not answer within 15 s"), fix),
    }
}

/// Addresses for links, and sites that may show the widget.
fn addresses(settings: &DeskSettings, is_used: bool) -> Finding {
    const WHAT: &str = "desk: addresses";
    let (url, origins) = (&settings.public_url.0, settings.widget_origins.0.len());
    if !is_used && url.is_empty() && origins == 0 {
        return Finding::good(WHAT, "none set; the chat is not in use");
    }
    if origins == 0 {
        let found = "no site may embed the widget; visitors reach the chat at /chat only";
        return Finding::warning(WHAT, found, "set desk.widget_origins to your site, https://…");
    }
    if url.is_empty() {
        let found =
            format!("{origins} sites may embed the widget; the address of this program is not set");
        return Finding::warning(WHAT, found, "set desk.public_url, for links in e-mails");
    }
    Finding::good(WHAT, format!("{url}; {origins} sites may embed the widget"))
}

/// Notifications need a key, and browsers take them over https only.
fn push(settings: &DeskSettings, facts: &ArchiveFacts) -> Finding {
    const WHAT: &str = "desk: push";
    if !settings.push {
        return Finding::good(WHAT, "off");
    }
    let (url, browsers) = (&settings.public_url.0, facts.browsers);
    if browsers > 0 && !facts.has_push_key {
        return Finding::bad(
            WHAT,
            format!("{browsers} browsers of agents, but no key: none is notified"),
            "restart; agents switch notifications on again",
        );
    }
    if browsers > 0 && CourierSettings::of(settings).contact.is_none() {
        return Finding::warning(
            WHAT,
            format!(
                "{browsers} browsers of agents; some push services refuse senders without a contact"
            ),
            "set desk.public_url (https) or desk.smtp_from",
        );
    }
    if url.starts_with("http://") {
        let found = "desk.public_url is not https: browsers take notifications over https only";
        return Finding::warning(WHAT, found, "serve the desk over https");
    }
    let key =
        if facts.has_push_key { "the key is there" } else { "the key is made at the next start" };
    Finding::good(WHAT, format!("{key}; {browsers} browsers of agents"))
}

/// Counters and limits that are evicted start again at 0.
async fn eviction(diagnosis: &Diagnosis<'_>) -> Finding {
    let url = diagnosis.config.store_url();
    let policy = if url.starts_with("embedded:") {
        diagnosis.values.get("store.max_memory_policy").map(|given| given.text.clone())
    } else {
        asked(&url).await
    };
    eviction_of(policy.as_deref())
}

fn eviction_of(policy: Option<&str>) -> Finding {
    const WHAT: &str = "desk: eviction";
    match policy {
        None => Finding::warning(
            WHAT,
            "the store did not report its eviction policy",
            "see that maxmemory-policy is noeviction or volatile-*",
        ),
        Some(policy) if policy.starts_with("allkeys-") => Finding::bad(
            WHAT,
            format!("the store evicts any key ({policy}): counters and limits start again at 0"),
            "set maxmemory-policy to noeviction",
        ),
        Some(policy) if policy.starts_with("volatile-") => Finding::warning(
            WHAT,
            format!("the store evicts keys with a TTL ({policy}): limits and sessions may be lost"),
            "set maxmemory-policy to noeviction",
        ),
        Some(policy) => Finding::good(WHAT, format!("{policy}: nothing is evicted")),
    }
}

async fn asked(url: &str) -> Option<String> {
    let opening = Store::open(url);
    let store =
        tokio::time::timeout(std::time::Duration::from_secs(5), opening).await.ok()?.ok()?;
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("maxmemory-policy");
    let pairs: Vec<String> = command.query_async(&mut store.clone()).await.ok()?;
    pairs.into_iter().nth(1)
}

/// The product's own policies, as the settings make them, and those in the store.
fn policies(
    diagnosis: &Diagnosis<'_>,
    settings: &DeskSettings,
    server: Option<&Client>,
) -> Finding {
    const WHAT: &str = "desk: policies";
    for spec in default_policies(&diagnosis.config.auth) {
        if let Err(error) = spec.compile(settings.limit_timeout) {
            return Finding::bad(
                WHAT,
                format!("{} can never allow: {error}", spec.name),
                "tidegate desk limits set, or change auth.login_tries and auth.login_lock",
            );
        }
    }
    let Some(server) = server else {
        return Finding::good(
            WHAT,
            "the defaults can allow requests; stored policies are checked while the server runs",
        );
    };
    let list = |path: &str| {
        let found = server.get(path).ok()?;
        Some(found["items"].as_array().cloned().unwrap_or_default())
    };
    let policies = list("/api/v1/ratelimit/policies?limit=1000");
    let domains = list("/api/v1/ratelimit/domains?limit=1000");
    let (Some(policies), Some(domains)) = (policies, domains) else {
        return Finding::warning(
            WHAT,
            "the server did not report its policies",
            "tidegate desk limits list",
        );
    };
    let never = policies.iter().filter(|one| denies_everybody(one)).map(|one| {
        let name = one["name"].as_str().unwrap_or_default();
        format!("{name} blocks every address")
    });
    let closed = domains.iter().flat_map(|one| {
        let name = one["domain"].as_str().unwrap_or_default();
        closed_rules(&one["descriptors"])
            .into_iter()
            .map(move |key| format!("{name}: {key} allows none"))
    });
    let never: Vec<String> = never.chain(closed).take(5).collect();
    if never.is_empty() {
        let count = policies.len() + domains.len();
        return Finding::good(WHAT, format!("all {count} can allow"));
    }
    Finding::warning(
        WHAT,
        never.join("; "),
        "tidegate desk limits list, then set or import them again",
    )
}

/// Returns true for a block list that holds all addresses.
fn denies_everybody(policy: &Value) -> bool {
    let blocked = policy["blocked"].as_array().into_iter().flatten().filter_map(Value::as_str);
    policy["shadow"] != true && blocked.into_iter().any(|entry| entry.ends_with("/0"))
}

/// Keys of rules with a limit of 0.
fn closed_rules(rules: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for rule in rules.as_array().into_iter().flatten() {
        if rule["limit"]["requests_per_unit"] == 0 && rule["shadow"] != true {
            found.push(rule["key"].as_str().unwrap_or_default().to_owned());
        }
        found.extend(closed_rules(&rule["descriptors"]));
    }
    found
}

/// Anybody who reaches an open port can make up traffic.
fn otlp(diagnosis: &Diagnosis<'_>, settings: &DeskSettings) -> Finding {
    const WHAT: &str = "desk: otlp";
    let listen = diagnosis.config.http.listen;
    match settings.otlp {
        OtlpAccess::Off => Finding::good(WHAT, "off"),
        OtlpAccess::Token => Finding::good(WHAT, "every program needs a token"),
        OtlpAccess::Local => Finding::good(WHAT, "programs on other machines need a token"),
        OtlpAccess::Open if listen.ip().is_loopback() => Finding::warning(
            WHAT,
            format!(
                "open to everybody who reaches {listen}, which is this machine, or a proxy on it"
            ),
            "set desk.otlp to local or token",
        ),
        OtlpAccess::Open => Finding::bad(
            WHAT,
            format!("anybody who reaches {listen} can report traffic without a token"),
            "set desk.otlp to local or token",
        ),
    }
}

/// Behind a proxy that is not trusted, everybody has the proxy's address, and one limit.
fn proxies(diagnosis: &Diagnosis<'_>, server: Option<&Client>) -> Finding {
    const WHAT: &str = "desk: proxies";
    if !diagnosis.config.http.trusted_proxies.0.is_empty() {
        return Finding::good(WHAT, "the ones in http.trusted_proxies tell clients' addresses");
    }
    let metrics = server.and_then(|server| server.get_text("/metrics").ok()).unwrap_or_default();
    let told: Option<f64> = metrics
        .lines()
        .find_map(|line| line.strip_prefix(UNTRUSTED_FORWARDING)?.trim().parse().ok());
    match told {
        Some(count) if count > 0.0 => {
            let header = &diagnosis.config.http.client_address_header;
            Finding::warning(
                WHAT,
                format!(
                    "{count} requests came with {header} and no proxy is trusted: all visitors behind it share one limit"
                ),
                "set http.trusted_proxies to the address of the proxy; if there is none, strangers made it up",
            )
        }
        _ => Finding::good(WHAT, "none is trusted, and none has sent an address"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use web::config::Values;
    use web::doctor::FindingState;

    use super::*;
    use crate::DeskService;

    #[test]
    fn backups_addresses_and_keys_are_judged_by_whether_the_chat_is_used() {
        let state = |finding: Finding| finding.state;
        let now = store::Clock::system().now().as_secs();
        assert_eq!(state(backups(None, false)), FindingState::Good);
        assert_eq!(state(backups(None, true)), FindingState::Warning);
        assert_eq!(state(backups(Some(now - 86_400), true)), FindingState::Good);
        assert_eq!(state(backups(Some(now - 30 * 86_400), true)), FindingState::Warning);

        let mut settings = DeskSettings::read(&Values::defaults(&[&DeskService])).unwrap();
        assert_eq!(state(addresses(&settings, false)), FindingState::Good);
        assert_eq!(state(addresses(&settings, true)), FindingState::Warning);
        settings.widget_origins.0.push("https://shop.example".to_owned());
        assert_eq!(state(addresses(&settings, true)), FindingState::Warning);
        let mut facts = ArchiveFacts { browsers: 2, ..ArchiveFacts::default() };
        assert_eq!(state(push(&settings, &facts)), FindingState::Bad, "no key");
        facts.has_push_key = true;
        assert_eq!(state(push(&settings, &facts)), FindingState::Warning, "no contact");
        settings.public_url.0 = "https://desk.shop.example".to_owned();
        assert_eq!(state(addresses(&settings, true)), FindingState::Good);
        assert_eq!(state(push(&settings, &facts)), FindingState::Good);
        settings.push = false;
        assert_eq!(push(&settings, &ArchiveFacts::default()).found, "off");
    }

    #[test]
    fn a_store_that_evicts_counters_is_found() {
        let state = |policy| eviction_of(policy).state;
        assert_eq!(state(Some("noeviction")), FindingState::Good);
        assert_eq!(state(Some("allkeys-lru")), FindingState::Bad);
        assert_eq!(state(Some("volatile-ttl")), FindingState::Warning);
        assert_eq!(state(None), FindingState::Warning);
    }

    #[test]
    fn what_can_never_allow_is_found() {
        assert!(denies_everybody(
            &json!({ "blocked": ["10.0.0.0/8", "0.0.0.0/0"], "shadow": false })
        ));
        assert!(!denies_everybody(&json!({ "blocked": ["0.0.0.0/0"], "shadow": true })));
        assert!(!denies_everybody(&json!({ "blocked": ["10.0.0.0/8"], "shadow": false })));
        let none = json!({ "requests_per_unit": 0, "unit": "day" });
        let rules = json!([{ "key": "a", "descriptors": [{ "key": "b", "limit": none }] },
            { "key": "c", "limit": none, "shadow": true }]);
        assert_eq!(closed_rules(&rules), ["b"]);
    }
}
