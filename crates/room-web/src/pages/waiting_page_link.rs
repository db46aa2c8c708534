//! The waiting page of a queue for those who should get there: link, copy, QR code.

use maud::{Markup, html};
use room::QueueId;
use web::icon::Icon;
use web::qr;
use web::ui::Shell;

use crate::site::OWN_PATH;

/// Returns the path of a queue's waiting page.
pub(super) fn path(id: &QueueId) -> String {
    format!("{OWN_PATH}/{id}")
}

/// Renders the buttons that lead to the waiting page.
pub(super) fn buttons(id: &QueueId) -> Markup {
    html! {
        a.btn.s href=(path(id)) target="_blank" rel="noopener" { (Icon::OPEN) "Open waiting page" }
        button.btn.s type="button" data-copy-link=(path(id)) { (Icon::COPY) "Copy link" }
        button.btn.s type="button" data-open="qr" { (Icon::QR) "QR code" }
    }
}

/// Renders the dialog with the QR code.
pub(super) fn dialog(id: &QueueId, shell: &Shell) -> Markup {
    let address = format!("{}{}", shell.origin(), path(id));
    let here =
        ["http://127.", "http://localhost", "https://127.", "https://localhost", "http://[::1]"];
    let is_local = here.iter().any(|start| address.starts_with(start));
    html! {
        dialog #qr aria-labelledby="qr-title" {
            div.dialog-body {
                h2 #qr-title { "Waiting page" }
                @if let Some(code) = qr::svg(&address, &format!("QR code of {address}")) { div.qr { (code) } }
                p.mono.small.wrap-any { (address) }
                @if is_local {
                    p.small { "This address works on this machine only. Open the dashboard by the name visitors use to get a code for their phones." }
                }
                div.dialog-foot {
                    button.btn type="button" data-copy=(address) { (Icon::COPY) "Copy link" }
                    button.btn.primary type="button" data-close="" { "Close" }
                }
            }
        }
    }
}
