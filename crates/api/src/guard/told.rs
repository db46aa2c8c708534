//! The guard's own answers, when the site has none: a page for people in their language, the usual
//! envelope for programs.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use crate::dashboard::assets;
use crate::error::ApiError;
use crate::front;
use crate::gate;
use crate::waiting::page::{mark, svg, waves};
use crate::waiting::words::{self, Words};

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The site does not answer.
    Down,
    /// The site takes too long.
    Slow,
    /// The site answers what nobody can understand.
    Broken,
    /// The store is away, and newcomers are turned away.
    Away,
    /// The queue is not there, or the waiting room is not.
    NoRoom,
    /// The request is too large.
    TooLarge(u64),
    /// The request can be read in more than one way; the reason says how.
    Refused(&'static str),
    /// A method that is not forwarded.
    BadMethod,
    /// The request's body is malformed or incomplete.
    BadBody,
    /// The visitor stopped sending.
    Stalled,
    /// The guard was asked by itself.
    Loop,
}

/// To whom it is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listener {
    /// A person's browser going to a page.
    pub(super) navigates: bool,
    /// What was asked for can be asked for again as it is.
    pub(super) repeatable: bool,
    pub(super) words: &'static Words,
}

impl Listener {
    /// Who sent a request.
    pub(super) fn of(request: &Request) -> Listener {
        Listener {
            navigates: gate::is_navigation(request.method(), request.headers()),
            repeatable: matches!(*request.method(), Method::GET | Method::HEAD),
            words: words::pick(None, request.headers()),
        }
    }
}

impl Trouble {
    fn status(self) -> StatusCode {
        match self {
            Trouble::Down | Trouble::Broken => StatusCode::BAD_GATEWAY,
            Trouble::Slow => StatusCode::GATEWAY_TIMEOUT,
            Trouble::Away | Trouble::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
            Trouble::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Trouble::Refused(_) | Trouble::BadBody => StatusCode::BAD_REQUEST,
            Trouble::BadMethod => StatusCode::METHOD_NOT_ALLOWED,
            Trouble::Stalled => StatusCode::REQUEST_TIMEOUT,
            Trouble::Loop => StatusCode::LOOP_DETECTED,
        }
    }

