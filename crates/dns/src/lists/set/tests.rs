use proptest::prelude::*;

use super::*;

const SEED: HashSeed = HashSeed(0x5eed);

const NOBODY: ClientFacts<'static> = ClientFacts {
    address: IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 1, 7)),
    id: "tv",
    name: "Living room",
    tags: &[],
};

fn name(text: &str) -> DomainName {
    text.parse().unwrap()
}

fn set(text: &str) -> ListSet {
    ListSet::build(text.as_bytes(), SEED).0
}

fn effect_for(set: &ListSet, text: &str, qtype: u16) -> Option<RuleEffect> {
    set.find(&MatchName::new(SEED, &name(text), qtype, NOBODY)).map(|found| found.effect)
}

fn effect(list: &str, text: &str) -> Option<RuleEffect> {
    effect_for(&set(list), text, 1)
}

#[test]
fn names_match_themselves_and_what_is_below() {
    let list = "||ads.example^\n0.0.0.0 exact.example\n@@||good.ads.example^\n";
    for (text, effect_expected) in [
        ("ads.example", Some(RuleEffect::Block)),
        ("x.y.ads.example", Some(RuleEffect::Block)),
        ("badads.example", None),
        ("example", None),
        ("exact.example", Some(RuleEffect::Block)),
        ("www.exact.example", None),
        ("good.ads.example", Some(RuleEffect::Allow)),
        ("very.good.ads.example", Some(RuleEffect::Allow)),
    ] {
        assert_eq!(effect(list, text), effect_expected, "{text}");
    }
}

#[test]
fn important_rules_win_over_exceptions() {
    let list = "||a.example^$important\n@@||a.example^\n||b.example^$important\n@@||b.example^$important\n";
    assert_eq!(effect(list, "a.example"), Some(RuleEffect::Block));
    assert_eq!(effect(list, "b.example"), Some(RuleEffect::Allow));
}

#[test]
fn badfilter_removes_its_equal() {
    let list = "||a.example^\n||a.example^$badfilter\n||b.example^$dnstype=A\n||b.example^$dnstype=A,badfilter\n";
    assert_eq!(effect(list, "a.example"), None);
    assert_eq!(effect(list, "b.example"), None);
}

#[test]
fn badfilter_of_one_set_cancels_rules_of_another() {
    let list =
        set("||a.example^\n0.0.0.0 b.example\n||c.example^$dnstype=A\n/^ad/\n||192.0.2.1^\n");
    let rules = [
        "||a.example^$badfilter",
        "|b.example|$badfilter",
        "||c.example^$dnstype=A,badfilter",
        "/^ad/$badfilter",
        "||192.0.2.1^$badfilter",
        "||other.example^$badfilter",
    ]
    .map(str::to_owned);
    let rules = ListSet::of_rules(&rules, SEED).unwrap();
    for text in ["x.a.example", "b.example", "c.example", "ads.example"] {
        let asked = MatchName::new(SEED, &name(text), 1, NOBODY);
        assert!(list.find(&asked).is_some(), "{text}");
        assert_eq!(list.find_left(&asked, &[&rules.cancelled]), None, "{text}");
        let address = [192, 0, 2, 1].into();
        assert!(list.find_address(address, &asked, &[]).is_some());
        assert_eq!(list.find_address(address, &asked, &[&rules.cancelled]), None);
    }
}

#[test]
fn modifiers_narrow_a_rule() {
    let typed = set("||a.example^$dnstype=AAAA|HTTPS\n");
    assert_eq!(effect_for(&typed, "a.example", 1), None);
    assert_eq!(effect_for(&typed, "a.example", 28), Some(RuleEffect::Block));
    assert_eq!(effect_for(&typed, "a.example", 65), Some(RuleEffect::Block));
    let deny = "*$denyallow=good.example|org\n";
    assert_eq!(effect(deny, "x.example"), Some(RuleEffect::Block));
    assert_eq!(effect(deny, "a.good.example"), None);
    assert_eq!(effect(deny, "notgood.example"), Some(RuleEffect::Block));
    for (list, is_blocked) in [
        ("||a.example^$client=tv", true),
        ("||a.example^$client=192.168.1.0/24", true),
        ("||a.example^$client=192.168.1.7", true),
        ("||a.example^$client='living room'", true),
        ("||a.example^$client=phone", false),
        ("||a.example^$client=~tv", false),
        ("||a.example^$ctag=kid", false),
        ("||a.example^$ctag=~kid", true),
    ] {
        assert_eq!(effect(list, "a.example").is_some(), is_blocked, "{list}");
        assert!(set(list).depends_on_client());
    }
}

