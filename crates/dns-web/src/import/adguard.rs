//! AdGuard Home: `AdGuardHome.yaml`, of the schema versions that keep filtering under `dns` and of those
//! that keep it under `filtering`.

use dns::{
    BlockMode, DEFAULT_GROUP, DomainUpstreams, GroupLog, ListAction, LoggedAddresses,
    ScheduleWindow, SearchEngine, StrategyName, UpstreamServer, WeekDay, WeekSchedule,
};

use super::builder::{PolicyBuilder, day, make_id};
use super::document::{Node, NodeValue, parse_duration_seconds};

const SEARCH_ENGINES: [(&str, SearchEngine); 6] = [
    ("google", SearchEngine::Google),
    ("bing", SearchEngine::Bing),
    ("youtube", SearchEngine::Youtube),
    ("duckduckgo", SearchEngine::Duckduckgo),
    ("yandex", SearchEngine::Yandex),
    ("ecosia", SearchEngine::Ecosia),
];

/// Services that have another id there.
const SERVICE_IDS: [(&str, &str); 4] = [
    ("epic_games", "fortnite"),
    ("x", "twitter"),
    ("amazon_streaming", "primevideo"),
    ("openai", "chatgpt"),
];

pub(super) fn import(root: &Node, builder: &mut PolicyBuilder) -> Result<(), String> {
    if !matches!(root.value, NodeValue::Map(_)) {
        return Err("it is not a document of settings".to_owned());
    }
    let dns = root.get("dns");
    let filtering = root.get("filtering").or(dns);
    if let Some(dns) = dns {
        import_upstreams(dns, builder);
        import_access(dns, builder);
    }
    for node in [dns, root.get("filtering")].into_iter().flatten() {
        import_reply(node, builder);
    }
    for (field, action) in
        [("filters", ListAction::Block), ("whitelist_filters", ListAction::Allow)]
    {
        for list in root.get(field).map(Node::items).unwrap_or_default() {
            let (name, url) = (list.field("name"), list.field("url"));
            if !url.starts_with("http") {
                builder.skip(
                    list.line,
                    url,
                    "put the file into the folder of lists and name it as file:NAME",
                );
                continue;
            }
            builder.add_list(list.line, name, url, action, list.flag("enabled", true));
        }
    }
    for rule in root.get("user_rules").map(Node::items).unwrap_or_default() {
        match rule.text() {
            Some(text) if !text.starts_with(['!', '#']) => builder.add_rule(rule.line, text, None),
            _ => {}
        }
    }
    if let Some(filtering) = filtering {
        import_filtering(filtering, builder);
    }
    if let Some(clients) = root.at(&["clients", "persistent"]) {
        for client in clients.items() {
            import_client(client, builder);
        }
    } else if let Some(clients) = root.get("clients") {
        for client in clients.items() {
            import_client(client, builder);
        }
    }
    if let Some(log) = root.get("querylog") {
        if !log.flag("enabled", true) {
            builder.group(DEFAULT_GROUP).log = GroupLog::Nothing;
        }
        for name in log.get("ignored").map(Node::items).unwrap_or_default() {
            match name.text() {
                Some(text) if text.parse::<dns::DomainName>().is_ok() => {
                    builder.policy.log.exclude_names.push(text.to_owned());
                }
                _ => builder.skip(
                    name.line,
                    &name.summary(),
                    "only names can be left out of the log",
                ),
            }
        }
        builder.skip_others(log, &["enabled", "ignored"], |key| match key {
            "interval" => "set dns.log_max_age".to_owned(),
            _ => "the log is part of the program".to_owned(),
        });
    }
    let known = [
        "dns",
        "filtering",
        "filters",
        "whitelist_filters",
        "user_rules",
        "clients",
        "querylog",
        "schema_version",
    ];
    builder.skip_others(root, &known, |key| {
        match key {
            "dhcp" => "there is no DHCP server here",
            "tls" => "set http.tls_cert, http.tls_key, dns.tls_listen and dns.tls_name",
            "users" | "auth_attempts" | "block_auth_min" | "http" | "language" | "theme" => {
                "the dashboard has tokens and settings of its own"
            }
            "statistics" => "statistics are kept for a year",
            "log" | "os" => "settings of the program: log.level, log.format",
            _ => "this setting is not known here",
        }
        .to_owned()
    });
    Ok(())
}

