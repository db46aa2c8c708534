//! Icons as inline SVG: one stroke, 24 by 24, in the colour of the text.

use maud::{Markup, PreEscaped, Render, html};

/// An icon: the `d` of an SVG path. A service brings its own for the menu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Icon(pub &'static str);

impl Icon {
    /// A pulse.
    pub const OVERVIEW: Icon = Icon("M3 12h4l3-8 4 16 3-8h4");
    /// A stack of disks.
    pub const STORE: Icon = Icon(
        "M4 6c0-1.700 3.600-3 8-3s8 1.300 8 3-3.600 3-8 3-8-1.300-8-3Zm0 0v12c0 1.700 3.600 3 8 3s8-1.300 8-3V6M4 12c0 1.700 3.600 3 8 3s8-1.300 8-3",
    );
    /// A clipboard.
    pub const AUDIT: Icon = Icon(
        "M9 4h6v3H9V4ZM9 5H6a1 1 0 0 0-1 1v14a1 1 0 0 0 1 1h12a1 1 0 0 0 1-1V6a1 1 0 0 0-1-1h-3M8.500 12h7M8.500 16h5",
    );
    /// Sliders.
    pub const SETTINGS: Icon = Icon("M4 7h10M18 7h2M4 17h2M10 17h10M16 9.500v-5M8 19.500v-5");
    /// A page.
    pub const DOCS: Icon =
        Icon("M5 4h9l5 5v11a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1V5a1 1 0 0 1 1-1Zm9 0v5h5M8 13h8M8 17h5");
    /// Angle brackets.
    pub const API: Icon = Icon("M8 8l-4 4 4 4M16 8l4 4-4 4M13.500 5l-3 14");
    /// Copy.
    pub const COPY: Icon = Icon("M9 9h11v11H9V9ZM5 15H4V4h11v1");
    /// Three bars.
    pub const MENU: Icon = Icon("M4 7h16M4 12h16M4 17h16");
    /// A moon.
    pub const THEME: Icon = Icon("M12 3a9 9 0 1 0 9 9c-5 2.500-11.500-3-9-9Z");
    /// A door with an arrow.
    pub const EXIT: Icon = Icon("M10 4H6a1 1 0 0 0-1 1v14a1 1 0 0 0 1 1h4M14 8l4 4-4 4M18 12H9");
    /// An arrow that leaves a frame.
    pub const OPEN: Icon =
        Icon("M14 4h6v6M20 4l-9 9M10 5H6a1 1 0 0 0-1 1v12a1 1 0 0 0 1 1h12a1 1 0 0 0 1-1v-4");
    /// Three corners of a QR code.
    pub const QR: Icon = Icon(
        "M4 4h6v6H4V4ZM14 4h6v6h-6V4ZM4 14h6v6H4v-6ZM14 14h2v2h-2v-2ZM18 14h2M14 18v2M18 18h2v2h-2v-2Z",
    );
    /// A magnifying glass.
    pub const SEARCH: Icon = Icon("M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14Zm5-2 4.500 4.500");
    /// A plus.
    pub const PLUS: Icon = Icon("M12 5v14M5 12h14");
    /// Two bars.
    pub const PAUSE: Icon = Icon("M8 5v14M16 5v14");
    /// A triangle.
    pub const PLAY: Icon = Icon("M7 5l11 7-11 7V5Z");
    /// Two arrows in a circle.
    pub const REFRESH: Icon =
        Icon("M4 12a8 8 0 0 1 14-5.300L20 9M20 4v5h-5M20 12a8 8 0 0 1-14 5.300L4 15M4 20v-5h5");
    /// A bin.
    pub const TRASH: Icon = Icon("M4 7h16M9 7V4h6v3M6 7l1 14h10l1-14M10 11v6M14 11v6");
    /// A key.
    pub const KEY: Icon =
        Icon("M14 10a4 4 0 1 0-3.600-2.200L4 14.500V19h4v-3h3v-3l1.500-1.300c.5.200 1 .3 1.500.3Z");
    /// A tick.
    pub const CHECK: Icon = Icon("M5 12.500l4.500 4.500L19 7.500");
    /// A triangle with an exclamation mark.
    pub const WARN: Icon = Icon("M12 4 2.500 20h19L12 4Zm0 6v5M12 17.500v.1");
    /// A cross.
    pub const CROSS: Icon = Icon("M6 6l12 12M18 6 6 18");
    /// A clock.
    pub const CLOCK: Icon = Icon("M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Zm0-14v5l3.500 2");
    /// A flash.
    pub const BOLT: Icon = Icon("M13 3 5 14h6l-1 7 8-11h-6l1-7Z");
    /// A person.
    pub const USER: Icon =
        Icon("M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8Zm-8 9c0-4 3.600-6.500 8-6.500s8 2.500 8 6.500");
    /// A parcel.
    pub const BOX: Icon = Icon("M4 8l8-4 8 4v8l-8 4-8-4V8Zm0 0 8 4 8-4M12 12v8");
}

impl Render for Icon {
    fn render(&self) -> Markup {
        html! {
            svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.75"
                stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false" {
                path d=(self.0) {}
            }
        }
    }
}

/// The mark of the product.
pub fn logo() -> Markup {
    html! { (PreEscaped(include_str!("../assets/icon.svg").replace("<svg ", "<svg aria-hidden=\"true\" "))) }
}
