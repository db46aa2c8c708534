//! Error pages of the proxy: a page for people in their language, the usual error body for programs.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use crate::assets;
use crate::forward_auth;
use crate::waiting_page::i18n::{self, Translation};
use crate::waiting_page::page::{svg, waves};
use web::ApiError;
use web::icon::logo;
use web::middleware;

/// Error of the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProxyError {
    /// The site does not respond.
    OriginDown,
    /// The site takes too long.
    OriginSlow,
    /// The site sent an invalid response.
    BadUpgrade,
    /// The store is unavailable, and newcomers are turned away.
    StoreUnavailable,
    /// The queue does not exist.
    NoQueue,
    /// The request is too large.
    TooLarge(u64),
    /// The request is ambiguous; the reason says how.
    Refused(&'static str),
    /// A method that is not forwarded.
    BadMethod,
    /// The request's body is malformed or incomplete.
    BadBody,
    /// The visitor stopped sending.
    Stalled,
    /// The visitor's address has as many connections as it may have.
    TooManySockets,
    /// The proxy received its own request.
    Loop,
}

/// Audience of an error: a person or a program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Audience {
    /// A person's browser going to a page.
    pub(super) navigates: bool,
    /// The request can be repeated as it is.
    pub(super) repeatable: bool,
    pub(super) words: &'static Translation,
}

impl Audience {
    /// Determines the audience of a request.
    pub(super) fn of(request: &Request) -> Audience {
        Audience {
            navigates: forward_auth::is_navigation(request.method(), request.headers()),
            repeatable: matches!(*request.method(), Method::GET | Method::HEAD),
            words: i18n::pick(None, request.headers()),
        }
    }
}

impl ProxyError {
    fn status(self) -> StatusCode {
        match self {
            ProxyError::OriginDown | ProxyError::BadUpgrade => StatusCode::BAD_GATEWAY,
            ProxyError::OriginSlow => StatusCode::GATEWAY_TIMEOUT,
            ProxyError::StoreUnavailable | ProxyError::NoQueue | ProxyError::TooManySockets => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ProxyError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            ProxyError::Refused(_) | ProxyError::BadBody => StatusCode::BAD_REQUEST,
            ProxyError::BadMethod => StatusCode::METHOD_NOT_ALLOWED,
            ProxyError::Stalled => StatusCode::REQUEST_TIMEOUT,
            ProxyError::Loop => StatusCode::LOOP_DETECTED,
        }
    }