fn import_upstreams(dns: &Node, builder: &mut PolicyBuilder) {
    for server in dns.get("upstream_dns").map(Node::items).unwrap_or_default() {
        let Some(text) = server.text().filter(|text| !text.starts_with('#')) else { continue };
        if let Some(rest) = text.strip_prefix("[/") {
            let Some((domains, servers)) = rest.split_once("/]") else {
                builder.skip(server.line, text, "it is not of the form [/domain/]server");
                continue;
            };
            let domains: Vec<String> =
                domains.split('/').filter(|d| !d.is_empty()).map(str::to_owned).collect();
            let servers: Vec<UpstreamServer> = servers
                .split_whitespace()
                .filter(|server| *server != "#")
                .map(|address| UpstreamServer { address: address.to_owned(), ..Default::default() })
                .collect();
            if domains.is_empty() || servers.is_empty() {
                builder.skip(server.line, text, "it names no domain, or no server");
            } else {
                builder.add_domain_upstreams(server.line, DomainUpstreams { domains, servers });
            }
            continue;
        }
        if text.starts_with("quic://") || text.starts_with("h3://") {
            builder.skip(server.line, text, "DNS over QUIC and HTTP/3 are not spoken here");
            continue;
        }
        let address = text.strip_prefix("udp://").unwrap_or(text).to_owned();
        builder.add_upstream(server.line, UpstreamServer { address, ..Default::default() });
    }
    let bootstrap: Vec<String> = dns
        .get("bootstrap_dns")
        .map(Node::items)
        .unwrap_or_default()
        .iter()
        .filter_map(|server| server.text())
        .map(|text| text.trim_end_matches(":53").to_owned())
        .filter(|text| text.parse::<std::net::IpAddr>().is_ok())
        .collect();
    if !bootstrap.is_empty() {
        builder.policy.upstreams.bootstrap = bootstrap;
    }
    match dns.field("upstream_mode") {
        "parallel" | "fastest_addr" => {
            builder.policy.upstreams.strategy = Some(StrategyName::Fastest);
        }
        "load_balance" => builder.policy.upstreams.strategy = Some(StrategyName::LoadBalance),
        _ if dns.flag("all_servers", false) || dns.flag("fastest_addr", false) => {
            builder.policy.upstreams.strategy = Some(StrategyName::Fastest);
        }
        _ => {}
    }
    if let Some(seconds) =
        dns.get("upstream_timeout").and_then(Node::text).and_then(parse_duration_seconds)
    {
        builder.policy.upstreams.timeout_ms =
            Some((seconds * 1_000.0).clamp(100.0, 10_000.0) as u64);
    }
    for (field, reason) in [
        ("fallback_dns", "name them as further upstreams with the strategy failover"),
        ("local_ptr_upstreams", "name them as upstreams of the reverse domains"),
        ("edns_client_subnet", "client subnets are never sent to upstreams"),
    ] {
        let is_used = |node: &&Node| !node.items().is_empty() || node.flag("enabled", false);
        if let Some(node) = dns.get(field).filter(is_used) {
            builder.skip(node.line, field, reason);
        }
    }
}

