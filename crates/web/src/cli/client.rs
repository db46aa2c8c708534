//! The client of commands: calls the API of the running server with the token from the data folder.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use store::trace::TraceContext;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::admin_token;
use super::{Context, Global};
use super::{Exit, Failure, Outcome, segment};
use crate::config::Config;

/// The address of a running server, left in its data folder.
#[derive(Debug, Clone, Deserialize, serde::Serialize)]
pub struct RunningServer {
    /// Base URL of dashboard and API.
    pub http: String,
    /// Its process.
    pub pid: u32,
    /// URL of the RESP listener of its built-in store, if it has one.
    #[serde(default)]
    pub resp: Option<String>,
}

type Answer = Result<ureq::http::Response<ureq::Body>, ureq::Error>;

/// Name of the file with [`RunningServer`] in the data folder.
pub const RUNNING: &str = "running.json";

/// A server's address, and the agent to call it with.
struct ServerAddress {
    base: String,
    agent: ureq::Agent,
}

impl ServerAddress {
    /// The server named by `--server`, else the local one.
    fn of(global: &Global, config: &Config) -> Outcome<ServerAddress> {
        let (base, known) = match &global.server {
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
                (url.trim_end_matches('/').to_owned(), false)
            }
            Some(url) => {
                return Err(Failure::usage(format!(
                    "--server {url} is not an http:// or https:// URL"
                ))
                .next("--server http://127.0.0.1:7070"));
            }
            None => local_base(config),
        };
        let mut tls = TlsConfig::builder();
        if let Some(path) = &global.ca {
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates(path)?));
        } else if known {
            // Its certificate is for the name visitors use, not for this address, and what goes
            // over loopback is as safe as the port itself, with TLS or without.
            tls = tls.disable_verification(true);
        }
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(tls.build())
            .timeout_connect(Some(Duration::from_secs(5)))
            .timeout_global(Some(Duration::from_secs(60)))
            .user_agent(concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Ok(ServerAddress { base, agent })
    }
}

fn certificates(path: &Path) -> Outcome<Vec<Certificate<'static>>> {
    let wrong = |why: String| Failure::usage(format!("--ca {}: {why}", path.display()));
    let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(one) = item.map_err(|error| wrong(error.to_string()))? {
            found.push(one);
        }
    }
    if found.is_empty() {
        return Err(wrong("it contains no certificate".to_owned()));
    }
    Ok(found)
}

/// Asks `/readyz` of a server: is it ready, and why not.
pub fn ready(context: &Context<'_>) -> Outcome<(bool, Value)> {
    let server = ServerAddress::of(context.global, &context.load()?.config)?;
    let mut answer = server
        .agent
        .get(format!("{}/readyz", server.base))
        .config()
        .timeout_global(Some(Duration::from_secs(5)))
        .build()
        .call()
        .map_err(|error| no_answer(&server.base, &error))?;
    let text = answer.body_mut().read_to_string().unwrap_or_default();
    let told = serde_json::from_str(&text).unwrap_or(Value::Null);
    Ok((answer.status().is_success(), told))
}

fn no_answer(base: &str, error: &ureq::Error) -> Failure {
    let next = match is_untrusted(error) {
        true => {
            "name the certificates of its authority with --ca FILE (a certificate a server made for \
             itself counts as one if it is not marked as an authority)"
        }
        false => "is the server running? start it with `tidegate`, or name it with --server",
    };
    Failure::unreachable(format!("no answer from {base}: {error}")).next(next)
}

/// Returns true if the certificate of the server was not accepted.
fn is_untrusted(error: &ureq::Error) -> bool {
    let tls = match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref().and_then(|error| error.downcast_ref()),
        _ => None,
    };
    matches!(tls, Some(rustls::Error::InvalidCertificate(_)))
}

/// Bodies from this size on are announced (`Expect: 100-continue`): a server that does not take one so
/// large says so before it is sent, and its answer cannot be lost in the middle of the sending.
const ANNOUNCED_BYTES: usize = 64 * 1024;

/// A server to talk to.
#[derive(Debug)]
pub struct Client {
    base: String,
    token: String,
    /// The source of the token, for messages.
    token_source: String,
    agent: ureq::Agent,
    /// The trace in which this command was started.
    trace: Option<TraceContext>,
}

/// The trace in which this process was started, as `jobs exec` and other tools tell it.
fn trace_of_process() -> Option<TraceContext> {
    std::env::var("TRACEPARENT").ok()?.parse().ok()
}

