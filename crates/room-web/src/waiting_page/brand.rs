//! A queue's own look on the waiting page: a colour and a logo, kept with the queue's settings.
//!
//! The colour is adjusted, darker or lighter, until text in it is readable on light and on dark pages.
//! Styles come from a separate file, because the page's content security policy allows none inline.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use room::QueueConfig;
use serde_json::{Map, Value};

use web::ApiError;

const COLOR: &str = "brand_color";
const LOGO: &str = "brand_logo";
/// The longest logo: an address, or a small picture itself.
const LONGEST_LOGO: usize = 12 * 1024;
/// The least contrast of text that can be read (WCAG AA).
const READABLE: f64 = 4.5;
/// The grounds of `waiting.css` on which the colour is hardest to read.
const LIGHT_GROUND: Rgb = Rgb([0xdc, 0xec, 0xf2]);
const DARK_GROUND: Rgb = Rgb([0x15, 0x2b, 0x37]);

/// The look of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Brand {
    /// `#rrggbb`.
    pub(crate) color: Option<String>,
    /// An https address, a path of the site, or the picture itself as `data:`.
    pub(crate) logo: Option<String>,
}

impl Brand {
    /// Reads a queue's settings.
    pub(crate) fn of(config: &QueueConfig) -> Brand {
        let text = |name: &str| {
            let text = config.attributes.get(name).and_then(Value::as_str);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        Brand { color: text(COLOR), logo: text(LOGO) }
    }

    /// Writes a colour that passed [`check_color`]; an empty one takes it away.
    pub(crate) fn put_color(attributes: &mut Map<String, Value>, color: &str) {
        put(attributes, COLOR, color);
    }

    /// Writes a logo that passed [`check_logo`]; an empty one takes it away.
    pub(crate) fn put_logo(attributes: &mut Map<String, Value>, logo: &str) {
        put(attributes, LOGO, logo);
    }

    /// The address of the style of a queue at `base`, if it has one of its own.
    pub(super) fn style_url(&self, base: &str) -> Option<String> {
        let color = self.color.as_deref()?.strip_prefix('#')?;
        Some(format!("{base}/brand.css?v={color}"))
    }

    /// The origin of a logo on another site, which the page must allow.
    pub(super) fn foreign(&self) -> Option<&str> {
        let logo = self.logo.as_deref()?;
        let host = logo.strip_prefix("https://")?.split('/').next()?;
        logo.get(..8 + host.len())
    }

    /// The style, as a file.
    pub(crate) fn style(&self) -> Response {
        let css = self.color.as_deref().and_then(Rgb::parse).map(css).unwrap_or_default();
        let mut response = css.into_response();
        for (name, value) in [
            (header::CONTENT_TYPE, "text/css; charset=utf-8"),
            (header::CACHE_CONTROL, "public, max-age=3600"),
        ] {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

fn put(attributes: &mut Map<String, Value>, name: &str, value: &str) {
    match value.is_empty() {
        true => attributes.remove(name),
        false => attributes.insert(name.to_owned(), value.into()),
    };
}

/// A colour as it is kept: `#rrggbb` in lower case; empty is none.
pub(crate) fn check_color(text: &str) -> Result<String, ApiError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(String::new());
    }
    let color = Rgb::parse(text)
        .ok_or_else(|| ApiError::invalid_field(COLOR, "a colour like #0a7d5c or #0a7, or empty"))?;
    Ok(color.to_string())
}

/// A logo as it is kept; empty is none.
pub(crate) fn check_logo(text: &str) -> Result<String, ApiError> {
    let text = text.trim();
    let plain =
        |rest: &str| rest.bytes().all(|b| b.is_ascii_graphic() && !b"\"'<>\\`;,{}|^".contains(&b));
    let host = |rest: &str| {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:".contains(&b))
    };
    let picture = |rest: &str| {
        let kinds = ["png", "jpeg", "gif", "webp", "svg+xml"];
        rest.split_once(";base64,").is_some_and(|(kind, data)| {
            let digits = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
            kinds.contains(&kind) && !data.is_empty() && data.bytes().all(digits)
        })
    };
    let good = text.is_empty()
        || text.len() <= LONGEST_LOGO
            && (text.strip_prefix("https://").is_some_and(|rest| plain(rest) && host(rest))
                || text.starts_with('/') && !text.starts_with("//") && plain(text)
                || text.strip_prefix("data:image/").is_some_and(picture));
    match good {
        true => Ok(text.to_owned()),
        false => Err(ApiError::invalid_field(
            LOGO,
            "an https address, a path of the site like /logo.svg, or data:image/…;base64, of up to \
             12 KiB; empty is none",
        )),
    }
}

/// A colour of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rgb([u8; 3]);

impl Rgb {
    /// Reads `#rrggbb` or `#rgb`.
    fn parse(text: &str) -> Option<Rgb> {
        let digits: Option<Vec<u32>> =
            text.strip_prefix('#')?.chars().map(|digit| digit.to_digit(16)).collect();
        let value = |high: u32, low: u32| u8::try_from(high * 16 + low).ok();
        match digits?[..] {
            [r, g, b] => Some(Rgb([value(r, r)?, value(g, g)?, value(b, b)?])),
            [r1, r0, g1, g0, b1, b0] => Some(Rgb([value(r1, r0)?, value(g1, g0)?, value(b1, b0)?])),
            _ => None,
        }
    }

    /// A share of the way to another colour.
    fn towards(self, other: u8, share: f64) -> Rgb {
        let step = |from: u8| f64::from(from) + (f64::from(other) - f64::from(from)) * share;
        Rgb(self.0.map(|from| step(from).round().clamp(0.0, 255.0) as u8))
    }

    /// Returns the relative luminance (WCAG), from 0 to 1.
    fn luminance(self) -> f64 {
        let [r, g, b] = self.0.map(|part| {
            let part = f64::from(part) / 255.0;
            if part <= 0.040_45 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        });
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn contrast(self, other: Rgb) -> f64 {
        let (a, b) = (self.luminance(), other.luminance());
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// The nearest colour on the way to black (0) or white (255) that can be read on a ground.
    fn readable(self, ground: Rgb, end: u8) -> Rgb {
        (0..=50)
            .map(|step| self.towards(end, f64::from(step) / 50.0))
            .find(|color| color.contrast(ground) >= READABLE)
            .unwrap_or(Rgb([end; 3]))
    }
}

impl std::fmt::Display for Rgb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [r, g, b] = self.0;
        write!(f, "#{r:02x}{g:02x}{b:02x}")
    }
}

fn css(wish: Rgb) -> String {
    let block = |accent: Rgb, hover: Rgb, waves: [u32; 3]| {
        let [r, g, b] = accent.0;
        let [w1, w2, w3] = waves.map(|share| format!("rgb({r} {g} {b} / {share}%)"));
        format!(
            ":root{{--accent:{accent};--accent-2:{hover};--wave-1:{w1};--wave-2:{w2};--wave-3:{w3}}}"
        )
    };
    let light = wish.readable(LIGHT_GROUND, 0);
    let dark = wish.readable(DARK_GROUND, 255);
    format!(
        "{}\n@media (prefers-color-scheme:dark){{{}}}\n",
        block(light, light.towards(0, 0.2), [7, 8, 10]),
        block(dark, dark.towards(255, 0.25), [6, 7, 9])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_colour_can_be_read_in_light_and_dark() {
        let white = Rgb([255; 3]);
        for wish in ["#ffffff", "#000000", "#ffe100", "#0a7", "#777777", "#ff00ff", "#08667d"] {
            let wish = Rgb::parse(wish).unwrap();
            let (light, dark) = (wish.readable(LIGHT_GROUND, 0), wish.readable(DARK_GROUND, 255));
            assert!(light.contrast(LIGHT_GROUND) >= READABLE, "{wish} {light}");
            assert!(light.contrast(white) >= READABLE, "white text on it: {light}");
            assert!(dark.contrast(DARK_GROUND) >= READABLE, "{wish} {dark}");
            let on_dark = Rgb::parse("#03222b").unwrap();
            assert!(dark.contrast(on_dark) >= READABLE, "dark text on it: {dark}");
        }
        // One that can be read already is left as it is.
        let good = Rgb::parse("#005a3c").unwrap();
        assert_eq!(good.readable(LIGHT_GROUND, 0), good);
        assert!((Rgb([0; 3]).contrast(white) - 21.0).abs() < 0.01);
    }

    #[test]
    fn a_colour_is_a_colour() {
        assert_eq!(check_color(" #0A7 ").unwrap(), "#00aa77");
        assert_eq!(check_color("").unwrap(), "");
        for bad in ["red", "#12", "#12345", "#12345g", "#1234567", "#fff;}body{display:none"] {
            assert!(check_color(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_logo_is_a_picture_and_can_do_nothing_else() {
        for good in [
            "",
            "https://cdn.example/logo.svg?v=2",
            "https://cdn.example:8443/a.png",
            "/static/logo.png",
            "data:image/png;base64,iVBORw0KGgo=",
        ] {
            assert_eq!(check_logo(good).unwrap(), good);
        }
        for bad in [
            "http://cdn.example/logo.svg",
            "//cdn.example/logo.svg",
            "javascript:alert(1)",
            "https://",
            "https://user@cdn.example/a",
            "https://a.example;script-src",
            "https://a.example/\"onload=",
            "https://a.example/ b",
            "data:text/html;base64,AAAA",
            "data:image/svg+xml,<svg/>",
            "logo.png",
        ] {
            assert!(check_logo(bad).is_err(), "{bad}");
        }
        assert!(check_logo(&format!("/{}", "a".repeat(LONGEST_LOGO))).is_err());
        let brand = Brand { logo: Some("https://cdn.example:8443/a/b.png".into()), color: None };
        assert_eq!(brand.foreign(), Some("https://cdn.example:8443"));
        let own = Brand { logo: Some("/logo.png".into()), color: None };
        assert_eq!(own.foreign(), None);
    }
}
