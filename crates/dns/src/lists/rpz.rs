//! Response policy zones: zone files whose names are triggers and whose records are actions.
//!
//! Of the triggers QNAME and response IP are honoured, of the actions all but `rpz-tcp-only.`; other
//! lines are counted as unusable.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::{
    rewrite::Rewrite,
    rule::{LINE_MAX_BYTES, ListLine, Pattern, Rule, parse_type},
};
use crate::{
    DomainName,
    wire::{rcode, rtype},
};

/// Lines at the beginning in which a zone shows itself.
const DETECT_LINES: usize = 50;

/// Returns true if a text begins as a zone file.
pub(crate) fn is_zone(text: &[u8]) -> bool {
    let lines = text.split(|byte| *byte == b'\n').take(DETECT_LINES);
    lines.into_iter().any(|line| {
        let line = String::from_utf8_lossy(line).to_ascii_uppercase();
        let line = line.split(';').next().unwrap_or_default();
        line.starts_with("$TTL") || line.starts_with("$ORIGIN") || {
            let mut words = line.split_whitespace();
            words.any(|word| word == "SOA") && !line.starts_with('#')
        }
    })
}

/// Reads a zone line by line.
#[derive(Debug, Default)]
pub(crate) struct ZoneReader {
    origin: Option<DomainName>,
    owner: Option<String>,
    /// Inside the parentheses of an SOA record.
    in_parentheses: bool,
}

impl ZoneReader {
    /// Reads the next line.
    pub(crate) fn parse_line(&mut self, line: &[u8]) -> ListLine {
        if line.len() > LINE_MAX_BYTES {
            return ListLine::Unusable(format!("longer than {LINE_MAX_BYTES} bytes"));
        }
        let Ok(text) = std::str::from_utf8(line) else {
            return ListLine::Unusable("not UTF-8".to_owned());
        };
        let text = text.split(';').next().unwrap_or_default().trim_end();
        if self.in_parentheses {
            self.in_parentheses = !text.contains(')');
            return ListLine::Nothing;
        }
        if text.trim().is_empty() || text.starts_with('#') {
            return ListLine::Nothing;
        }
        let mut words: Vec<&str> = text.split_whitespace().collect();
        match words.first().map(|word| word.to_ascii_uppercase()).as_deref() {
            Some("$ORIGIN") => {
                self.origin = words.get(1).and_then(|name| name.parse().ok());
                return ListLine::Nothing;
            }
            Some("$TTL") => return ListLine::Nothing,
            _ => {}
        }
        if !text.starts_with([' ', '\t']) {
            self.owner = Some(words.remove(0).to_owned());
        }
        // TTL and class may stand before the type, in either order.
        while let Some(word) = words.first() {
            let is_ttl = word.bytes().all(|byte| byte.is_ascii_digit());
            if is_ttl || word.eq_ignore_ascii_case("IN") {
                words.remove(0);
            } else {
                break;
            }
        }
        let Some((kind, data)) = words.split_first() else { return ListLine::Nothing };
        let Some(rtype) = parse_type(kind) else {
            return ListLine::Unusable(format!("{kind:?} is not a record type"));
        };
        let Some(owner) = self.owner.clone() else {
            return ListLine::Unusable("a record without a name".to_owned());
        };
        if rtype == rtype::SOA {
            self.in_parentheses = text.contains('(') && !text.contains(')');
            if self.origin.is_none() && owner != "@" && owner.ends_with('.') {
                self.origin = owner.parse().ok();
            }
            return ListLine::Nothing;
        }
        if owner == "@" || (rtype == 2 && self.is_origin(&owner)) {
            return ListLine::Nothing;
        }
        match self.rule(&owner, rtype, &data.join(" ")) {
            Ok(rule) => ListLine::Rules(vec![rule]),
            Err(reason) => ListLine::Unusable(reason),
        }
    }

    fn is_origin(&self, owner: &str) -> bool {
        owner.parse::<DomainName>().ok() == self.origin && owner.ends_with('.')
    }

    fn rule(&self, owner: &str, rtype: u16, data: &str) -> Result<Rule, String> {
        let trigger = self.trigger(owner)?;
        let target = data.to_ascii_lowercase();
        let (is_allow, rewrite) = match (rtype, target.as_str()) {
            (rtype::CNAME, ".") => (false, Some(Rewrite::Code(rcode::NXDOMAIN))),
            (rtype::CNAME, "*.") => (false, Some(Rewrite::Code(rcode::NOERROR))),
            (rtype::CNAME, "rpz-passthru." | "rpz-passthru") => (true, None),
            (rtype::CNAME, "rpz-drop." | "rpz-drop") => (false, Some(Rewrite::Drop)),
            (rtype::CNAME, "rpz-tcp-only." | "rpz-tcp-only") => {
                return Err("the action rpz-tcp-only is not known".to_owned());
            }
            (rtype::CNAME, name) => {
                let name = name.parse().map_err(|error: crate::NameError| error.to_string())?;
                (false, Some(Rewrite::Alias(name)))
            }
            _ => {
                crate::local::parse_data(rtype, data)?;
                (false, Some(Rewrite::record(rtype, data)))
            }
        };
        Ok(Rule::of_zone(trigger, is_allow, rewrite))
    }