    fn code(self) -> &'static str {
        match self {
            Trouble::Down | Trouble::Broken => "ORIGIN_DOWN",
            Trouble::Slow => "ORIGIN_SLOW",
            Trouble::Away => "STORE_UNAVAILABLE",
            Trouble::NoRoom => "QUEUE_NOT_FOUND",
            Trouble::TooLarge(_) => "BODY_TOO_LARGE",
            Trouble::Refused(_) | Trouble::BadBody => "INVALID_REQUEST",
            Trouble::BadMethod => "METHOD_NOT_ALLOWED",
            Trouble::Stalled => "REQUEST_TIMEOUT",
            Trouble::Loop => "LOOP",
        }
    }

    /// For programs.
    fn message(self) -> String {
        match self {
            Trouble::Down => "the site behind this address does not answer; try again in a moment",
            Trouble::Slow => "the site behind this address takes too long to answer",
            Trouble::Broken => "the site changed the protocol without being asked",
            Trouble::Away => "the site cannot let anybody new in just now; try again in a moment",
            Trouble::NoRoom => "the waiting room of this site is not there",
            Trouble::TooLarge(most) => return format!("the request is larger than {most} bytes"),
            Trouble::Refused(why) => {
                return format!("{why}; the site could read this request in another way");
            }
            Trouble::BadMethod => "CONNECT and TRACE are not forwarded to the site",
            Trouble::BadBody => "the body of the request is malformed or incomplete",
            Trouble::Stalled => "the rest of the request did not arrive in time",
            Trouble::Loop => "the guard was asked by itself: its origin is its own address",
        }
        .to_owned()
    }

    /// Seconds after which it may be better.
    fn retry_after(self) -> Option<u64> {
        match self {
            Trouble::Down => Some(5),
            Trouble::Slow | Trouble::Away | Trouble::NoRoom => Some(10),
            _ => None,
        }
    }

    /// For people: title and lead.
    fn words(self, lang: &str) -> (&'static str, &'static str) {
        match (self, lang) {
            (Trouble::Down | Trouble::Broken, "de") => {
                ("Die Website antwortet gerade nicht", "Das liegt nicht an Ihnen.")
            }
            (Trouble::Down | Trouble::Broken, "es") => {
                ("El sitio no responde ahora mismo", "No es culpa tuya.")
            }
            (Trouble::Down | Trouble::Broken, _) => {
                ("The site does not answer just now", "This is not your fault.")
            }
            (Trouble::Slow, "de") => {
                ("Die Website braucht zu lange", "Sie hat nicht rechtzeitig geantwortet.")
            }
            (Trouble::Slow, "es") => ("El sitio tarda demasiado", "No ha respondido a tiempo."),
            (Trouble::Slow, _) => {
                ("The site takes too long to answer", "It did not answer in time.")
            }
            (Trouble::Away | Trouble::NoRoom, "de") => {
                ("Gerade kann niemand Neues hinein", "Versuchen Sie es gleich noch einmal.")
            }
            (Trouble::Away | Trouble::NoRoom, "es") => {
                ("Ahora mismo no puede entrar nadie más", "Inténtalo de nuevo en un momento.")
            }
            (Trouble::Away | Trouble::NoRoom, _) => {
                ("Nobody new can come in just now", "Try again in a moment.")
            }
            (Trouble::TooLarge(_), "de") => {
                ("Das ist zu groß", "So viel auf einmal nimmt diese Website nicht an.")
            }
            (Trouble::TooLarge(_), "es") => {
                ("Es demasiado grande", "Este sitio no acepta tanto de una vez.")
            }
            (Trouble::TooLarge(_), _) => {
                ("That is too large", "This site does not take so much at once.")
            }
            (Trouble::Refused(_) | Trouble::BadMethod | Trouble::BadBody, "de") => (
                "Diese Anfrage ist ungültig",
                "Prüfen Sie die Adresse und versuchen Sie es erneut.",
            ),
            (Trouble::Refused(_) | Trouble::BadMethod | Trouble::BadBody, "es") => {
                ("La solicitud no es válida", "Comprueba la dirección e inténtalo de nuevo.")
            }
            (Trouble::Refused(_) | Trouble::BadMethod | Trouble::BadBody, _) => {
                ("This request is not valid", "Check the address and try again.")
            }
            (Trouble::Stalled, "de") => {
                ("Die Übertragung ist abgebrochen", "Versuchen Sie es noch einmal.")
            }
            (Trouble::Stalled, "es") => {
                ("La transferencia se ha interrumpido", "Inténtalo de nuevo.")
            }
            (Trouble::Stalled, _) => ("The transfer was interrupted", "Try again."),
            (Trouble::Loop, _) => (
                "This guard guards itself",
                "Its origin is its own address. Whoever runs it can set another one.",
            ),
        }
    }

    /// The answer. With `inside`, the visitor has a session, which this does not cost.
    pub(super) fn told(self, to: Listener, inside: bool) -> Response {
        let mut error = ApiError::new(self.status(), self.code(), self.message());
        if let Some(seconds) = self.retry_after() {
            error = error.retry_after(seconds);
        }
        let response = error.into_response();
        match to.navigates {
            true => page_for(response, self.page(to, inside), to.words),
            false => envelope(response),
        }
    }

    fn page(self, to: Listener, inside: bool) -> Markup {
        let lang = to.words.lang;
        let (title, lead) = self.words(lang);
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
                        script src=(assets::room_url("waiting.js")) defer {}
                    }
                    title { (title) }
                    link rel="icon" type="image/svg+xml" href=(assets::room_url("icon.svg"));
                    link rel="stylesheet" href=(assets::room_url("waiting.css"));
                }
                body data-poll=[again.map(|seconds| seconds * 1_000)] {
                    div.backdrop aria-hidden="true" { (waves()) }
                    div.page {
                        header.top { span.brand { span.mark aria-hidden="true" { (mark()) } } }
                        main {
                            section.card.warn aria-labelledby="title" {
                                div.titles {
                                    span.sign aria-hidden="true" { (svg("M12 7v6M12 16.500v.1")) }
                                    h1 #title { (title) }
                                    @if !lead.is_empty() { p.lead { (lead) } }
                                }
                                @if again.is_some() { p { (looks_again(lang)) } }
                                @if inside { p { (kept(lang)) } }
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

fn looks_again(lang: &str) -> &'static str {
    match lang {
        "de" => "Diese Seite versucht es von selbst wieder.",
        "es" => "Esta página lo vuelve a intentar sola.",
        _ => "This page tries again by itself.",
    }
}

fn kept(lang: &str) -> &'static str {
    match lang {
        "de" => "Sie sind weiterhin drin und müssen sich nicht noch einmal anstellen.",
        "es" => "Sigues dentro y no tendrás que volver a hacer cola.",
        _ => "You are still inside and will not have to stand in line again.",
    }
}

/// The body of an error for programs, if `response` is one without.
pub(super) fn envelope(mut response: Response) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let id = uuid::Uuid::now_v7().simple().to_string();
    let json = serde_json::to_string(&error.body(&id)).unwrap_or_else(|_| "{}".to_owned());
    finish(&mut response, "application/json", "default-src 'none'; frame-ancestors 'none'");
    *response.body_mut() = Body::from(json);
    response
}

fn page_for(mut response: Response, page: Markup, words: &Words) -> Response {
    finish(&mut response, "text/html; charset=utf-8", front::PAGE_POLICY);
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
