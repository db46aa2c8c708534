use dns::{BlockMode, ListAction, LoggedAddresses, Policy, SearchEngine, StrategyName};

use super::*;

fn run(text: &str, format: Option<ImportFormat>) -> ImportReport {
    import(text.as_bytes(), "settings.yaml", format, Policy::default()).unwrap()
}

fn reasons(report: &ImportReport) -> Vec<(usize, &str)> {
    report.skipped.iter().map(|one| (one.line, one.text.as_str())).collect()
}

const ORIGINAL: &str = r##"
config_version: 2
server:
  listen: ["0.0.0.0:53"]
upstreams:
  - name: quad9
    address: 9.9.9.9:53
    protocol: udp
  - name: dot
    address: tls://dns.example:853
  - name: doq
    address: quic://dns.example:853
resolver_strategy: load_balance
network:
  upstream_timeout: 1500ms
blocklists:
  refresh_interval: 6h
  sources:
    - name: Ads and trackers
      url: https://lists.example/ads.txt
    - name: bad
      url: ftp://lists.example/x
  allowlist: [good.example, "/^safe[0-9]+\\.example$/"]
  denylist:
    - bad.example
    - "not a name at all"
  scheduled_pause: { enabled: true, start: "09:00", end: "17:00", days: [1, 2, 3, 4, 5] }
  family_time:
    enabled: true
    start: "17:00"
    end: "20:00"
    services: [tiktok, nosuchservice]
    domains: [games.example]
client_groups:
  - id: kids
    name: Kids
    blocklist:
      inherit_global: false
      sources: [{ name: kids, url: "https://lists.example/kids.txt" }]
      denylist: [video.example]
    safe_search: { enabled: true, google: true, bing: false }
    disable_cache: true
