//! The original: its YAML (default and override files alike), and the JSON of `GET /sync/config`.

use dns::{
    BlockMode, DEFAULT_GROUP, GroupLog, ListAction, LoggedAddresses, ScheduleAction, SearchEngine,
    StrategyName, UpstreamServer, WeekDay, WeekSchedule,
};

use super::builder::{PolicyBuilder, day, rule_of, week};
use super::document::{Node, NodeValue, parse_duration_seconds};

/// Parts that are read below.
const KNOWN: [&str; 12] = [
    "upstreams",
    "resolver_strategy",
    "upstream_timeout",
    "network",
    "blocklists",
    "client_groups",
    "client_identification",
    "local_records",
    "response",
    "safe_search",
    "query_store",
    "config_version",
];

pub(super) fn import(root: &Node, builder: &mut PolicyBuilder) -> Result<(), String> {
    if !matches!(root.value, NodeValue::Map(_)) {
        return Err("it is not a document of settings".to_owned());
    }
    if !KNOWN.iter().any(|key| root.get(key).is_some()) {
        return Err("it has none of the settings of beyond-ads-dns; name the program with format"
            .to_owned());
    }
    import_upstreams(root, builder);
    if let Some(lists) = root.get("blocklists") {
        import_lists(lists, None, builder);
    }
    if let Some(groups) = root.get("client_groups") {
        for group in groups.items() {
            import_group(group, builder);
        }
    }
    if let Some(clients) = root.get("client_identification") {
        import_clients(clients, builder);
    }
    for record in root.get("local_records").map(Node::items).unwrap_or_default() {
        let (name, kind, value) =
            (record.field("name"), record.field("type"), record.field("value"));
        builder.add_record(record.line, name, kind, value);
    }
    if let Some(response) = root.get("response") {
        import_response(response, builder);
    }
    if let Some(safe) = root.get("safe_search") {
        import_safe_search(safe, DEFAULT_GROUP, builder);
    }
    if let Some(log) = root.get("query_store") {
        import_log(log, builder);
    }
    builder.skip_others(root, &KNOWN, other);
    Ok(())
}

/// Says where a part that is no policy is set here.
fn other(key: &str) -> String {
    match key {
        "server" => "addresses belong to a process: dns.listen and dns.threads",
        "cache" => {
            "the cache belongs to a process: --store, dns.cache_memory, dns.max_keys, dns.min_ttl, \
             dns.max_ttl, dns.client_ttl_cap, dns.refresh, dns.stale_max_age"
        }
        "control" | "ui" | "logging" => {
            "the API, its token and the log of the program are settings of Tidegate"
        }
        "doh_dot_server" => "set http.tls_cert, http.tls_key and dns.tls_listen",
        "sync" => "not needed: instances share one store",
        "webhooks" | "usage_stats_webhook" => {
            "make them on the page Webhooks: dns.blocked, dns.error, dns.daily_summary"
        }
        "request_log" => {
            "not needed: the log can be exported, and followed with tidegate dns tail --json"
        }
        _ => "this setting is not known here",
    }
    .to_owned()
}

fn import_upstreams(root: &Node, builder: &mut PolicyBuilder) {
    for server in root.get("upstreams").map(Node::items).unwrap_or_default() {
        let (name, address) = (server.field("name"), server.field("address"));
        let protocol = server.field("protocol").to_ascii_lowercase();
        if protocol == "quic" || address.starts_with("quic://") {
            builder.skip(server.line, address, "DNS over QUIC is not spoken here");
            continue;
        }
        let address = match (address.contains("://"), protocol.as_str()) {
            (false, "tcp") => format!("tcp://{address}"),
            (false, "tls") => format!("tls://{address}"),
            (false, "https") => format!("https://{address}"),
            _ => address.to_owned(),
        };
        let name = name.to_owned();
        builder.add_upstream(server.line, UpstreamServer { address, name, bootstrap: vec![] });
    }
    if let Some(strategy) = root.get("resolver_strategy") {
        match strategy.text().unwrap_or_default() {
            "failover" => builder.policy.upstreams.strategy = Some(StrategyName::Failover),
            "load_balance" => builder.policy.upstreams.strategy = Some(StrategyName::LoadBalance),
            "weighted" => builder.policy.upstreams.strategy = Some(StrategyName::Weighted),
            other => builder.skip(strategy.line, other, "there is no such strategy"),
        }
    }
    let timeout =
        root.get("upstream_timeout").or_else(|| root.at(&["network", "upstream_timeout"]));
    if let Some(timeout) = timeout {
        let text = timeout.text().unwrap_or_default();
        match parse_duration_seconds(text) {
            Some(seconds) => {
                let ms = (seconds * 1_000.0).clamp(100.0, 10_000.0);
                builder.policy.upstreams.timeout_ms = Some(ms as u64);
            }
            None => builder.skip(timeout.line, text, "it is not a duration"),
        }
    }
    if let Some(network) = root.get("network") {
        builder.skip_others(network, &["upstream_timeout"], |_| {
            "connections and pauses of upstreams belong to a process: dns.backoff".to_owned()
        });
    }
}