fn import_access(dns: &Node, builder: &mut PolicyBuilder) {
    let mut networks = Vec::new();
    for client in dns.get("allowed_clients").map(Node::items).unwrap_or_default() {
        match client.text() {
            Some(text) if text.parse::<std::net::IpAddr>().is_ok() || text.contains('/') => {
                networks.push(text.to_owned());
            }
            _ => builder.skip(
                client.line,
                &client.summary(),
                "only addresses and networks are allowed here; make a client of the id",
            ),
        }
    }
    if !networks.is_empty() {
        builder.policy.access.networks = networks;
    }
    for client in dns.get("disallowed_clients").map(Node::items).unwrap_or_default() {
        builder.skip(
            client.line,
            &client.summary(),
            "access names those who may query; leave this one out of it",
        );
    }
    if let Some(limit) = dns.number("ratelimit").filter(|limit| *limit > 0.0) {
        let per_second = limit.min(1_000_000.0) as u32;
        builder.policy.rate_limit.per_second = per_second;
        builder.policy.rate_limit.burst = builder.policy.rate_limit.burst.max(per_second);
    }
    let exempt = dns.get("ratelimit_whitelist").map(Node::items).unwrap_or_default();
    let exempt = exempt.iter().filter_map(|client| client.text().map(str::to_owned));
    builder.policy.rate_limit.exempt.extend(exempt);
    if dns.flag("anonymize_client_ip", false) {
        builder.policy.log.addresses = LoggedAddresses::Truncated;
    }
    for key in
        ["cache_size", "cache_ttl_min", "cache_ttl_max", "cache_optimistic", "bind_hosts", "port"]
    {
        if let Some(node) = dns.get(key) {
            let reason = "belongs to a process: dns.listen, dns.cache_memory, dns.min_ttl, dns.max_ttl, dns.stale_max_age";
            builder.skip(node.line, &format!("{key}: {}", node.summary()), reason);
        }
    }
}

fn import_reply(node: &Node, builder: &mut PolicyBuilder) {
    let mode = match node.field("blocking_mode") {
        "default" | "null_ip" => BlockMode::NullAddress,
        "refused" => BlockMode::Refused,
        "nxdomain" => BlockMode::Nxdomain,
        "custom_ip" => BlockMode::CustomAddress,
        _ => return,
    };
    let address = |key: &str| Some(node.field(key).to_owned()).filter(|text| !text.is_empty());
    let (ipv4, ipv6) = (address("blocking_ipv4"), address("blocking_ipv6"));
    let reply = &mut builder.group(DEFAULT_GROUP).block_reply;
    reply.mode = mode;
    if mode == BlockMode::CustomAddress {
        (reply.ipv4, reply.ipv6) = (ipv4, ipv6);
    }
    if let Some(ttl) = node.number("blocked_response_ttl") {
        reply.ttl_seconds = ttl.clamp(1.0, 86_400.0) as u32;
    }
}

fn import_filtering(filtering: &Node, builder: &mut PolicyBuilder) {
    for rewrite in filtering.get("rewrites").map(Node::items).unwrap_or_default() {
        let (domain, answer) = (rewrite.field("domain"), rewrite.field("answer"));
        let kind = match answer.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V4(_)) => "A",
            Ok(std::net::IpAddr::V6(_)) => "AAAA",
            Err(_) if answer == "A" || answer == "AAAA" => {
                builder.skip(
                    rewrite.line,
                    &format!("{domain} {answer}"),
                    "exceptions of rewrites are not known here",
                );
                continue;
            }
            Err(_) => "CNAME",
        };
        builder.add_record(rewrite.line, domain, kind, answer);
    }
    import_safe_search(filtering, DEFAULT_GROUP, builder);
    import_services(filtering, DEFAULT_GROUP, builder);
    for key in ["parental_enabled", "safebrowsing_enabled"] {
        if let Some(node) = filtering.get(key).filter(|_| filtering.flag(key, false)) {
            let reason = "no vendor is asked about names; add a list of malware or of adult sites";
            builder.skip(node.line, key, reason);
        }
    }
}

fn import_safe_search(node: &Node, group: &str, builder: &mut PolicyBuilder) {
    let Some(safe) = node.get("safe_search") else {
        if node.flag("safesearch_enabled", false) {
            builder.group(group).safe_search = SEARCH_ENGINES.map(|(_, engine)| engine).into();
        }
        return;
    };
    if !safe.flag("enabled", false) {
        return;
    }
    let engines = SEARCH_ENGINES.into_iter().filter(|(name, _)| safe.flag(name, true));
    builder.group(group).safe_search = engines.map(|(_, engine)| engine).collect();
}