client_identification:
  enabled: true
  clients:
    - { ip: 192.168.1.20, name: Ann's tablet, group_id: kids }
    - { ip: nonsense, name: broken }
local_records:
  - { name: printer.home.arpa, type: A, value: 192.168.1.9 }
  - { name: x.home.arpa, type: A, value: not-an-address }
response: { blocked: nxdomain, blocked_ttl: 10m }
safe_search: { enabled: true }
query_store:
  sample_rate: 0.1
  anonymize_client_ip: truncate
  exclude_domains: [local.example]
  retention_hours: 24
"##;

#[test]
fn the_yaml_of_the_original_becomes_a_policy_and_the_rest_is_reported_by_line() {
    let report = run(ORIGINAL, None);
    let policy = &report.policy;
    policy.check().unwrap();
    assert_eq!(report.format, ImportFormat::Original);
    let servers: Vec<&str> =
        policy.upstreams.servers.iter().map(|server| server.address.as_str()).collect();
    assert_eq!(servers, ["9.9.9.9:53", "tls://dns.example:853"]);
    assert_eq!(policy.upstreams.strategy, Some(StrategyName::LoadBalance));
    assert_eq!(policy.upstreams.timeout_ms, Some(1_500));
    assert_eq!(policy.list_refresh.every_hours, 6);
    let lists: Vec<&str> = policy.lists.iter().map(|list| list.id.as_str()).collect();
    assert_eq!(lists, ["ads-and-trackers", "kids"]);
    assert_eq!(policy.rules, ["@@||good.example^", r"@@/^safe[0-9]+\.example$/", "||bad.example^"]);
    let group = |id: &str| policy.groups.iter().find(|group| group.id == id).unwrap();
    let (kids, default) = (group("kids"), group("default"));
    assert_eq!(kids.lists.as_deref(), Some(&["kids".to_owned()][..]));
    assert_eq!(default.lists.as_deref(), Some(&["ads-and-trackers".to_owned()][..]));
    assert_eq!((&kids.rules[..], kids.cache), (&["||video.example^".to_owned()][..], false));
    assert_eq!(kids.safe_search, [SearchEngine::Google]);
    assert_eq!(default.safe_search, [SearchEngine::Google, SearchEngine::Bing]);
    assert_eq!(
        (default.block_reply.mode, default.block_reply.ttl_seconds),
        (BlockMode::Nxdomain, 600)
    );
    assert_eq!(default.schedules[0].schedule.windows[0].days.len(), 5);
    let services: Vec<&str> = default.services.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(services, ["tiktok", "family-time-default"]);
    assert_eq!(policy.clients.len(), 1);
    assert_eq!(
        (policy.clients[0].id.as_str(), policy.clients[0].group.as_str()),
        ("ann-s-tablet", "kids")
    );
    assert_eq!(policy.records.len(), 1);
    assert_eq!((policy.log.sample_one_in, policy.log.addresses), (10, LoggedAddresses::Truncated));
    let lines: Vec<usize> = report.skipped.iter().map(|one| one.line).collect();
    let line_of = |text: &str| 1 + ORIGINAL.lines().position(|line| line.contains(text)).unwrap();
    for text in [
        "server:",
        "name: doq",
        "name: bad",
        "not a name",
        "services:",
        "nonsense",
        "x.home.arpa",
        "retention_hours",
    ] {
        assert!(lines.contains(&line_of(text)), "{text}: {:?}", reasons(&report));
    }
    assert_eq!(report.counts.rules, 4);
}

#[test]
fn the_sync_document_of_the_original_is_read_with_its_go_names() {
    let text = r#"{
      "upstreams": [{ "Name": "a", "Address": "192.0.2.1:53", "Protocol": "udp" }],
      "resolver_strategy": "failover",
      "blocklists": { "refresh_interval": "6h0m0s", "sources": [{ "Name": "ads", "URL": "https://lists.example/a" }],
        "allowlist": ["ok.example"], "denylist": null, "scheduled_pause": { "Enabled": false } },
      "client_groups": [{ "ID": "kids", "Name": "Kids" }],
      "client_identification": { "enabled": true, "clients": [{ "IP": "192.0.2.9", "Name": "tv", "GroupID": "kids" }] },
      "local_records": [{ "Name": "nas.home.arpa", "Type": "A", "Value": "192.0.2.3" }],
      "response": { "blocked": "0.0.0.0", "blocked_ttl": "1h0m0s" },
      "safe_search": { "enabled": false }
    }"#;
    let report = run(text, None);
    assert_eq!(report.skipped, []);
    let policy = report.policy;
    policy.check().unwrap();
    assert_eq!(policy.clients[0].group, "kids");
    assert_eq!(
        (policy.lists[0].url.as_str(), policy.rules[0].as_str()),
        ("https://lists.example/a", "@@||ok.example^")
    );
    assert_eq!(policy.records[0].name, "nas.home.arpa");
    assert_eq!(policy.upstreams.servers[0].address, "192.0.2.1:53");
}

const ADGUARD: &str = r##"
schema_version: 28
http:
  address: 0.0.0.0:80
dns:
  upstream_dns:
    - "# a comment"
    - https://dns.example/dns-query
    - "[/lan/home.arpa/]192.168.1.1"
    - quic://dns.example
  bootstrap_dns: [9.9.9.10, 149.112.112.10]
  upstream_mode: parallel
  ratelimit: 30
  allowed_clients: [192.168.1.0/24]
  cache_size: 4194304
filtering:
  blocking_mode: custom_ip
  blocking_ipv4: 192.0.2.53
  blocked_services:
    schedule:
      time_zone: Europe/Berlin
      mon: { start: 8h, end: 20h }
    ids: [tiktok, unknown_service]
  safe_search: { enabled: true, bing: false }
  rewrites:
    - { domain: nas.lan, answer: 192.168.1.3 }
    - { domain: www.lan, answer: nas.lan }
  safebrowsing_enabled: true
filters:
  - { enabled: true, url: "https://lists.example/filter.txt", name: AdGuard DNS filter, id: 1 }
  - { enabled: false, url: /opt/list.txt, name: local, id: 2 }