impl Client {
    /// The base URL of the server.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The server named by `--server`, else the local one.
    pub fn new(context: &Context<'_>) -> Outcome<Client> {
        let global = context.global;
        let config = context.load()?.config;
        let server = ServerAddress::of(global, &config)?;
        let (token, token_source) = match (&global.token_file, std::env::var("TIDEGATE_TOKEN")) {
            (Some(path), _) => {
                let token = std::fs::read_to_string(path)
                    .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
                (token, format!("the token in {}", path.display()))
            }
            (None, Ok(token)) => (token, "the token in TIDEGATE_TOKEN".to_owned()),
            (None, Err(_)) => {
                let token = admin_token::read(&config.server.data).map_err(|_| {
                    Failure::new(Exit::Auth, "no token to talk to the server with").next(
                        "set TIDEGATE_TOKEN, pass --token-file, or run from the server's folder",
                    )
                })?;
                (token, format!("the admin token in {}", config.server.data.display()))
            }
        };
        let token = token.trim().to_owned();
        let (base, agent, trace) = (server.base, server.agent, trace_of_process());
        Ok(Client { base, token, token_source, agent, trace })
    }

    /// The same server, with the token that is in the data folder now.
    pub fn with_admin_token(global: &Global, config: &Config) -> Outcome<Client> {
        let server = ServerAddress::of(global, config)?;
        let token = admin_token::read(&config.server.data)
            .map_err(|error| Failure::failed(format!("cannot read the admin token: {error}")))?;
        let token_source = format!("the admin token in {}", config.server.data.display());
        let (base, agent, trace) = (server.base, server.agent, trace_of_process());
        Ok(Client { base, token, token_source, agent, trace })
    }

    /// Adds the token, and the trace this call is part of.
    fn sign<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        let request = request.header("authorization", self.bearer());
        match store::trace::current().or(self.trace) {
            Some(trace) => request.header("traceparent", trace.to_string()),
            None => request,
        }
    }

    /// GET, and the JSON of the answer.
    pub fn get(&self, path: &str) -> Outcome<Value> {
        self.get_text(path).map(|text| value_of(&text))
    }

    /// GET of a list: the items of all its pages. The path may have a query, without `limit` and `cursor`.
    pub fn get_all(&self, path: &str) -> Outcome<Vec<Value>> {
        all_pages(path, |path| self.get(path))
    }

    /// As [`get`](Client::get), and the answer as it came: a [`Value`] keeps neither the order of
    /// fields nor the digits of numbers.
    pub fn get_text(&self, path: &str) -> Outcome<String> {
        let request = self.sign(self.agent.get(self.url(path)));
        self.finish_text(request.call())
    }

    /// POST with a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> Outcome<Value> {
        let request = self.sign(self.agent.post(self.url(path)));
        self.finish(request.content_type("application/json").send(body.to_string()))
    }

    /// POST with a body that is JSON already.
    pub fn post_text(&self, path: &str, body: &str) -> Outcome<Value> {
        self.exchange(path, body).map(|text| value_of(&text))
    }

    /// As [`post_text`](Client::post_text), and the answer as it came.
    pub fn exchange(&self, path: &str, body: &str) -> Outcome<String> {
        let mut request = self.sign(self.agent.post(self.url(path)));
        if body.len() >= ANNOUNCED_BYTES {
            request = request.header("expect", "100-continue");
        }
        self.finish_text(request.content_type("application/json").send(body))
    }

    /// PUT with a body that is JSON already.
    pub fn put_text(&self, path: &str, body: &str) -> Outcome<Value> {
        let request = self.sign(self.agent.put(self.url(path)));
        self.finish(request.content_type("application/json").send(body))
    }

    /// GET whose answer comes bit by bit and does not end by itself, but for the time given.
    pub fn follow(&self, path: &str, most: Option<Duration>) -> Outcome<impl BufRead + use<>> {
        let request = self.sign(self.agent.get(self.url(path)));
        let answer = request.config().timeout_global(most).build().call();
        match answer {
            Ok(answer) if answer.status().as_u16() < 400 => {
                Ok(BufReader::new(answer.into_body().into_reader()))
            }
            answer => match self.finish_text(answer) {
                Ok(_) => Err(Failure::failed("the response is not a stream")),
                Err(failure) => Err(failure),
            },
        }
    }

    /// PATCH with a JSON body.
    pub fn patch(&self, path: &str, body: &Value) -> Outcome<Value> {
        let request = self.sign(self.agent.patch(self.url(path)));
        self.finish(request.content_type("application/json").send(body.to_string()))
    }

    /// DELETE with a JSON body, for what asks to be confirmed.
    pub fn delete_confirmed(&self, path: &str, body: &Value) -> Outcome<Value> {
        let request = self.sign(self.agent.delete(self.url(path)));
        let request = request.force_send_body().content_type("application/json");
        self.finish(request.send(body.to_string()))
    }

    /// DELETE.
    pub fn delete(&self, path: &str) -> Outcome<Value> {
        let request = self.sign(self.agent.delete(self.url(path)));
        self.finish(request.call())
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    fn finish(&self, answer: Answer) -> Outcome<Value> {
        self.finish_text(answer).map(|text| value_of(&text))
    }

    fn finish_text(&self, answer: Answer) -> Outcome<String> {
        let mut answer = answer.map_err(|error| no_answer(&self.base, &error))?;
        let status = answer.status().as_u16();
        let text = answer
            .body_mut()
            .read_to_string()
            .map_err(|error| Failure::unreachable(format!("the answer broke off: {error}")))?;
        if status < 400 {
            return Ok(text);
        }
        let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        let reason = body["error"]["message"].as_str().unwrap_or("no reason given");
        // The field at fault is what a person needs to know first.
        let message = match body["error"]["details"]["field"].as_str() {
            Some(field) => format!("{field}: {reason}"),
            None => reason.to_owned(),
        };
        let exit = match status {
            400 | 409 | 412..=415 | 422 => Exit::Usage,
            401 | 403 => Exit::Auth,
            404 | 410 => Exit::NotFound,
            502..=504 => Exit::Unreachable,
            _ => Exit::Failed,
        };
        let mut failure = match status {
            // What the server says of headers and logins is for other programs and for browsers.
            401 => Failure::new(exit, format!("{} is not valid (HTTP 401)", self.token_source))
                .next("set TIDEGATE_TOKEN, pass --token-file, or run from the server's folder"),
            _ => Failure::new(exit, format!("{message} (HTTP {status})")),
        };
        failure.status = Some(status);
        failure.code = body["error"]["code"].as_str().map(str::to_owned);
        Err(failure)
    }
}

