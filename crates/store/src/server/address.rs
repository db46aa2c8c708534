//! URLs that name several servers: `redis+sentinel://user:password@h1:26379,h2/NAME`.

use std::collections::BTreeMap;

use crate::Error;

/// The parts of such a URL.
#[derive(Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Address {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) path: Vec<String>,
    pub(crate) query: BTreeMap<String, String>,
}

impl Address {
    /// Reads what follows `scheme://`.
    pub(crate) fn parse(rest: &str, default_port: u16) -> Result<Self, Error> {
        let query = query(rest)?;
        let (rest, _) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (username, password) =
            match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
                Some((username, password)) => (some(decode(username)?), some(decode(password)?)),
                None => (None, None),
            };
        let hosts = hosts.split(',').map(|host| host_and_port(host, default_port));
        let path = path.split('/').filter(|part| !part.is_empty()).map(decode);
        Ok(Self {
            username,
            password,
            hosts: hosts.collect::<Result<_, _>>()?,
            path: path.collect::<Result<_, _>>()?,
            query,
        })
    }
}

/// Parses the query of a URL.
pub(crate) fn query(rest: &str) -> Result<BTreeMap<String, String>, Error> {
    let (_, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (query, _) = query.split_once('#').unwrap_or((query, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decode(name)?, decode(value)?))
    });
    pairs.collect()
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn host_and_port(text: &str, default_port: u16) -> Result<(String, u16), Error> {
    let wrong = || Error::invalid(format!("{text:?} is not HOST or HOST:PORT"));
    let (host, port) = match text.strip_prefix('[') {
        // An IPv6 address is written between brackets.
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            (host, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| wrong())?,
        None => default_port,
    };
    if host.is_empty() || port == 0 {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

/// Resolves `%40` and the like.
fn decode(text: &str) -> Result<String, Error> {
    let wrong = || Error::invalid("a URL has a % that is not followed by two digits of UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(wrong()) };
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| wrong())?);
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_are_read() {
        let address = Address::parse("me:p%40ss%3A@a:1,b,[::1]:3/prime/2?x=%2f&y", 26379).unwrap();
        assert_eq!(address.username.as_deref(), Some("me"));
        assert_eq!(address.password.as_deref(), Some("p@ss:"));
        let hosts = [("a", 1), ("b", 26379), ("::1", 3)];
        assert!(address.hosts.iter().map(|(host, port)| (host.as_str(), *port)).eq(hosts));
        assert_eq!(address.path, ["prime", "2"]);
        assert_eq!(address.query.get("x").map(String::as_str), Some("/"));
        assert_eq!(address.query.get("y").map(String::as_str), Some(""));
        let only_password = Address::parse(":secret@a", 1).unwrap();
        assert_eq!(
            (only_password.username, only_password.password.as_deref()),
            (None, Some("secret"))
        );
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        for text in ["", "a,,b", "a:x", "a:0", "a:70000", "[::1", "%zz@a", "%ff@a", ":1"] {
            assert!(Address::parse(text, 1).is_err(), "{text}");
        }
    }
}
