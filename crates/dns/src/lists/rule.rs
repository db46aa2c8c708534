//! Lines of lists and rules entered by people.
//!
//! Three formats share this parser: hosts files, names or wildcards one a line, and AdGuard's syntax
//! for DNS. Invariant: a rule is applied as a whole or not at all; a line with a part that cannot be
//! honoured (a cosmetic rule, a path, a modifier of browsers) is counted as unusable.

use std::{net::IpAddr, str::FromStr as _};

use ipnet::IpNet;

use super::rewrite::Rewrite;
use crate::{DomainName, wire::rtype};

/// Longest line.
pub(crate) const LINE_MAX_BYTES: usize = 4_096;

/// Longest regular expression.
pub(crate) const REGEX_MAX_BYTES: usize = 2_048;

/// Bytes that the compiled form of one expression may take.
pub(crate) const REGEX_MAX_COMPILED_BYTES: usize = 256 << 10;

/// Names that every hosts file lists for the machine itself.
const HOSTS_OWN: [&str; 10] = [
    "localhost",
    "localhost.localdomain",
    "local",
    "broadcasthost",
    "ip6-localhost",
    "ip6-loopback",
    "ip6-localnet",
    "ip6-mcastprefix",
    "ip6-allnodes",
    "ip6-allrouters",
];

/// A line that was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ListLine {
    /// A comment, a header or an empty line.
    Nothing,
    /// Rules; a hosts line may have several.
    Rules(Vec<Rule>),
    /// A line that cannot be honoured, and why.
    Unusable(String),
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) pattern: Pattern,
    pub(crate) is_allow: bool,
    pub(crate) is_important: bool,
    /// The rule removes its equal without `$badfilter`.
    pub(crate) is_badfilter: bool,
    pub(crate) types: TypeFilter,
    pub(crate) clients: ClientFilter,
    pub(crate) tags: ClientFilter,
    /// Domains to which the rule does not apply.
    pub(crate) except: Vec<DomainName>,
    pub(crate) rewrite: Option<Rewrite>,
}

/// Names or addresses that a rule is about.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// The name itself.
    Exact(DomainName),
    /// All names below it, without itself.
    Below(DomainName),
    /// The name and all names below it.
    Suffix(DomainName),
    /// A text with `*`; the flag says that it may begin at any label.
    Glob { text: String, any_label: bool },
    /// A regular expression.
    Regex(String),
    /// Answers with these addresses.
    Addresses(IpNet),
}

/// Types that a rule is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TypeFilter {
    only: Vec<u16>,
    except: Vec<u16>,
}

impl TypeFilter {
    pub(crate) fn is_empty(&self) -> bool {
        self.only.is_empty() && self.except.is_empty()
    }

    pub(crate) fn fits(&self, qtype: u16) -> bool {
        (self.only.is_empty() || self.only.contains(&qtype)) && !self.except.contains(&qtype)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut filter = Self::default();
        for word in text.split('|') {
            let (list, name) = match word.strip_prefix('~') {
                Some(name) => (&mut filter.except, name),
                None => (&mut filter.only, word),
            };
            list.push(parse_type(name).ok_or_else(|| format!("{name:?} is not a record type"))?);
        }
        Ok(filter)
    }
}

/// Reads the name or number of a record type.
pub(crate) fn parse_type(text: &str) -> Option<u16> {
    let upper = text.to_ascii_uppercase();
    match upper.as_str() {
        "" => None,
        "ANY" => Some(rtype::ANY),
        _ => domain::base::Rtype::from_str(&upper).ok().map(|rtype| rtype.to_int()),
    }
}

/// Clients or tags that a rule is about, as they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientFilter {
    pub(crate) only: Vec<String>,
    pub(crate) except: Vec<String>,
}

impl ClientFilter {
    pub(crate) fn is_empty(&self) -> bool {
        self.only.is_empty() && self.except.is_empty()
    }

    /// Returns true if a client fits of whom `is` says which words mean it.
    pub(crate) fn fits(&self, is: impl Fn(&str) -> bool) -> bool {
        (self.only.is_empty() || self.only.iter().any(|word| is(word)))
            && !self.except.iter().any(|word| is(word))
    }

    /// Reads words between bars; quotes and backslashes as in AdGuard's syntax.
    fn parse(text: &str) -> Result<Self, String> {
        let mut filter = Self::default();
        for word in split_unescaped(text, '|') {
            let word = unescape(&word);
            let (list, word) = match word.strip_prefix('~') {
                Some(rest) => (&mut filter.except, rest.to_owned()),
                None => (&mut filter.only, word),
            };
            let bare = word
                .strip_prefix(['\'', '"'])
                .and_then(|word| word.strip_suffix(['\'', '"']))
                .unwrap_or(&word);
            if bare.is_empty() {
                return Err("a client or tag is empty".to_owned());
            }
            list.push(bare.to_ascii_lowercase());
        }
        Ok(filter)
    }
}

