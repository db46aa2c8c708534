//! Requests that are answered past the middleware, because they are many and small.
//!
//! [`Routes::direct`](crate::Routes::direct) has their routes. A [`DirectRequest`] counts and traces
//! them as all others. Nothing else is done for them: no id, no limits on the body, no error envelope, no
//! headers for browsers; their handlers do what they need of it.

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use store::trace::TraceSpan;
use tokio::time::Instant;

use crate::app::App;
use crate::client::{self, Client, Peer};
use crate::middleware::{end_trace, request_trace};
use crate::requests::{CountedRequest, RequestEnd};
use crate::{metrics, settings::Settings};

/// A request of a direct route: counted when it is answered, and when it is dropped before, as aborted
/// by its client.
#[derive(Debug)]
pub struct DirectRequest<'a> {
    app: &'a App,
    route: &'static str,
    method: Method,
    started: Instant,
    trace: TraceSpan,
    ended: bool,
}

impl<'a> DirectRequest<'a> {
    /// Begins a request; `route` is the template of its path. Returns its client, too.
    pub fn begin(
        app: &'a App,
        settings: &Settings,
        route: &'static str,
        request: &Request,
    ) -> (DirectRequest<'a>, Client) {
        let peer = request.extensions().get::<Peer>().copied().unwrap_or_default();
        let headers = request.headers();
        let client = Client::of(peer, headers, settings);
        if headers.contains_key(&settings.client_address_header)
            && !client::is_trusted(peer, settings)
        {
            metrics::untrusted_forwarding();
        }
        let method = request.method().clone();
        let trace = request_trace(headers, &method, route);
        let started = Instant::now();
        (DirectRequest { app, route, method, started, trace, ended: false }, client)
    }

    /// Counts the answer.
    pub fn answered(mut self, status: StatusCode) {
        self.ended = true;
        end_trace(&mut self.trace, status);
        self.record(RequestEnd::Status(status.as_u16()));
    }

    fn record(&self, end: RequestEnd) {
        let context = self.trace.context().filter(|context| context.sampled);
        let request = CountedRequest {
            route: Some(self.route),
            method: &self.method,
            end,
            is_refused: false,
            took: self.started.elapsed(),
            trace_id: context.map(|context| context.trace_id),
        };
        self.app.requests().own().record(&request, self.app.store().now());
    }
}

impl Drop for DirectRequest<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.record(RequestEnd::Aborted);
        }
    }
}
