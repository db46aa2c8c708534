//! Sites to stand behind a gate: one that tells what it was asked, and a little shop for browsers.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use crate::process::text;

/// A request as a site got it.
pub(crate) struct Asked {
    /// Request line and headers.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    /// Method and path without the query.
    fn line(&self) -> (&str, &str) {
        let mut words = self.head.split([' ', '?']);
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    }
}

/// A site on a port of its own.
pub(crate) struct Site {
    pub(crate) port: u16,
}

impl Site {
    /// A site whose every answer is written by `answer`, from the status line on.
    pub(crate) fn start(answer: fn(&Asked) -> String) -> Site {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Ends with the process: nobody waits for it.
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                std::thread::spawn(move || serve(socket, answer));
            }
        });
        Site { port }
    }

    /// Answers with the head of the request it got.
    pub(crate) fn echo() -> Site {
        Site::start(|asked| {
            // The site has its own 401, which is nobody's business but its own.
            let private = asked.head.contains(" /private");
            let status = if private { "401 Unauthorized" } else { "200 OK" };
            let seen = format!("the site saw {}{}", asked.head, text(&asked.body));
            answer(status, "set-cookie: site=1\r\n", &seen)
        })
    }

    /// Pages with a style, a script that asks for something, a form, and an end.
    pub(crate) fn shop() -> Site {
        Site::start(shop)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
}

fn serve(mut socket: TcpStream, answer: fn(&Asked) -> String) {
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        // A request that breaks off is not answered.
        let Some(body) = read_body(&mut reader, &head) else { return };
        if socket.write_all(answer(&Asked { head, body }).as_bytes()).is_err() {
            return;
        }
    }
}

/// The body that a head announces; `None` if it breaks off.
fn read_body(reader: &mut impl BufRead, head: &str) -> Option<Vec<u8>> {
    let find = |wanted: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
    };
    let mut body = Vec::new();
    if find("transfer-encoding").is_none() {
        body.resize(find("content-length").map_or(0, |value| value.parse().unwrap()), 0);
        reader.read_exact(&mut body).ok()?;
        return Some(body);
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let length = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; length + 2];
        reader.read_exact(&mut chunk).ok()?;
        chunk.truncate(length);
        if chunk.is_empty() {
            return Some(body);
        }
        body.extend(chunk);
    }
}

const STYLE: &str = "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:10vh auto 0;\
    padding:0 1.2rem}button{font:inherit;padding:.6rem 1.4rem}h1{color:rgb(0,90,60)}";
const SCRIPT: &str = "fetch('/stock').then((a) => a.json()).then((stock) => {\
    document.querySelector('#stock').textContent = stock.left + ' tickets left'; });";

const LOGO: &str = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 48 48'>\
    <circle cx='24' cy='24' r='22' fill='#ffb000'/><path d='M24 10v28M14 24h20' stroke='#222' \
    stroke-width='5'/></svg>";

fn page(title: &str, rest: &str) -> String {
    let page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport \
         content='width=device-width,initial-scale=1'><title>{title}</title>\
         <link rel=stylesheet href=/shop.css><main><h1>{title}</h1>{rest}</main></html>"
    );
    answer("200 OK", "content-type: text/html; charset=utf-8\r\ncache-control: no-store\r\n", &page)
}

fn shop(asked: &Asked) -> String {
    match asked.line() {
        ("GET", "/tickets") => page(
            "Harbour Lights Festival",
            "<p id=stock></p><form method=post action=/cart><label>Tickets \
             <input name=count value=2></label> <button>Buy</button></form>\
             <p><a href=/bye>Finish</a></p><script src=/shop.js></script>",
        ),
        ("POST", "/cart") => {
            let told = format!("<p>In your cart: {}</p><p><a href=/bye>Finish</a></p>", {
                text(&asked.body).replace(|c: char| !c.is_alphanumeric() && c != '=', "")
            });
            page("Your cart", &told)
        }
        // Done: whoever is next may come in.
        ("GET", "/bye") => {
            let page = page("See you there", "<p>Your tickets are on their way.</p>");
            page.replacen("\r\n", "\r\nwr-command: complete\r\n", 1)
        }
        ("GET", "/shop.css") => answer("200 OK", "content-type: text/css\r\n", STYLE),
        ("GET", "/shop.js") => answer("200 OK", "content-type: text/javascript\r\n", SCRIPT),
        ("GET", "/stock") => {
            answer("200 OK", "content-type: application/json\r\n", "{\"left\":412}")
        }
        ("GET", "/logo.svg") => answer("200 OK", "content-type: image/svg+xml\r\n", LOGO),
        ("GET", "/favicon.ico") => answer("204 No Content", "", ""),
        _ => answer("404 Not Found", "content-type: text/plain\r\n", "there is no such page"),
    }
}