impl Rule {
    fn new(pattern: Pattern, is_allow: bool) -> Self {
        Self {
            pattern,
            is_allow,
            is_important: false,
            is_badfilter: false,
            types: TypeFilter::default(),
            clients: ClientFilter::default(),
            tags: ClientFilter::default(),
            except: Vec::new(),
            rewrite: None,
        }
    }

    /// Returns true if the rule is a name with nothing added, which a hash can stand for.
    pub(crate) fn is_simple(&self) -> bool {
        matches!(self.pattern, Pattern::Exact(_) | Pattern::Below(_) | Pattern::Suffix(_))
            && !self.is_important
            && !self.is_badfilter
            && self.types.is_empty()
            && self.clients.is_empty()
            && self.tags.is_empty()
            && self.except.is_empty()
            && self.rewrite.is_none()
    }

    /// Makes a rule that blocks or allows a name and all names below it.
    pub(crate) fn suffix(name: DomainName, is_allow: bool) -> Self {
        Self::new(Pattern::Suffix(name), is_allow)
    }

    /// Makes a rule of a response policy zone.
    pub(super) fn of_zone(pattern: Pattern, is_allow: bool, rewrite: Option<Rewrite>) -> Self {
        Self { rewrite, ..Self::new(pattern, is_allow) }
    }
}

/// Reads one line, without its line break.
pub(crate) fn parse_line(line: &[u8]) -> ListLine {
    if line.len() > LINE_MAX_BYTES {
        return ListLine::Unusable(format!("longer than {LINE_MAX_BYTES} bytes"));
    }
    let Ok(line) = std::str::from_utf8(line) else {
        return ListLine::Unusable("not UTF-8".to_owned());
    };
    let line = line.trim_start_matches('\u{feff}').trim();
    if line.is_empty() || line.starts_with('!') || (line.starts_with('[') && line.ends_with(']')) {
        return ListLine::Nothing;
    }
    if is_cosmetic(line) {
        return ListLine::Unusable("a cosmetic rule".to_owned());
    }
    if line.starts_with('#') {
        return ListLine::Nothing;
    }
    match parse_rules(line) {
        Ok(rules) if rules.is_empty() => ListLine::Nothing,
        Ok(rules) => ListLine::Rules(rules),
        Err(reason) => ListLine::Unusable(reason),
    }
}

/// Rules that hide elements of a page, or change it.
fn is_cosmetic(line: &str) -> bool {
    if line.starts_with('/') || line.starts_with("@@/") {
        return false;
    }
    ["##", "#@#", "#?#", "#$#", "#%#", "#@$#", "#@%#", "#@?#", "$$", "$@$"].iter().any(|mark| {
        line.find(mark).is_some_and(|at| {
            // `### title` and `## title` are comments of domain lists.
            at > 0 || (*mark == "##" && !line[2..].starts_with(['#', ' ', '\t']) && line.len() > 2)
        })
    })
}

fn parse_rules(line: &str) -> Result<Vec<Rule>, String> {
    let (text, is_allow) = match line.strip_prefix("@@") {
        Some(rest) => (rest, true),
        None => (line, false),
    };
    if let Some(rest) = text.strip_prefix('/')
        && let Some(end) = rest.rfind('/')
        && (end + 1 == rest.len() || rest[end + 1..].starts_with('$'))
        && end > 0
    {
        let mut rule = Rule::new(Pattern::Regex(check_regex(&rest[..end])?), is_allow);
        apply_modifiers(&mut rule, rest[end + 1..].strip_prefix('$'))?;
        return Ok(vec![rule]);
    }
    // A comment behind the rule.
    let text = match text.find('#') {
        Some(at) => text[..at].trim_end(),
        None => text,
    };
    let mut words = text.split_whitespace();
    let Some(first) = words.next() else { return Ok(Vec::new()) };
    if let Ok(address) = first.parse::<IpAddr>() {
        let names: Vec<&str> = words.collect();
        if names.is_empty() {
            return Ok(vec![Rule::new(Pattern::Addresses(IpNet::from(address)), is_allow)]);
        }
        return parse_hosts(&names, is_allow);
    }
    // Names of clients in modifiers may hold spaces.
    let (pattern, modifiers) = match text.find('$') {
        Some(at) => (text[..at].trim_end(), Some(&text[at + 1..])),
        None => (text, None),
    };
    if pattern.contains(char::is_whitespace) {
        return Err("more than one word".to_owned());
    }
    let mut rule = Rule::new(parse_pattern(pattern)?, is_allow);
    apply_modifiers(&mut rule, modifiers)?;
    Ok(vec![rule])
}