/// The value of a JSON text. What a [`Value`] cannot hold, such as the number 1e999 in somebody's
/// payload, becomes a text where it stands instead of spoiling the rest. What is not JSON is null.
pub fn value_of(text: &str) -> Value {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(raw) => lenient(raw.get(), 64),
        Err(_) => Value::Null,
    }
}

fn lenient(text: &str, depth: u32) -> Value {
    if let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    let Some(below) = depth.checked_sub(1) else { return Value::from(text) };
    if let Ok(fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(text) {
        let field = |(name, raw): (String, &RawValue)| (name, lenient(raw.get(), below));
        return fields.into_iter().map(field).collect();
    }
    match serde_json::from_str::<Vec<&RawValue>>(text) {
        Ok(items) => items.into_iter().map(|raw| lenient(raw.get(), below)).collect(),
        Err(_) => Value::from(text),
    }
}

/// The local server: where it said it is, else where it would be; and whether that is on this
/// machine's own loopback address.
fn local_base(config: &Config) -> (String, bool) {
    let left = std::fs::read_to_string(config.server.data.join(RUNNING)).ok();
    let base = match left.and_then(|text| serde_json::from_str::<RunningServer>(&text).ok()) {
        Some(running) => running.http,
        None => base_of(config.http.listen, !config.http.tls_cert.as_os_str().is_empty()),
    };
    let address = base.split_once("://").and_then(|(_, address)| address.parse().ok());
    let known = address.is_some_and(|at: std::net::SocketAddr| at.ip().is_loopback());
    (base, known)
}

/// A URL people and programs on this machine can use for a listening address.
pub fn base_of(address: std::net::SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    let mut address = address;
    if address.ip().is_unspecified() {
        let loopback: std::net::IpAddr = match address {
            std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        address.set_ip(loopback);
    }
    format!("{scheme}://{address}")
}

/// Reads page after page of a list until there is no cursor of a next one.
fn all_pages(path: &str, mut get: impl FnMut(&str) -> Outcome<Value>) -> Outcome<Vec<Value>> {
    let first = format!("{path}{}limit=1000", if path.contains('?') { '&' } else { '?' });
    let (mut items, mut next) = (Vec::new(), first.clone());
    loop {
        let mut answer = get(&next)?;
        if let Value::Array(page) = answer["items"].take() {
            items.extend(page);
        }
        match answer["next_cursor"].as_str() {
            Some(cursor) => next = format!("{first}&cursor={}", segment(cursor)),
            None => return Ok(items),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_pages_of_a_list_are_read() {
        let mut asked = Vec::new();
        let items = all_pages("/things?sort=name", |path| {
            asked.push(path.to_owned());
            Ok(match asked.len() {
                1 => json!({ "items": [1, 2], "next_cursor": "a b" }),
                _ => json!({ "items": [3], "next_cursor": null }),
            })
        });
        assert_eq!(items.unwrap(), [1, 2, 3]);
        let first = "/things?sort=name&limit=1000";
        assert_eq!(asked, [first.to_owned(), format!("{first}&cursor=a%20b")]);
    }

    #[test]
    fn a_number_without_a_value_does_not_spoil_an_answer() {
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        let text = format!("{{\"a\":1,\"b\":[2,1e999],\"c\":\"\\ud800\",\"d\":{deep}}}");
        let value = value_of(&text);
        assert_eq!((&value["a"], &value["b"]), (&json!(1), &json!([2, "1e999"])));
        assert_eq!(value["c"], json!("\"\\ud800\""));
        assert!(value["d"].is_array());
        assert_eq!((value_of(""), value_of("no")), (Value::Null, Value::Null));
    }
}