    fn trigger(&self, owner: &str) -> Result<Pattern, String> {
        let owner = owner.to_ascii_lowercase();
        let relative = match (owner.strip_suffix('.'), &self.origin) {
            (Some(absolute), Some(origin)) => {
                let origin = format!(".{origin}");
                let relative = absolute.strip_suffix(&origin);
                relative.ok_or("a name outside of the zone")?.to_owned()
            }
            (Some(absolute), None) => absolute.to_owned(),
            (None, _) => owner,
        };
        if let Some(encoded) = relative.strip_suffix(".rpz-ip") {
            return parse_network(encoded)
                .map(Pattern::Addresses)
                .ok_or_else(|| format!("{encoded:?} is not a network"));
        }
        let is_other = [".rpz-nsdname", ".rpz-nsip", ".rpz-client-ip"];
        if is_other.iter().any(|suffix| relative.ends_with(suffix)) {
            return Err("a trigger that is not known".to_owned());
        }
        let name = |text: &str| {
            let name: Result<DomainName, _> = text.parse();
            name.map_err(|error| error.to_string())
        };
        match relative.strip_prefix("*.") {
            Some(parent) => name(parent).map(Pattern::Below),
            None => name(&relative).map(Pattern::Exact),
        }
    }
}

/// Reads `24.0.2.0.192` and `48.zz.1.db8.2001`: the prefix, then the address from its end.
fn parse_network(text: &str) -> Option<IpNet> {
    let mut labels = text.split('.');
    let prefix: u8 = labels.next()?.parse().ok()?;
    let mut parts: Vec<&str> = labels.collect();
    parts.reverse();
    let address = if parts.len() == 4 && !parts.contains(&"zz") {
        let mut octets = [0; 4];
        for (octet, part) in octets.iter_mut().zip(&parts) {
            *octet = part.parse().ok()?;
        }
        IpAddr::from(Ipv4Addr::from(octets))
    } else {
        let text = parts.join(":");
        let text = match text.as_str() {
            "zz" => "::".to_owned(),
            text if text.starts_with("zz:") => text.replacen("zz:", "::", 1),
            text if text.ends_with(":zz") => text.replacen(":zz", "::", 1),
            text => text.replacen(":zz:", "::", 1),
        };
        IpAddr::from(text.parse::<Ipv6Addr>().ok()?)
    };
    IpNet::new(address, prefix).ok().map(|network| network.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONE: &str = "\
$TTL 300
@ IN SOA localhost. root.localhost. (
    1 3600
    600 86400 300 ) ; end
  IN NS localhost.
bad.example 60 IN CNAME .
*.bad.example CNAME .
none.example CNAME *.
good.bad.example CNAME rpz-passthru.
drop.example CNAME rpz-drop.
walled.example CNAME garden.example.
local.example A 192.0.2.1
24.0.2.0.192.rpz-ip CNAME .
48.zz.1.db8.2001.rpz-ip CNAME .
ns.example.rpz-nsdname CNAME .
";

    #[test]
    fn triggers_and_actions_of_a_zone_are_read() {
        assert!(is_zone(ZONE.as_bytes()));
        assert!(!is_zone(b"0.0.0.0 ads.example\n||x.example^\n"));
        let mut reader = ZoneReader::default();
        let mut rules = Vec::new();
        let mut unusable = 0;
        for line in ZONE.lines() {
            match reader.parse_line(line.as_bytes()) {
                ListLine::Nothing => {}
                ListLine::Rules(found) => rules.extend(found),
                ListLine::Unusable(_) => unusable += 1,
            }
        }
        let name = |text: &str| text.parse::<DomainName>().unwrap();
        assert_eq!((rules.len(), unusable), (9, 1), "{rules:#?}");
        assert_eq!(rules[0].pattern, Pattern::Exact(name("bad.example")));
        assert_eq!(rules[0].rewrite, Some(Rewrite::Code(3)));
        assert_eq!(rules[1].pattern, Pattern::Below(name("bad.example")));
        assert_eq!(rules[2].rewrite, Some(Rewrite::Code(0)));
        assert!(rules[3].is_allow);
        assert_eq!(rules[4].rewrite, Some(Rewrite::Drop));
        assert_eq!(rules[5].rewrite, Some(Rewrite::Alias(name("garden.example"))));
        assert_eq!(rules[7].pattern, Pattern::Addresses("192.0.2.0/24".parse().unwrap()));
        assert_eq!(rules[8].pattern, Pattern::Addresses("2001:db8:1::/48".parse().unwrap()));
    }

    #[test]
    fn absolute_names_are_below_the_zone() {
        let mut reader = ZoneReader::default();
        reader.parse_line(b"$ORIGIN rpz.example.");
        let line = reader.parse_line(b"bad.example.rpz.example. CNAME .");
        assert!(matches!(line, ListLine::Rules(_)), "{line:?}");
        let line = reader.parse_line(b"bad.example. CNAME .");
        assert!(matches!(line, ListLine::Unusable(_)), "{line:?}");
    }
}