fn parse_hosts(names: &[&str], is_allow: bool) -> Result<Vec<Rule>, String> {
    let mut rules = Vec::with_capacity(names.len());
    for name in names {
        if HOSTS_OWN.contains(&name.to_ascii_lowercase().as_str()) || name.parse::<IpAddr>().is_ok()
        {
            continue;
        }
        rules.push(Rule::new(Pattern::Exact(parse_host(name)?), is_allow));
    }
    Ok(rules)
}

fn parse_pattern(text: &str) -> Result<Pattern, String> {
    let (text, any_label, from_start) = if let Some(rest) = text.strip_prefix("||") {
        (rest, true, false)
    } else if let Some(rest) = text.strip_prefix('|') {
        (rest, false, true)
    } else {
        (text, false, false)
    };
    let text = ["://", "http://", "https://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme))
        .unwrap_or(text);
    let (text, to_end) = match text.strip_suffix("^|").or_else(|| text.strip_suffix('|')) {
        Some(rest) => (rest, true),
        None => (text.strip_suffix('^').unwrap_or(text), false),
    };
    let text = text.strip_suffix('.').filter(|rest| !rest.is_empty()).unwrap_or(text);
    if text.is_empty() {
        return Err("no name".to_owned());
    }
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(Pattern::Addresses(IpNet::from(address)));
    }
    if let Ok(network) = text.parse::<IpNet>() {
        return Ok(Pattern::Addresses(network.trunc()));
    }
    // `*.name` and `.name` stand for the name and all below it, as list makers mean it.
    if let Some(rest) = text.strip_prefix("*.").or_else(|| text.strip_prefix('.'))
        && !rest.contains('*')
    {
        return Ok(Pattern::Suffix(parse_host(rest)?));
    }
    if text.contains('*') {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"*-_.".contains(&byte);
        if !text.bytes().all(fits) {
            return Err("neither a name nor a pattern of one".to_owned());
        }
        let text = text.to_ascii_lowercase();
        return Ok(Pattern::Glob { text, any_label: any_label || !from_start });
    }
    let name = parse_host(text)?;
    Ok(if from_start && to_end { Pattern::Exact(name) } else { Pattern::Suffix(name) })
}

/// Reads a host name; anything that no host is called, such as a path, is refused. Names beyond ASCII
/// are written in Punycode in lists.
pub(super) fn parse_host(text: &str) -> Result<DomainName, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !text.bytes().all(fits) {
        return Err("not a host name".to_owned());
    }
    let name: DomainName = text.parse().map_err(|error: crate::NameError| error.to_string())?;
    if name.is_root() { Err("no name".to_owned()) } else { Ok(name) }
}

fn check_regex(text: &str) -> Result<String, String> {
    if text.len() > REGEX_MAX_BYTES {
        return Err(format!("an expression longer than {REGEX_MAX_BYTES} bytes"));
    }
    match build_regex(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(regex::Error::CompiledTooBig(_)) => Err("an expression that is too costly".to_owned()),
        Err(_) => Err("not a regular expression that can be used".to_owned()),
    }
}

fn build_regex(text: &str) -> Result<regex::Regex, regex::Error> {
    regex::RegexBuilder::new(text)
        .case_insensitive(true)
        .size_limit(REGEX_MAX_COMPILED_BYTES)
        .dfa_size_limit(REGEX_MAX_COMPILED_BYTES)
        .build()
}

fn apply_modifiers(rule: &mut Rule, modifiers: Option<&str>) -> Result<(), String> {
    for modifier in modifiers.map(|text| split_unescaped(text, ',')).unwrap_or_default() {
        let (name, value) = match modifier.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (modifier.as_str(), None),
        };
        match (name, value) {
            ("important", None) => rule.is_important = true,
            ("badfilter", None) => rule.is_badfilter = true,
            ("dnstype", Some(value)) => rule.types = TypeFilter::parse(value)?,
            ("client", Some(value)) => rule.clients = ClientFilter::parse(value)?,
            ("ctag", Some(value)) => rule.tags = ClientFilter::parse(value)?,
            ("denyallow", Some(value)) => {
                let names = value.split('|').map(parse_host);
                rule.except = names.collect::<Result<_, _>>()?;
            }
            ("dnsrewrite", value) => {
                rule.rewrite = Some(Rewrite::parse(value.unwrap_or_default())?);
            }
            _ => return Err(format!("the modifier {name:?} is not for DNS")),
        }
    }
    if let Some(rewrite) = &rule.rewrite
        && rewrite.is_none()
        && !rule.is_allow
    {
        return Err("$dnsrewrite without a value is for exceptions".to_owned());
    }
    Ok(())
}

/// Splits at a character that no backslash is before; backslashes stay.
fn split_unescaped(text: &str, separator: char) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == separator {
            parts.push(std::mem::take(&mut part));
            continue;
        }
        part.push(character);
        if character == '\\' {
            part.extend(characters.next());
        }
    }
    parts.push(part);
    parts
}

