//! Problems: what is wrong, and what to do about it.

use axum::extract::State;
use maud::{Markup, html};
use web::format;
use web::icon::Icon;
use web::ui::{self, Shell};

use super::{acts_word, frame};
use crate::api::problems::{ProblemView, SeverityName};
use crate::service::DnsState;

pub(crate) async fn page(State(state): State<DnsState>, shell: Shell) -> Markup {
    let acts = shell.may_operate();
    let body = part(&state, acts).await;
    let topic = format!("dns-problems?{}", acts_word(acts));
    frame(&state, &shell, "problems", Some(&topic), &body)
}

/// Renders the live part.
pub(crate) async fn part(state: &DnsState, _acts: bool) -> Markup {
    let found: Vec<ProblemView> =
        state.problems.list().into_iter().map(ProblemView::from).collect();
    let (open, over): (Vec<_>, Vec<_>) = found.iter().partition(|one| one.ended_at.is_none());
    html! {
        @if open.is_empty() {
            (ui::card("", "Now", &ui::empty(Icon::CHECK, "Nothing is wrong", "Lists, upstreams, the log, the store and all instances are in order. This is checked every few seconds.", &html! {})))
        } @else {
            (ui::card_flush("", "Now", &html! {}, &html! { ul.list { @for one in &open { (row(one)) } } }))
        }
        @if !over.is_empty() {
            (ui::card_flush("", "Over", &html! {}, &html! { ul.list { @for one in &over { (row(one)) } } }))
        }
    }
}

fn row(one: &ProblemView) -> Markup {
    let (tone, word) = match one.severity {
        SeverityName::Error => ("bad", "error"),
        SeverityName::Warning => ("warn", "warning"),
        SeverityName::Notice => ("accent", "notice"),
    };
    html! {
        li data-key={ (one.id) "-" (one.began_at.0.0) } {
            span.grow.wrap-any {
                b { (one.title) } span.sub { (one.text) }
                @if one.ended_at.is_none() { span.sub { b { "What to do: " } (one.fix) " " a href=(one.path) { "Open the page" } } }
                span.sub.dim { "since " (format::moment(one.began_at.0.0)) @if let Some(end) = one.ended_at { ", over since " (format::moment(end.0.0)) } }
            }
            @if one.ended_at.is_some() { (ui::badge("", word)) } @else { (ui::badge(tone, word)) }
        }
    }
}