/// Blocked services. Their schedule there is the time at which they are *not* blocked.
fn import_services(node: &Node, group: &str, builder: &mut PolicyBuilder) {
    let Some(blocked) = node.get("blocked_services") else { return };
    let (ids, schedule) = match blocked.value {
        NodeValue::List(_) => (blocked.items(), None),
        _ => {
            let ids = blocked.get("ids").map(Node::items).unwrap_or_default();
            (ids, blocked.get("schedule").and_then(outside))
        }
    };
    for service in ids {
        let Some(id) = service.text() else { continue };
        let known = SERVICE_IDS.iter().find(|(there, _)| *there == id).map(|(_, here)| *here);
        builder.add_service(service.line, group, known.unwrap_or(id), schedule.clone());
    }
}

/// The times outside a schedule of AdGuard Home; none if it has no times.
fn outside(schedule: &Node) -> Option<WeekSchedule> {
    const NAMES: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    let clock = |seconds: f64| {
        let minutes = (seconds / 60.0).round() as u64;
        format!("{:02}:{:02}", minutes / 60, minutes % 60)
    };
    let mut windows = Vec::new();
    let mut has_times = false;
    for (index, name) in NAMES.iter().enumerate() {
        let Some(weekday) = day(index) else { continue };
        let days: Vec<WeekDay> = vec![weekday];
        let window = |start: String, end: String| ScheduleWindow { days: days.clone(), start, end };
        let Some(times) = schedule.get(name) else {
            windows.push(window("00:00".to_owned(), "24:00".to_owned()));
            continue;
        };
        let read = |key: &str| times.get(key).and_then(Node::text).and_then(parse_duration_seconds);
        let (Some(start), Some(end)) = (read("start"), read("end")) else {
            windows.push(window("00:00".to_owned(), "24:00".to_owned()));
            continue;
        };
        has_times = true;
        if start >= 60.0 {
            windows.push(window("00:00".to_owned(), clock(start)));
        }
        if end < 86_400.0 {
            windows.push(window(clock(end), "24:00".to_owned()));
        }
    }
    let zone = schedule.field("time_zone");
    let time_zone = if zone.is_empty() || zone == "Local" { "UTC" } else { zone }.to_owned();
    (has_times && !windows.is_empty()).then_some(WeekSchedule { time_zone, windows })
}

fn import_client(client: &Node, builder: &mut PolicyBuilder) {
    let name = client.field("name");
    let ids: Vec<&str> = client
        .get("ids")
        .map(Node::items)
        .unwrap_or_default()
        .iter()
        .filter_map(Node::text)
        .collect();
    let is_address = |id: &str| {
        id.contains('/') || id.parse::<std::net::IpAddr>().is_ok() || id.split(':').count() == 6
    };
    let addresses: Vec<String> =
        ids.iter().filter(|id| is_address(id)).map(|id| (*id).to_owned()).collect();
    let wanted = ids.iter().find(|id| !is_address(id)).copied().unwrap_or(name);
    let tags = client.get("tags").map(Node::items).unwrap_or_default();
    let tags: Vec<String> = tags.iter().filter_map(|tag| tag.text().map(str::to_owned)).collect();
    let own_servers: Vec<&Node> = client
        .get("upstreams")
        .map(Node::items)
        .unwrap_or_default()
        .iter()
        .filter(|server| server.text().is_some())
        .collect();
    let own_settings = !client.flag("use_global_settings", true);
    let own_services = !client.flag("use_global_blocked_services", true);
    let mut group = String::new();
    if own_settings
        || own_services
        || !own_servers.is_empty()
        || client.flag("ignore_querylog", false)
    {
        let id = make_id(wanted, "client", |_| false);
        group = builder.add_group(&format!("of-{id}"), &format!("Only {name}"), "");
        if own_settings {
            if !client.flag("filtering_enabled", true) {
                builder.group(&group).lists = Some(Vec::new());
            }
            import_safe_search(client, &group, builder);
        }
        if own_services {
            import_services(client, &group, builder);
        }
        let servers = own_servers.iter().filter_map(|server| server.text());
        let servers =
            servers.filter(|text| !text.starts_with("[/") && !text.starts_with("quic://"));
        builder.group(&group).upstreams = servers
            .map(|address| UpstreamServer { address: address.to_owned(), ..Default::default() })
            .collect();
        if client.flag("ignore_querylog", false) {
            builder.group(&group).log = GroupLog::Nothing;
        }
    }
    builder.add_client(client.line, wanted, name, &group, addresses, tags);
}