/// Takes the backslash off every character that has one.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '\\' {
            plain.extend(characters.next());
        } else {
            plain.push(character);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DomainName {
        text.parse().unwrap()
    }

    fn one(line: &str) -> Rule {
        match parse_line(line.as_bytes()) {
            ListLine::Rules(mut rules) if rules.len() == 1 => rules.remove(0),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn names_are_read_in_every_format() {
        let suffix = Pattern::Suffix(name("ads.example"));
        for line in [
            "ads.example",
            "Ads.Example.",
            "*.ads.example",
            ".ads.example",
            "||ads.example^",
            "||ads.example",
            "||*.ads.example^",
            "ads.example # comment",
            "ads.example#comment",
            "  ads.example\r",
            "\u{feff}ads.example",
            "https://ads.example",
            "|ads.example^",
        ] {
            assert_eq!(one(line).pattern, suffix, "{line}");
            assert!(one(line).is_simple(), "{line}");
        }
        for line in
            ["0.0.0.0 ads.example", "127.0.0.1\tads.example # x", "|ads.example|", "|ads.example^|"]
        {
            assert_eq!(one(line).pattern, Pattern::Exact(name("ads.example")), "{line}");
        }
        let ListLine::Rules(rules) = parse_line(b"::1 localhost a.example b.example") else {
            panic!("no rules");
        };
        assert_eq!(rules.len(), 2);
        assert!(one("@@||ads.example^").is_allow);
        assert_eq!(
            one("||ad*.example^").pattern,
            Pattern::Glob { text: "ad*.example".to_owned(), any_label: true }
        );
        assert_eq!(
            one("||192.0.2.1^").pattern,
            Pattern::Addresses("192.0.2.1/32".parse().unwrap())
        );
        assert_eq!(one("/^ad[0-9]+\\./").pattern, Pattern::Regex("^ad[0-9]+\\.".to_owned()));
    }

    #[test]
    fn comments_and_headers_are_nothing() {
        for line in [
            "",
            "# x",
            "! x",
            "[Adblock Plus 2.0]",
            "#",
            "## title",
            "### title ###",
            "127.0.0.1 localhost",
        ] {
            assert_eq!(parse_line(line.as_bytes()), ListLine::Nothing, "{line}");
        }
    }

    #[test]
    fn lines_that_cannot_be_honoured_are_never_partly_applied() {
        for line in [
            "##.ad",
            "example.com##.ad",
            "example.com#@#.ad",
            "example.com#?#div",
            "example.com$$script[x]",
            "||example.com/path^",
            "example.com/path",
            "||example.com^$third-party",
            "||example.com^$important,popup",
            "||example.com^$dnstype=NOPE",
            "two words",
            "a..b",
            "/[/",
            "||^",
            "||example.com^$dnsrewrite",
            "exämple.com",
            "$important",
        ] {
            assert!(matches!(parse_line(line.as_bytes()), ListLine::Unusable(_)), "{line}");
        }
        let long = "a".repeat(LINE_MAX_BYTES + 1);
        assert!(matches!(parse_line(long.as_bytes()), ListLine::Unusable(_)));
        let long = format!("/{}/", "a".repeat(REGEX_MAX_BYTES + 1));
        assert!(matches!(parse_line(long.as_bytes()), ListLine::Unusable(_)));
        assert!(matches!(parse_line(b"/(a{1000}){1000}/"), ListLine::Unusable(_)));
        assert!(matches!(parse_line(b"\xff\xfe"), ListLine::Unusable(_)));
    }

    #[test]
    fn modifiers_are_read() {
        let rule = one("||a.example^$important,dnstype=A|~AAAA,denyallow=b.a.example|c.a.example");
        assert!(rule.is_important && rule.types.fits(1) && !rule.types.fits(28));
        assert_eq!(rule.except, [name("b.a.example"), name("c.a.example")]);
        let rule = one(r"||a.example^$client=192.168.1.0/24|~'Frank\'s\, laptop',ctag=kid");
        assert_eq!(rule.clients.only, ["192.168.1.0/24"]);
        assert_eq!(rule.clients.except, ["frank's, laptop"]);
        assert_eq!(rule.tags.only, ["kid"]);
        let rule = one(r"||a.example^$client=tv|'\|'");
        assert_eq!(rule.clients.only, ["tv", "|"]);
        assert!(rule.clients.fits(|word| word == "tv") && !rule.clients.fits(|_| false));
        assert!(one("||a.example^$badfilter").is_badfilter);
        assert!(one("||a.example^$dnsrewrite=192.0.2.1").rewrite.is_some());
        assert!(one("@@||a.example^$dnsrewrite").rewrite.is_some());
    }
}
