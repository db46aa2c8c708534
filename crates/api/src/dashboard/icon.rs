//! Icons as inline SVG: one stroke, 24 by 24, in the colour of the text.

use maud::{Markup, PreEscaped, html};

/// An icon by name; an unknown name is an empty square, which a look at the page shows.
pub(crate) fn icon(name: &str) -> Markup {
    let path = match name {
        "overview" => "M3 12h4l3-8 4 16 3-8h4",
        "room" => {
            "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6Zm8 1a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5ZM2.500 20c0-3.300 2.500-5.500 5.500-5.500s5.500 2.200 5.500 5.500M15 15c3.500-.500 6.500 1.500 6.500 5"
        }
        "jobs" => "M4 7h16M4 12h16M4 17h10M17 15l2 2 3-4",
        "store" => {
            "M4 6c0-1.700 3.600-3 8-3s8 1.300 8 3-3.600 3-8 3-8-1.300-8-3Zm0 0v12c0 1.700 3.600 3 8 3s8-1.300 8-3V6M4 12c0 1.700 3.600 3 8 3s8-1.300 8-3"
        }
        "audit" => {
            "M9 4h6v3H9V4ZM9 5H6a1 1 0 0 0-1 1v14a1 1 0 0 0 1 1h12a1 1 0 0 0 1-1V6a1 1 0 0 0-1-1h-3M8.500 12h7M8.500 16h5"
        }
        "settings" => "M4 7h10M18 7h2M4 17h2M10 17h10M16 9.500v-5M8 19.500v-5",
        "docs" => {
            "M5 4h9l5 5v11a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1V5a1 1 0 0 1 1-1Zm9 0v5h5M8 13h8M8 17h5"
        }
        "api" => "M8 8l-4 4 4 4M16 8l4 4-4 4M13.500 5l-3 14",
        "menu" => "M4 7h16M4 12h16M4 17h16",
        "theme" => "M12 3a9 9 0 1 0 9 9c-5 2.500-11.500-3-9-9Z",
        "exit" => "M10 4H6a1 1 0 0 0-1 1v14a1 1 0 0 0 1 1h4M14 8l4 4-4 4M18 12H9",
        "search" => "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14Zm5-2 4.500 4.500",
        "plus" => "M12 5v14M5 12h14",
        "pause" => "M8 5v14M16 5v14",
        "play" => "M7 5l11 7-11 7V5Z",
        "refresh" => {
            "M4 12a8 8 0 0 1 14-5.300L20 9M20 4v5h-5M20 12a8 8 0 0 1-14 5.300L4 15M4 20v-5h5"
        }
        "trash" => "M4 7h16M9 7V4h6v3M6 7l1 14h10l1-14M10 11v6M14 11v6",
        "key" => {
            "M14 10a4 4 0 1 0-3.600-2.200L4 14.500V19h4v-3h3v-3l1.500-1.300c.5.200 1 .3 1.500.3Z"
        }
        "check" => "M5 12.500l4.500 4.500L19 7.500",
        "warn" => "M12 4 2.500 20h19L12 4Zm0 6v5M12 17.500v.1",
        "cross" => "M6 6l12 12M18 6 6 18",
        "clock" => "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Zm0-14v5l3.500 2",
        "bolt" => "M13 3 5 14h6l-1 7 8-11h-6l1-7Z",
        "user" => {
            "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8Zm-8 9c0-4 3.600-6.500 8-6.500s8 2.500 8 6.500"
        }
        "box" => "M4 8l8-4 8 4v8l-8 4-8-4V8Zm0 0 8 4 8-4M12 12v8",
        _ => "M5 5h14v14H5V5Z",
    };
    html! {
        svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.75"
            stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false" {
            path d=(path) {}
        }
    }
}

/// The mark of the product.
pub(crate) fn logo() -> Markup {
    html! { (PreEscaped(include_str!("../../../../web/icon.svg").replace("<svg ", "<svg aria-hidden=\"true\" "))) }
}