/// Lists, rules and times, for everybody or a group.
fn import_lists(lists: &Node, group: Option<&str>, builder: &mut PolicyBuilder) {
    if let Some(every) = lists.get("refresh_interval") {
        match every.text().and_then(parse_duration_seconds) {
            Some(seconds) => {
                let hours = (seconds / 3_600.0).ceil().clamp(1.0, 720.0);
                builder.policy.list_refresh.every_hours = hours as u32;
            }
            None => builder.skip(every.line, &every.summary(), "it is not a duration"),
        }
    }
    let mut own = Vec::new();
    for source in lists.get("sources").map(Node::items).unwrap_or_default() {
        let (name, url) = (source.field("name"), source.field("url"));
        if let Some(id) = builder.add_list(source.line, name, url, ListAction::Block, true) {
            own.push(id);
        }
    }
    if let Some(group) = group {
        for id in &own {
            builder.restrict_list(id);
        }
        builder.group(group).lists = Some(own);
    }
    for (field, is_allow) in [("allowlist", true), ("denylist", false)] {
        for rule in lists.get(field).map(Node::items).unwrap_or_default() {
            if let Some(text) = rule.text() {
                builder.add_rule(rule.line, &rule_of(text, is_allow), group);
            }
        }
    }
    let group = group.unwrap_or(DEFAULT_GROUP);
    if let Some(pause) = lists.get("scheduled_pause").filter(|pause| pause.flag("enabled", false)) {
        let action = ScheduleAction::Pause;
        builder.add_schedule(pause.line, group, "scheduled pause", action, times(pause));
    }
    if let Some(family) = lists.get("family_time").filter(|family| family.flag("enabled", false)) {
        import_family_time(family, group, builder);
    }
    if let Some(health) = lists.get("health_check") {
        builder.skip(
            health.line,
            &health.summary(),
            "not needed: a source that fails leaves its last good copy in use",
        );
    }
}

fn times(node: &Node) -> WeekSchedule {
    let days: Vec<WeekDay> = node
        .get("days")
        .map(Node::items)
        .unwrap_or_default()
        .iter()
        .filter_map(|number| day(number.text()?.parse().ok()?))
        .collect();
    week(node.field("start"), node.field("end"), days, "UTC")
}

/// Services and domains that are blocked at some times.
fn import_family_time(family: &Node, group: &str, builder: &mut PolicyBuilder) {
    let schedule = times(family);
    for service in family.get("services").map(Node::items).unwrap_or_default() {
        if let Some(id) = service.text() {
            builder.add_service(service.line, group, id, Some(schedule.clone()));
        }
    }
    let domains: Vec<String> = family
        .get("domains")
        .map(Node::items)
        .unwrap_or_default()
        .iter()
        .filter_map(|domain| domain.text().map(str::to_owned))
        .collect();
    if !domains.is_empty() {
        let id = format!("family-time-{group}");
        builder.add_custom_service(&id, "Family time", domains);
        builder.add_service(family.line, group, &id, Some(schedule));
    }
    builder.skip(
        family.line,
        &format!("family_time {}–{}", family.field("start"), family.field("end")),
        "imported in UTC: the original uses the server's own time zone. Choose yours on the page Groups",
    );
}

fn import_group(group: &Node, builder: &mut PolicyBuilder) {
    let wanted = group.field("id");
    let wanted = if wanted.is_empty() { group.field("name") } else { wanted };
    if wanted.is_empty() {
        return builder.skip(group.line, "a group", "it has no id");
    }
    let id = builder.add_group(wanted, group.field("name"), group.field("description"));
    if let Some(lists) = group.get("blocklist") {
        // Only then the original gives a group lists of its own; else it ignores what is here.
        if !lists.flag("inherit_global", true) {
            import_lists(lists, Some(&id), builder);
        }
    }
    if let Some(safe) = group.get("safe_search") {
        import_safe_search(safe, &id, builder);
    }
    if group.flag("disable_cache", false) {
        builder.group(&id).cache = false;
    }
}

