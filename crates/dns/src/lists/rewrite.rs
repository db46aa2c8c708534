//! Rewrites: replies that a rule gives in place of the true answer.

use std::net::IpAddr;

use super::rule::parse_type;
use crate::{
    DomainName,
    wire::{rcode, rtype},
};

/// Reply of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rewrite {
    /// No rewrite: an exception from others.
    None,
    /// A response code without records.
    Code(u16),
    /// The answer of another name.
    Alias(DomainName),
    /// Records, each by type and data as in a zone file. Queries for other types get no records.
    Records(Vec<(u16, String)>),
    /// No reply at all.
    Drop,
}

impl Rewrite {
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// Returns true if the rewrite gives nothing in place of what it takes.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Code(_) | Self::Drop)
    }

    /// Makes a rewrite to one record.
    pub(crate) fn record(rtype: u16, value: &str) -> Self {
        Self::Records(vec![(rtype, value.to_owned())])
    }

    /// Returns the rewrite of two rules about one name: the records of both; else another name goes
    /// before a code, a code before records.
    pub(crate) fn merge(self, other: Self) -> Self {
        let order = |rewrite: &Self| match rewrite {
            Self::Drop => 0,
            Self::Alias(_) => 1,
            Self::Code(_) => 2,
            Self::Records(_) => 3,
            Self::None => 4,
        };
        match (self, other) {
            (Self::Records(mut records), Self::Records(more)) => {
                records.extend(more);
                Self::Records(records)
            }
            (first, second) if order(&second) < order(&first) => second,
            (first, _) => first,
        }
    }

    /// Reads the value of `$dnsrewrite`: an address, a name, a code, or `CODE;TYPE;VALUE`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let invalid = || format!("$dnsrewrite={text} cannot be used");
        if text.is_empty() {
            return Ok(Self::None);
        }
        let mut parts = text.splitn(3, ';');
        let first = parts.next().unwrap_or_default();
        let Some(kind) = parts.next() else {
            return match first {
                "NXDOMAIN" => Ok(Self::Code(rcode::NXDOMAIN)),
                "REFUSED" => Ok(Self::Code(rcode::REFUSED)),
                "SERVFAIL" => Ok(Self::Code(rcode::SERVFAIL)),
                "NOERROR" => Ok(Self::Code(rcode::NOERROR)),
                _ => Self::parse_short(first).ok_or_else(invalid),
            };
        };
        let value = parts.next().unwrap_or_default();
        match (first, kind, value) {
            ("NXDOMAIN" | "REFUSED" | "SERVFAIL" | "NOERROR", "", "") => Self::parse(first),
            ("NOERROR", _, "") => Err(invalid()),
            ("NOERROR", kind, value) => {
                let rtype = parse_type(kind).ok_or_else(invalid)?;
                if rtype == rtype::CNAME {
                    return value.parse().map(Self::Alias).map_err(|_| invalid());
                }
                crate::local::parse_data(rtype, value)
                    .map_err(|reason| format!("$dnsrewrite={text} cannot be used: {reason}"))?;
                Ok(Self::record(rtype, value))
            }
            _ => Err(invalid()),
        }
    }

    fn parse_short(text: &str) -> Option<Self> {
        match text.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => Some(Self::record(rtype::A, &address.to_string())),
            Ok(IpAddr::V6(address)) => Some(Self::record(rtype::AAAA, &address.to_string())),
            Err(_) => super::rule::parse_host(text).ok().map(Self::Alias),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_rewrite_is_read() {
        let record = Rewrite::record;
        for (text, rewrite) in [
            ("", Rewrite::None),
            ("192.0.2.1", record(1, "192.0.2.1")),
            ("2001:db8::1", record(28, "2001:db8::1")),
            ("other.example", Rewrite::Alias("other.example".parse().unwrap())),
            ("NXDOMAIN", Rewrite::Code(3)),
            ("NOERROR;;", Rewrite::Code(0)),
            ("NOERROR;A;192.0.2.1", record(1, "192.0.2.1")),
            ("NOERROR;CNAME;x.example", Rewrite::Alias("x.example".parse().unwrap())),
            ("NOERROR;MX;10 mail.example", record(15, "10 mail.example")),
            ("NOERROR;TXT;hello world", record(16, "hello world")),
        ] {
            assert_eq!(Rewrite::parse(text), Ok(rewrite), "{text}");
        }
        for text in
            ["NOERROR;A;nope", "NOERROR;NOPE;x", "NXDOMAIN;A;192.0.2.1", "a b", "NOERROR;A;"]
        {
            assert!(Rewrite::parse(text).is_err(), "{text}");
        }
    }
}
