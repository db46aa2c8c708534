//! QR codes as pictures in a page.

use maud::{Markup, html};
use qrcodegen::{QrCode, QrCodeEcc};

/// Modules of white around a code (ISO/IEC 18004 asks for four).
const QUIET: i32 = 4;

/// Draws a text as a QR code, black on white in light and dark; `None` if the text is too long for one.
pub fn svg(text: &str, label: &str) -> Option<Markup> {
    let code = QrCode::encode_text(text, QrCodeEcc::Medium).ok()?;
    let size = code.size() + 2 * QUIET;
    let mut modules = String::new();
    for y in 0..code.size() {
        let mut x = 0;
        while x < code.size() {
            let start = x;
            while x < code.size() && code.get_module(x, y) {
                x += 1;
            }
            if x > start {
                let (left, top, width) = (start + QUIET, y + QUIET, x - start);
                modules.push_str(&format!("M{left} {top}h{width}v1h-{width}z"));
            }
            x += 1;
        }
    }
    Some(html! {
        svg.qr-code viewBox={ "0 0 " (size) " " (size) } role="img" aria-label=(label) shape-rendering="crispEdges" {
            rect width=(size) height=(size) fill="#fff" {}
            path d=(modules) fill="#000" {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_every_dark_module_once() {
        let text = "http://127.0.0.1:7070/_wr/spring-sale";
        let code = QrCode::encode_text(text, QrCodeEcc::Medium).unwrap();
        let dark = (0..code.size())
            .flat_map(|y| (0..code.size()).map(move |x| (x, y)))
            .filter(|(x, y)| code.get_module(*x, *y))
            .count();
        let drawn = svg(text, "Code").unwrap().0;
        let path = drawn.split(" d=\"").nth(1).unwrap().split('"').next().unwrap();
        let widths = path.split('h').skip(1).filter_map(|rest| rest.split('v').next());
        let sum: usize = widths.filter_map(|width| width.parse::<usize>().ok()).sum();
        assert_eq!(sum, dark);
        assert!(svg(&"x".repeat(4_000), "Code").is_none());
    }
}