fn import_safe_search(safe: &Node, group: &str, builder: &mut PolicyBuilder) {
    let engines = match safe.flag("enabled", false) {
        false => Vec::new(),
        true => [("google", SearchEngine::Google), ("bing", SearchEngine::Bing)]
            .into_iter()
            .filter(|(name, _)| safe.flag(name, true))
            .map(|(_, engine)| engine)
            .collect(),
    };
    builder.group(group).safe_search = engines;
}

fn import_clients(node: &Node, builder: &mut PolicyBuilder) {
    let Some(clients) = node.get("clients") else { return };
    // The old form: address and name.
    for (address, name) in clients.entries() {
        let text = name.text().unwrap_or(address);
        builder.add_client(name.line, text, text, "", vec![address.clone()], Vec::new());
    }
    for client in clients.items() {
        let (ip, name, group) =
            (client.field("ip"), client.field("name"), client.field("group_id"));
        let wanted = if name.is_empty() { ip } else { name };
        let group = match group {
            "" => String::new(),
            group if group.eq_ignore_ascii_case(DEFAULT_GROUP) => String::new(),
            group => super::builder::make_id(group, "group", |_| false),
        };
        builder.add_client(client.line, wanted, name, &group, vec![ip.to_owned()], Vec::new());
    }
}

fn import_response(response: &Node, builder: &mut PolicyBuilder) {
    let blocked = response.field("blocked").to_owned();
    let ttl = response.get("blocked_ttl").and_then(Node::text).and_then(parse_duration_seconds);
    let reply = &mut builder.group(DEFAULT_GROUP).block_reply;
    if let Some(seconds) = ttl {
        reply.ttl_seconds = seconds.clamp(1.0, 86_400.0) as u32;
    }
    match blocked.parse::<std::net::IpAddr>() {
        _ if blocked.is_empty() => {}
        Ok(ip) if ip.is_unspecified() => reply.mode = BlockMode::NullAddress,
        Ok(std::net::IpAddr::V4(ip)) => {
            (reply.mode, reply.ipv4) = (BlockMode::CustomAddress, Some(ip.to_string()));
        }
        Ok(std::net::IpAddr::V6(ip)) => {
            (reply.mode, reply.ipv6) = (BlockMode::CustomAddress, Some(ip.to_string()));
        }
        Err(_) if blocked.eq_ignore_ascii_case("nxdomain") => reply.mode = BlockMode::Nxdomain,
        Err(_) => builder.skip(response.line, &blocked, "it is neither nxdomain nor an address"),
    }
}

fn import_log(log: &Node, builder: &mut PolicyBuilder) {
    if !log.flag("enabled", true) {
        builder.group(DEFAULT_GROUP).log = GroupLog::Nothing;
    }
    if let Some(rate) = log.number("sample_rate").filter(|rate| *rate > 0.0) {
        builder.policy.log.sample_one_in = (1.0 / rate).round().clamp(1.0, 1_000.0) as u32;
    }
    match log.field("anonymize_client_ip") {
        "hash" => builder.policy.log.addresses = LoggedAddresses::Hashed,
        "truncate" => builder.policy.log.addresses = LoggedAddresses::Truncated,
        _ => {}
    }
    for name in log.get("exclude_domains").map(Node::items).unwrap_or_default() {
        match name.text() {
            Some(text) if text.starts_with('/') => {
                builder.skip(name.line, text, "patterns cannot be left out of the log, only names");
            }
            Some(text) if text.parse::<dns::DomainName>().is_ok() => {
                builder.policy.log.exclude_names.push(text.to_owned());
            }
            Some(text) => builder.skip(name.line, text, "it is not the name of a domain"),
            None => {}
        }
    }
    for client in log.get("exclude_clients").map(Node::items).unwrap_or_default() {
        if let Some(text) = client.text() {
            builder.policy.log.exclude_clients.push(text.to_owned());
        }
    }
    let known =
        ["enabled", "sample_rate", "anonymize_client_ip", "exclude_domains", "exclude_clients"];
    builder.skip_others(log, &known, |key| {
        match key {
            "retention_hours" | "max_size_mb" => "set dns.log_max_age and dns.log_max_size",
            _ => "the log is part of the program; dns.log_sink sends rows to ClickHouse",
        }
        .to_owned()
    });
}