#[test]
fn patterns_and_expressions_match() {
    assert!(effect("||ad*.example^", "adserver.example").is_some());
    assert!(effect("||ad*.example^", "x.adserver.example").is_some());
    assert!(effect("||ad*.example^", "bad.example").is_none());
    assert!(effect("|ad*.example|", "x.adserver.example").is_none());
    assert!(effect("/^ad[0-9]+\\./", "ad12.example").is_some());
    assert!(effect("/^ad[0-9]+\\./", "x.ad12.example").is_none());
    assert_eq!(effect("@@/^ad1\\./\n||example^", "ad1.example"), Some(RuleEffect::Allow));
}

#[test]
fn rewrites_and_their_exceptions() {
    let rewrite = RuleEffect::Rewrite(Rewrite::Code(3));
    assert_eq!(effect("||a.example^$dnsrewrite=NXDOMAIN", "a.example"), Some(rewrite));
    assert_eq!(
        effect("||a.example^$dnsrewrite=NXDOMAIN\n@@||a.example^$dnsrewrite", "a.example"),
        None
    );
}

#[test]
fn rewrites_of_one_name_are_its_records() {
    let records = |records: &[(u16, &str)]| {
        let records = records.iter().map(|(rtype, value)| (*rtype, (*value).to_owned()));
        Some(RuleEffect::Rewrite(Rewrite::Records(records.collect())))
    };
    let list = "||a.example^\n||a.example^$dnsrewrite=192.0.2.1\n||a.example^$dnsrewrite=192.0.2.2\n\
                ||a.example^$dnsrewrite=NOERROR;AAAA;2001:db8::1\n";
    let all = [(1, "192.0.2.1"), (1, "192.0.2.2"), (28, "2001:db8::1")];
    assert_eq!(effect(list, "a.example"), records(&all), "before the block");
    let closer = format!("||example^$dnsrewrite=192.0.2.8\n{list}");
    assert_eq!(effect(&closer, "a.example"), records(&all), "of the closest name only");
    let alias = "||a.example^$dnsrewrite=192.0.2.1\n||a.example^$dnsrewrite=b.example";
    assert_eq!(
        effect(alias, "a.example"),
        Some(RuleEffect::Rewrite(Rewrite::Alias(name("b.example"))))
    );
    assert_eq!(effect(&format!("{list}@@||a.example^"), "a.example"), Some(RuleEffect::Allow));
    let important = format!("{list}||a.example^$important,dnsrewrite=192.0.2.9");
    assert_eq!(effect(&important, "a.example"), records(&[(1, "192.0.2.9")]));
}

#[test]
fn the_closest_trigger_of_a_zone_counts() {
    let zone = "$TTL 60\n*.good.example CNAME rpz-passthru.\nbad.good.example CNAME .\n\
                *.garden.example A 192.0.2.1\n*.garden.example AAAA 2001:db8::1\n\
                no.garden.example CNAME .\n*.deep.garden.example CNAME *.\n\
                24.0.2.0.192.rpz-ip CNAME .\n32.7.2.0.192.rpz-ip CNAME rpz-passthru.\n\
                8.0.0.0.10.rpz-ip CNAME rpz-passthru.\n16.0.0.1.10.rpz-ip CNAME .\n";
    let nxdomain = Some(RuleEffect::Rewrite(Rewrite::Code(3)));
    assert_eq!(effect(zone, "x.good.example"), Some(RuleEffect::Allow));
    assert_eq!(effect(zone, "bad.good.example"), nxdomain);
    assert_eq!(effect(zone, "x.bad.good.example"), Some(RuleEffect::Allow));
    let walled =
        Rewrite::Records(vec![(1, "192.0.2.1".to_owned()), (28, "2001:db8::1".to_owned())]);
    assert_eq!(effect(zone, "x.garden.example"), Some(RuleEffect::Rewrite(walled)));
    assert_eq!(effect(zone, "no.garden.example"), nxdomain);
    assert_eq!(effect(zone, "x.deep.garden.example"), Some(RuleEffect::Rewrite(Rewrite::Code(0))));
    assert_eq!(effect(zone, "garden.example"), None);
    let list = set(zone);
    let found = |text: &str| {
        let asked = MatchName::new(SEED, &name("x.example"), 1, NOBODY);
        list.find_address(text.parse().unwrap(), &asked, &[]).map(|found| found.effect)
    };
    assert_eq!(found("192.0.2.7"), Some(RuleEffect::Allow));
    assert_eq!(found("192.0.2.8"), nxdomain);
    assert_eq!(found("10.9.9.9"), Some(RuleEffect::Allow));
    assert_eq!(found("10.1.9.9"), nxdomain);
}