whitelist_filters:
  - { enabled: true, url: "https://lists.example/allow.txt", name: Allow, id: 3 }
user_rules:
  - "! a comment"
  - "||ads.example^"
  - "@@||good.example^$important"
  - "example.com##.banner"
clients:
  persistent:
    - name: Ann's tablet
      ids: [192.168.1.20, "02:00:5e:10:00:01", anns-tablet]
      tags: [device_tablet]
      use_global_settings: false
      filtering_enabled: false
      use_global_blocked_services: true
querylog: { enabled: true, ignored: [lan], interval: 24h }
dhcp: { enabled: false }
"##;

#[test]
fn the_yaml_of_adguard_home_becomes_a_policy_and_the_rest_is_reported_by_line() {
    let report = run(ADGUARD, None);
    let policy = &report.policy;
    policy.check().unwrap();
    assert_eq!(report.format, ImportFormat::AdguardHome);
    assert_eq!(policy.upstreams.servers[0].address, "https://dns.example/dns-query");
    assert_eq!(policy.upstreams.domains[0].domains, ["lan", "home.arpa"]);
    assert_eq!(policy.upstreams.strategy, Some(StrategyName::Fastest));
    assert_eq!(policy.access.networks, ["192.168.1.0/24"]);
    assert_eq!(policy.rate_limit.per_second, 30);
    let actions: Vec<ListAction> = policy.lists.iter().map(|list| list.action).collect();
    assert_eq!(actions, [ListAction::Block, ListAction::Allow]);
    assert_eq!(policy.rules, ["||ads.example^", "@@||good.example^$important"]);
    let default = policy.groups.iter().find(|group| group.id == "default").unwrap();
    assert_eq!(default.block_reply.ipv4.as_deref(), Some("192.0.2.53"));
    assert_eq!(default.services.len(), 1);
    // Not blocked on Mondays from 8 to 20, so blocked around it and on all other days.
    let windows = &default.services[0].schedule.as_ref().unwrap().windows;
    assert_eq!(windows.len(), 8);
    assert!(default.safe_search.contains(&SearchEngine::Google));
    assert!(!default.safe_search.contains(&SearchEngine::Bing));
    let records: Vec<&str> = policy.records.iter().map(|one| one.record_type.as_str()).collect();
    assert_eq!(records, ["A", "CNAME"]);
    let client = &policy.clients[0];
    assert_eq!((client.id.as_str(), client.addresses.len()), ("anns-tablet", 2));
    let own = policy.groups.iter().find(|group| group.id == client.group).unwrap();
    assert_eq!(own.lists.as_deref(), Some(&[][..]), "this client is not filtered by lists");
    assert_eq!(policy.log.exclude_names, ["lan"]);
    let line_of = |text: &str| 1 + ADGUARD.lines().position(|line| line.contains(text)).unwrap();
    let lines: Vec<usize> = report.skipped.iter().map(|one| one.line).collect();
    for text in [
        "quic://",
        "/opt/list.txt",
        "##.banner",
        "unknown_service",
        "safebrowsing",
        "dhcp:",
        "cache_size",
        "http:",
    ] {
        assert!(lines.contains(&line_of(text)), "{text}: {:?}", reasons(&report));
    }
}