    fn code(self) -> &'static str {
        match self {
            ProxyError::OriginDown | ProxyError::BadUpgrade => "ORIGIN_DOWN",
            ProxyError::OriginSlow => "ORIGIN_SLOW",
            ProxyError::StoreUnavailable => "STORE_UNAVAILABLE",
            ProxyError::NoQueue => "QUEUE_NOT_FOUND",
            ProxyError::TooLarge(_) => "BODY_TOO_LARGE",
            ProxyError::Refused(_) | ProxyError::BadBody => "INVALID_REQUEST",
            ProxyError::BadMethod => "METHOD_NOT_ALLOWED",
            ProxyError::Stalled => "REQUEST_TIMEOUT",
            ProxyError::TooManySockets => "TOO_MANY_CONNECTIONS",
            ProxyError::Loop => "LOOP",
        }
    }

    /// Returns the message for programs.
    fn message(self) -> String {
        match self {
            ProxyError::OriginDown => {
                "the site behind this proxy does not respond; try again in a moment"
            }
            ProxyError::OriginSlow => "the site behind this proxy takes too long to respond",
            ProxyError::BadUpgrade => "the site switched protocols without being asked",
            ProxyError::StoreUnavailable => {
                "new visitors cannot be admitted at the moment; try again later"
            }
            ProxyError::NoQueue => "the queue of this site was not found",
            ProxyError::TooLarge(most) => {
                return format!("the request is larger than {most} bytes");
            }
            ProxyError::Refused(why) => {
                return format!("{why}; the site could read this request differently");
            }
            ProxyError::BadMethod => "CONNECT and TRACE are not forwarded to the site",
            ProxyError::BadBody => "the body of the request is malformed or incomplete",
            ProxyError::Stalled => "the rest of the request did not arrive in time",
            ProxyError::TooManySockets => {
                "your address has reached its limit of open connections; close one and try again"
            }
            ProxyError::Loop => "the proxy received its own request: its origin is its own address",
        }
        .to_owned()
    }

    /// Returns the seconds after which a retry may succeed.
    fn retry_after(self) -> Option<u64> {
        match self {
            ProxyError::OriginDown => Some(5),
            ProxyError::OriginSlow | ProxyError::StoreUnavailable | ProxyError::NoQueue => Some(10),
            _ => None,
        }
    }

    /// Returns title and lead for people.
    fn texts(self, lang: &str) -> (&'static str, &'static str) {
        match (self, lang) {
            (ProxyError::OriginDown | ProxyError::BadUpgrade, "de") => {
                ("Die Website antwortet derzeit nicht", "Das liegt nicht an Ihnen.")
            }
            (ProxyError::OriginDown | ProxyError::BadUpgrade, "es") => {
                ("El sitio no responde ahora mismo", "No es culpa tuya.")
            }
            (ProxyError::OriginDown | ProxyError::BadUpgrade, _) => {
                ("The site is not responding right now", "This is not your fault.")
            }
            (ProxyError::OriginSlow, "de") => {
                ("Die Website braucht zu lange", "Sie hat nicht rechtzeitig geantwortet.")
            }
            (ProxyError::OriginSlow, "es") => {
                ("El sitio tarda demasiado", "No ha respondido a tiempo.")
            }
            (ProxyError::OriginSlow, _) => {
                ("The site is taking too long to respond", "It did not respond in time.")
            }
            (ProxyError::StoreUnavailable | ProxyError::NoQueue, "de") => (
                "Derzeit kann niemand eingelassen werden",
                "Bitte versuchen Sie es gleich noch einmal.",
            ),
            (ProxyError::StoreUnavailable | ProxyError::NoQueue, "es") => {
                ("Ahora mismo no puede entrar nadie más", "Inténtalo de nuevo en un momento.")
            }
            (ProxyError::StoreUnavailable | ProxyError::NoQueue, _) => {
                ("New visitors cannot enter right now", "Please try again in a moment.")
            }
            (ProxyError::TooLarge(_), "de") => {
                ("Die Anfrage ist zu groß", "So große Anfragen nimmt diese Website nicht an.")
            }
            (ProxyError::TooLarge(_), "es") => (
                "La solicitud es demasiado grande",
                "Este sitio no acepta solicitudes tan grandes.",
            ),
            (ProxyError::TooLarge(_), _) => {
                ("The request is too large", "This site does not accept requests of this size.")
            }
            (ProxyError::Refused(_) | ProxyError::BadMethod | ProxyError::BadBody, "de") => (
                "Diese Anfrage ist ungültig",
                "Prüfen Sie die Adresse und versuchen Sie es erneut.",
            ),
            (ProxyError::Refused(_) | ProxyError::BadMethod | ProxyError::BadBody, "es") => {
                ("La solicitud no es válida", "Comprueba la dirección e inténtalo de nuevo.")
            }
            (ProxyError::Refused(_) | ProxyError::BadMethod | ProxyError::BadBody, _) => {
                ("This request is not valid", "Check the address and try again.")
            }
            (ProxyError::Stalled, "de") => {
                ("Die Übertragung ist abgebrochen", "Versuchen Sie es noch einmal.")
            }
            (ProxyError::Stalled, "es") => {
                ("La transferencia se ha interrumpido", "Inténtalo de nuevo.")
            }
            (ProxyError::Stalled, _) => ("The transfer was interrupted", "Try again."),
            (ProxyError::TooManySockets, "de") => (
                "Zu viele offene Verbindungen",
                "Schließen Sie andere Fenster dieser Website und versuchen Sie es erneut.",
            ),
            (ProxyError::TooManySockets, "es") => (
                "Demasiadas conexiones abiertas",
                "Cierra otras ventanas de este sitio e inténtalo de nuevo.",
            ),
            (ProxyError::TooManySockets, _) => {
                ("Too many open connections", "Close other windows of this site and try again.")
            }
            (ProxyError::Loop, _) => (
                "The proxy forwards to itself",
                "Its origin is its own address. The operator has to set another one.",
            ),
        }
    }

    /// Returns the response. With `active`, the visitor has a session, which the page says is kept.
    pub(super) fn into_response(self, to: Audience, active: bool) -> Response {
        let mut error = ApiError::new(self.status(), self.code(), self.message());
        if let Some(seconds) = self.retry_after() {
            error = error.retry_after(seconds);
        }
        let response = IntoResponse::into_response(error);
        match to.navigates {
            true => page_for(response, self.page(to, active), to.words),
            false => envelope(response),
        }
    }

    fn page(self, to: Audience, active: bool) -> Markup {
        let lang = to.words.lang;
        let (title, lead) = self.texts(lang);
        let again = self.retry_after().filter(|_| to.repeatable);
        html! {
            (DOCTYPE)
            html lang=(lang) {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="robots" content="noindex, nofollow";
                    @if let Some(seconds) = again {
                        noscript { meta http-equiv="refresh" content=(seconds); }
                        script src=(assets::url("waiting.js")) defer {}
                    }
                    title { (title) }
                    link rel="icon" type="image/svg+xml" href=(assets::url("icon.svg"));
                    link rel="stylesheet" href=(assets::url("waiting.css"));
                }
                body data-poll=[again.map(|seconds| seconds * 1_000)] {
                    div.backdrop aria-hidden="true" { (waves()) }
                    div.page {
                        header.top { span.brand { span.mark aria-hidden="true" { (logo()) } } }
                        main {
                            section.card.warn aria-labelledby="title" {
                                div.titles {
                                    span.sign aria-hidden="true" { (svg("M12 7v6M12 16.500v.1")) }
                                    h1 #title { (title) }
                                    @if !lead.is_empty() { p.lead { (lead) } }
                                }
                                @if again.is_some() { p { (tries_again(lang)) } }
                                @if active { p { (session_kept(lang)) } }
                                @if to.repeatable { a.button.primary href="" { (to.words.try_again) } }
                            }
                        }
                        footer.foot { span { (self.status().as_u16()) } span.by { "Tidegate" } }
                    }
                }
            }
        }
    }
}