#[test]
fn addresses_match_by_network() {
    let list = set("||192.0.2.1^\n198.51.100.0/24\n||2001:db8::^\n");
    let found = |text: &str| {
        let asked = MatchName::new(SEED, &name("x.example"), 1, NOBODY);
        list.find_address(text.parse().unwrap(), &asked, &[]).is_some()
    };
    assert!(found("192.0.2.1") && found("198.51.100.77") && found("2001:db8::"));
    assert!(!found("192.0.2.2") && !found("198.51.101.1") && !found("2001:db8::1"));
}

#[test]
fn zones_say_nxdomain() {
    let zone =
        "$TTL 60\nbad.example CNAME .\n*.bad.example CNAME .\nok.bad.example CNAME rpz-passthru.\n";
    let nxdomain = Some(RuleEffect::Rewrite(Rewrite::Code(3)));
    assert_eq!(effect(zone, "bad.example"), nxdomain);
    assert_eq!(effect(zone, "x.bad.example"), nxdomain);
    assert_eq!(effect(zone, "ok.bad.example"), Some(RuleEffect::Allow));
    assert_eq!(set(zone).complex.rules.len(), 0);
}

#[test]
fn rules_of_people_are_refused_with_their_place() {
    let rules = |texts: &[&str]| {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        ListSet::of_rules(&texts, SEED).map(drop)
    };
    assert_eq!(rules(&["||a.example^", "# note", "/ad/"]), Ok(()));
    assert_eq!(rules(&["||a.example^", "a b"]), Err((1, "more than one word".to_owned())));
    assert!(rules(&["a.example\nb.example"]).is_err());
    assert!(rules(&["/[/"]).is_err());
}

#[test]
fn the_memory_of_a_million_names_is_bounded() {
    let mut text = String::new();
    for number in 0..100_000 {
        text.push_str(&format!("||host{number}.ads{}.example^\n", number % 977));
    }
    let set = set(&text);
    assert_eq!(set.figures.rules, 100_000);
    assert!(set.size_bytes() <= 2_500_000, "{}", set.size_bytes());
}

/// Labels that often make one name the parent of another.
fn any_name() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&["a", "b", "ad", "x-1"][..]), 1..4)
        .prop_map(|labels| format!("{}.test", labels.join(".")))
}

fn any_rule() -> impl Strategy<Value = String> {
    (any_name(), 0..9_usize, any::<bool>()).prop_map(|(name, form, important)| {
        let important = if important { "$important" } else { "" };
        match form {
            0 => name,
            1 => format!("0.0.0.0 {name}"),
            2 => format!("||{name}^{important}"),
            3 => format!("@@||{name}^{important}"),
            4 => format!("|{name}|{important}"),
            5 => format!("@@|{name}|"),
            6 => format!("||a*.{name}^{important}"),
            7 => format!("||{name}^$dnstype=A"),
            _ => format!("@@||{name}^$denyallow=ad.{name}"),
        }
    })
}

