//! Settings as they are, where each came from, and the tokens.

use axum::extract::State;
use maud::{Markup, html};

use crate::app::App;
use crate::auth::{Role, Token};
use crate::error::ApiError;
use crate::format;
use crate::icon::Icon;
use crate::ui::{self, Shell};

/// One setting as shown. The binary fills these; secrets are left out before they get here.
#[derive(Debug, Clone, Default)]
pub struct ShownSetting {
    /// `section.name`.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Its source.
    pub origin: String,
    /// True if it was set anywhere.
    pub changed: bool,
    /// Description.
    pub doc: String,
    /// True if a running server takes a new value.
    pub live: bool,
}

pub(crate) async fn page(State(app): State<App>, shell: Shell) -> Result<Markup, ApiError> {
    let head = ui::Head::new("Settings", "Who gets in, and how this instance is set up.");
    let tokens = if shell.may_own() { Some(app.auth().tokens(app.store()).await?) } else { None };
    let body = html! {
        div.stack {
            @if let Some(tokens) = &tokens { (tokens_card(tokens)) }
            (settings_card(&app))
        }
        @if tokens.is_some() { (token_dialog(&app)) }
    };
    Ok(shell.page(&app, "/settings", &head, &body))
}

fn tokens_card(tokens: &[Token]) -> Markup {
    let add = html! { button.btn.s.primary type="button" data-open="new-token" { (Icon::PLUS) "New token" } };
    ui::card_flush(
        "",
        "Tokens",
        &add,
        &html! {
            div.table-wrap tabindex="0" {
                table.table.cards {
                    thead { tr { th { "Name" } th { "Role" } th { "Scopes" } th { "Made" } th { "Id" } th { span.sr { "Acts" } } } }
                    tbody {
                        @for token in tokens {
                            tr {
                                td { b { (token.name) } span.sub { "by " (token.created_by) } }
                                td { (ui::badge(tone(token.role), token.role.word())) }
                                td.small { @if token.scopes.is_empty() { span.dim { "–" } } @else { (token.scopes.join(", ")) } }
                                td.nowrap.small { (format::moment(token.created_ms)) }
                                td.mono.small { (token.id) }
                                td.r {
                                    button.btn.s.danger type="button" data-act={ "DELETE /api/v1/tokens/" (token.id) } data-then="reload"
                                        data-done={ "Revoked " (token.name) }
                                        data-confirm={ "Revoke “" (token.name) "”? Its users are locked out at once, and its sessions end." }
                                        data-confirm-verb="Revoke" { "Revoke" }
                                }
                            }
                        }
                    }
                }
            }
        },
    )
}

fn tone(role: Role) -> &'static str {
    match role {
        Role::Admin => "bad",
        Role::Operator => "warn",
        Role::Viewer => "accent",
        Role::Worker => "",
    }
}

fn token_dialog(app: &App) -> Markup {
    let scopes: Vec<&str> =
        app.known_services().iter().flat_map(|service| service.scopes().iter().copied()).collect();
    html! {
        dialog #new-token aria-labelledby="new-token-title" {
            form.dialog-body data-api="POST /api/v1/tokens" data-secret="secret" data-then="reload" data-done="Token made" {
                h2 #new-token-title { "New token" }
                label.field { span { "Name" } input.input type="text" name="name" required maxlength="64" placeholder="What it is for" autocomplete="off"; }
                label.field {
                    span { "Role" }
                    select.input name="role" {
                        option value="viewer" { "viewer — look, change nothing" }
                        option value="operator" { "operator — admit, pause, retry, cancel" }
                        option value="worker" { "worker — programs, narrowed to their scopes" }
                        option value="admin" { "admin — everything" }
                    }
                }
                label.field {
                    span { "Scopes" }
                    input.input type="text" name="scopes" data-kind="list" autocomplete="off";
                    small { "For workers: " (scopes.join(" or ")) ", separated by commas. Empty means everything a worker may do." }
                }
                div.dialog-foot {
                    button.btn type="button" data-close="" { "Cancel" }
                    button.btn.primary type="submit" { "Make token" }
                }
            }
        }
    }
}

/// Returns the section of a setting.
fn section(setting: &ShownSetting) -> &str {
    setting.name.split('.').next().unwrap_or_default()
}

fn settings_card(app: &App) -> Markup {
    let settings = app.shown_settings();
    ui::card_flush(
        "",
        "Configuration",
        &html! { a.small href="/docs/configuration" { "Reference" } },
        &html! {
            div.table-wrap tabindex="0" {
                table.table.cards.settings {
                    thead { tr { th { "Setting" } th { "Value" } th { "From" } th { "On reload" } } }
                    @for part in settings.chunk_by(|one, next| section(one) == section(next)) {
                      tbody {
                        @if let Some(first) = part.first() { tr.group { th colspan="4" scope="rowgroup" { (section(first)) } } }
                        @for setting in part {
                            tr {
                                td { code { (setting.name) } span.sub { (ui::ticks(&setting.doc)) } }
                                td.mono.small.wrap-any { @if setting.value.is_empty() { span.dim { "empty" } } @else { (setting.value) } }
                                td.small { @if setting.changed { (ui::badge("accent", &setting.origin)) } @else { span.dim { "default" } } }
                                td.small.nowrap { @if setting.live { "at once" } @else { span.dim { "after a restart" } } }
                            }
                        }
                      }
                    }
                }
            }
        },
    )
}