fn tries_again(lang: &str) -> &'static str {
    match lang {
        "de" => "Diese Seite versucht es automatisch erneut.",
        "es" => "Esta página volverá a intentarlo automáticamente.",
        _ => "This page will try again automatically.",
    }
}

fn session_kept(lang: &str) -> &'static str {
    match lang {
        "de" => "Ihre Sitzung bleibt aktiv; Sie müssen sich nicht noch einmal anstellen.",
        "es" => "Tu sesión sigue activa y no tendrás que volver a hacer cola.",
        _ => "Your session is still active, and you will not have to queue again.",
    }
}

/// Adds the error body for programs to a response without one.
pub(super) fn envelope(mut response: Response) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let id = uuid::Uuid::now_v7().simple().to_string();
    let json = serde_json::to_string(&error.body(&id)).unwrap_or_else(|_| "{}".to_owned());
    finish(&mut response, "application/json", "default-src 'none'; frame-ancestors 'none'");
    *response.body_mut() = Body::from(json);
    response
}

fn page_for(mut response: Response, page: Markup, words: &Translation) -> Response {
    finish(&mut response, "text/html; charset=utf-8", middleware::PAGE_POLICY);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LANGUAGE, HeaderValue::from_static(words.lang));
    *response.body_mut() = Body::from(page.into_string());
    response
}

fn finish(response: &mut Response, kind: &'static str, policy: &'static str) {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