fn tar_gz(files: &[(&str, &str)]) -> Vec<u8> {
    use std::io::Write as _;
    let mut tar = Vec::new();
    for (name, text) in files {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        let size = format!("{:011o}", text.len());
        header[124..135].copy_from_slice(size.as_bytes());
        header[156] = b'0';
        header[257..262].copy_from_slice(b"ustar");
        tar.extend(header);
        tar.extend(text.as_bytes());
        tar.resize(tar.len().div_ceil(512) * 512, 0);
    }
    tar.resize(tar.len() + 1_024, 0);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&tar).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn the_teleporter_of_pi_hole_becomes_a_policy() {
    let archive = tar_gz(&[
        (
            "group.json",
            r#"[{"id":0,"enabled":1,"name":"Default"},{"id":2,"enabled":1,"name":"Kids","description":"small"}]"#,
        ),
        (
            "adlist.json",
            r#"[{"id":1,"address":"https://lists.example/hosts","enabled":1,"comment":"Ads"},
 {"id":2,"address":"https://lists.example/kids","enabled":1,"comment":"Kids"}]"#,
        ),
        (
            "adlist_by_group.json",
            r#"[{"adlist_id":1,"group_id":0},{"adlist_id":1,"group_id":2},{"adlist_id":2,"group_id":2}]"#,
        ),
        (
            "blacklist.exact.json",
            r#"[{"id":1,"domain":"bad.example","enabled":1},
 {"id":2,"domain":"off.example","enabled":0}]"#,
        ),
        ("blacklist.regex.json", r#"[{"id":3,"domain":"^ad[0-9]","enabled":1}]"#),
        ("whitelist.exact.json", r#"[{"id":4,"domain":"good.example","enabled":1}]"#),
        ("domainlist_by_group.json", r#"[{"domainlist_id":1,"group_id":2}]"#),
        ("client.json", r#"[{"id":1,"ip":"192.168.1.20","comment":"tablet"}]"#),
        ("client_by_group.json", r#"[{"client_id":1,"group_id":2}]"#),
        ("etc/pihole/custom.list", "192.168.1.9 printer.lan\nnonsense x.lan\n"),
        ("05-pihole-custom-cname.conf", "cname=www.lan,printer.lan\n"),
        ("setupVars.conf", "PIHOLE_DNS_1=9.9.9.9\nPIHOLE_DNS_2=127.0.0.1#5335\n"),
        ("dhcp.leases", "x"),
    ]);
    let report = import(&archive, "pi-hole.tar.gz", None, Policy::default()).unwrap();
    let policy = &report.policy;
    policy.check().unwrap();
    assert_eq!(report.format, ImportFormat::Pihole);
    let group = |id: &str| policy.groups.iter().find(|group| group.id == id).unwrap();
    assert_eq!(group("kids").lists.as_ref().unwrap().len(), 2);
    assert_eq!(group("default").lists.as_ref().unwrap().len(), 1);
    assert_eq!(group("kids").rules, ["|bad.example|"]);
    assert_eq!(policy.rules, ["/^ad[0-9]/", "@@|good.example|"]);
    assert_eq!(policy.clients[0].group, "kids");
    assert_eq!(policy.records.len(), 2);
    let servers: Vec<&str> =
        policy.upstreams.servers.iter().map(|server| server.address.as_str()).collect();
    assert_eq!(servers, ["9.9.9.9", "127.0.0.1:5335"]);
    let skipped: Vec<(&str, usize)> =
        report.skipped.iter().map(|one| (one.file.as_str(), one.line)).collect();
    assert_eq!(skipped, [("blacklist.exact.json", 2), ("custom.list", 2), ("dhcp.leases", 1)]);
}

#[test]
fn what_cannot_be_read_is_an_error_that_names_the_line() {
    let import_text = |text: &str| import(text.as_bytes(), "x.yaml", None, Policy::default());
    let broken = import_text("upstreams:\n  - a: [1, 2\nb: c\n").unwrap_err();
    assert!(broken.starts_with("line "), "{broken}");
    assert!(import_text("").is_err());
    assert!(import_text("just a text").is_err());
    assert!(import_text("unknown: 1\n").unwrap_err().contains("beyond-ads-dns"));
    assert!(import(b"PK\x03\x04", "x.zip", None, Policy::default()).unwrap_err().contains("ZIP"));
    assert!(import(&[0x1f, 0x8b, 1, 2, 3], "x", None, Policy::default()).is_err());
    let bomb = format!("a: &a [1]\nupstreams: [{}]", "*a,".repeat(10));
    assert!(import_text(&bomb).unwrap_err().contains("aliases"));
}

/// Any bytes, and any cut of a true file, are refused or imported: never a panic.
#[test]
fn damaged_files_are_refused_or_read() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for text in [ORIGINAL, ADGUARD] {
        for _ in 0..400 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..1 + random() % 4 {
                let at = (random() % bytes.len().max(1) as u64) as usize;
                if bytes.is_empty() {
                    break;
                }
                match random() % 3 {
                    0 => bytes[at] = (random() % 256) as u8,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            if let Ok(report) = import(&bytes, "x.yaml", None, Policy::default()) {
                report.policy.check().unwrap();
            }
        }
    }
}

/// A short document: lines of a sample that follow each other, with some bytes and words exchanged.
fn damaged(random: &mut fastrand::Rng, sample: &str) -> Vec<u8> {
    const WORDS: [&str; 14] = [
        "&a",
        "*a",
        "<<: *a",
        "!!binary",
        "- - -",
        "{",
        "}",
        "[",
        "\"",
        "|\n",
        "? ",
        "\u{0}",
        "\t",
        "99999999999999999999",
    ];
    let lines: Vec<&str> = sample.lines().collect();
    let start = random.usize(..lines.len());
    let count = random.usize(1..8).min(lines.len() - start);
    let mut bytes = lines[start..start + count].join("\n").into_bytes();
    for _ in 0..random.usize(..6) {
        let at = random.usize(..=bytes.len());
        match random.u8(..4) {
            0 if at < bytes.len() => bytes[at] = random.u8(..),
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => {
                let word = WORDS[random.usize(..WORDS.len())];
                bytes.splice(at..at, word.bytes());
            }
            _ => bytes.insert(at, b" :-#'\n,"[random.usize(..7)]),
        }
    }
    bytes
}

#[test]
fn whatever_is_imported_nothing_breaks_and_the_policy_is_sound() {
    let cases = std::env::var("DNS_FUZZ_CASES").ok().and_then(|text| text.parse().ok());
    let mut random = fastrand::Rng::with_seed(0x1347);
    let pihole = "/^ad[0-9]+\\./\n||ads.example^\nbad.example # why\n0.0.0.0 spam.example\n";
    let samples = [
        (ORIGINAL, "settings.yaml", Some(ImportFormat::Original)),
        (ADGUARD, "AdGuardHome.yaml", Some(ImportFormat::AdguardHome)),
        (pihole, "blacklist.txt", Some(ImportFormat::Pihole)),
        (pihole, "regex.list", None),
    ];
    let (mut read, mut refused) = (0_u64, 0_u64);
    for _ in 0..cases.unwrap_or(100_000_u64) {
        let (sample, name, format) = samples[random.usize(..samples.len())];
        let bytes = damaged(&mut random, sample);
        match import(&bytes, name, format, Policy::default()) {
            Ok(report) => {
                read += 1;
                let checked = report.policy.check();
                assert!(checked.is_ok(), "{checked:?} of {:?}", String::from_utf8_lossy(&bytes));
            }
            Err(reason) => {
                refused += 1;
                assert!(!reason.is_empty());
            }
        }
    }
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
}

#[test]
fn documents_that_unfold_without_end_are_refused_in_time() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..20 {
        let before = level - 1;
        let uses = vec![format!("*a{before}"); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{uses}]\n"));
    }
    let deep = format!("user_rules: {}{}", "[".repeat(100_000), "]".repeat(100_000));
    for text in [bomb.as_str(), deep.as_str()] {
        let since = std::time::Instant::now();
        let result = import(text.as_bytes(), "settings.yaml", None, Policy::default());
        assert!(
            result.is_err() || result.is_ok_and(|report| report.counts == ImportCounts::default())
        );
        assert!(
            since.elapsed() < std::time::Duration::from_secs(5),
            "it took {:?}",
            since.elapsed()
        );
    }
}