/// The rule that decides, found by trying each in turn on the text of the name.
fn naive(rules: &[String], text: &str, qtype: u16) -> Option<bool> {
    let is_or_below =
        |name: &str, parent: &str| name == parent || name.ends_with(&format!(".{parent}"));
    let mut best: Option<(u8, bool)> = None;
    for rule in rules {
        let (body, is_allow) = match rule.strip_prefix("@@") {
            Some(rest) => (rest, true),
            None => (rule.as_str(), false),
        };
        let (body, modifier) = body.split_once('$').unwrap_or((body, ""));
        let fits = if let Some(host) = body.strip_prefix("0.0.0.0 ") {
            text == host
        } else if let Some(rest) = body.strip_prefix("||a*.") {
            let parent = rest.trim_end_matches('^');
            text.strip_suffix(parent).and_then(|rest| rest.strip_suffix('.')).is_some_and(|rest| {
                (0..rest.len()).any(|at| {
                    (at == 0 || rest.as_bytes()[at - 1] == b'.') && rest[at..].starts_with('a')
                })
            })
        } else if let Some(rest) = body.strip_prefix("||") {
            is_or_below(text, rest.trim_end_matches('^'))
        } else if let Some(rest) = body.strip_prefix('|') {
            text == rest.trim_end_matches('|')
        } else {
            is_or_below(text, body)
        };
        let holds = match modifier.split_once('=') {
            Some(("dnstype", _)) => qtype == 1,
            Some((_, except)) => !is_or_below(text, except),
            None => true,
        };
        if fits && holds {
            let rank = 2 * u8::from(modifier == "important") + u8::from(is_allow);
            if best.is_none_or(|(known, _)| rank > known) {
                best = Some((rank, is_allow));
            }
        }
    }
    best.map(|(_, is_allow)| is_allow)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_matcher_equals_a_naive_one(
        rules in prop::collection::vec(any_rule(), 0..12),
        names in prop::collection::vec(any_name(), 1..20),
    ) {
        let set = set(&rules.join("\n"));
        for text in names {
            for qtype in [1, 28] {
                let found = effect_for(&set, &text, qtype).map(|effect| effect == RuleEffect::Allow);
                prop_assert_eq!(found, naive(&rules, &text, qtype), "{} {}", text, qtype);
            }
        }
    }

    /// Whatever a line is, it is read, counted or nothing.
    #[test]
    fn any_bytes_are_read_or_counted(text in prop::collection::vec(any::<u8>(), 0..2_000)) {
        let set = ListSet::build(&text, SEED).0;
        prop_assert!(set.figures.unusable <= set.figures.lines);
    }
}

/// Lines of lists and zones, with bytes changed, cut and doubled: read, counted or nothing, each in
/// bounded time. `DNS_FUZZ_CASES` sets another number of cases.
#[test]
fn mutated_lines_and_zones_are_read_or_counted() {
    const LINES: [&str; 16] = [
        "||ads.example^$important,dnstype=~A|AAAA,client=192.168.1.0/24",
        "@@||fine.ads.example^$ctag=device_pc|~device_tv",
        "/^ad[0-9]{1,3}[-.](x|y)+/$denyallow=a.example|b.example",
        "0.0.0.0 ads.example www.ads.example # a comment",
        "::1 six.example",
        "*.wild.example",
        "|exact.example|",
        "||r.example^$dnsrewrite=NOERROR;A;192.0.2.1",
        "||r.example^$badfilter,dnsrewrite=REFUSED",
        "example.com##.banner",
        "$ORIGIN rpz.example.",
        "@ 300 IN SOA ns.example. host.example. 1 2 3 4 5",
        "ads.example.rpz.example. CNAME .",
        "*.ads.example CNAME rpz-drop.",
        "32.7.2.0.192.rpz-ip CNAME *.",
        "128.1.zz.db8.2001.rpz-ip A 192.0.2.9",
    ];
    let cases = std::env::var("DNS_FUZZ_CASES").ok().and_then(|text| text.parse().ok());
    let mut random = fastrand::Rng::with_seed(0x1157);
    let asked = MatchName::new(SEED, &name("www.ads.example"), 1, NOBODY);
    let since = std::time::Instant::now();
    let mut text = Vec::new();
    for case in 0..cases.unwrap_or(100_000_u32) {
        let mut line = random.choice(LINES).unwrap().as_bytes().to_vec();
        for _ in 0..random.u8(1..5) {
            let at = random.usize(..line.len().max(1)).min(line.len());
            match random.u8(..5) {
                0 => line.truncate(at),
                1 => line.extend_from_within(at..),
                2 => line.insert(at, *random.choice(b"|^$*/@#,;.~\\([{+ \0\xff").unwrap()),
                _ => line.insert(at, random.u8(..)),
            }
        }
        line.truncate(6_000);
        text.extend_from_slice(&line);
        text.push(b'\n');
        // Many lines at once: building a set for each would measure something else.
        if case % 50 == 49 {
            let set = ListSet::build(&text, SEED).0;
            assert!(set.figures.unusable <= set.figures.lines);
            set.find(&asked);
            set.find_address([192, 0, 2, 7].into(), &asked, &[]);
            text.clear();
        }
    }
    assert!(since.elapsed().as_secs() < 300, "{:?}", since.elapsed());
}
