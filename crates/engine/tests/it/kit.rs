//! An engine with one client, and replies as short text.

use engine::{CommandOutcome, Config, Engine, Now, Reply, SessionId};

pub(crate) struct Kit {
    pub(crate) engine: Engine,
    pub(crate) client: SessionId,
    pub(crate) now: Now,
}

impl Kit {
    pub(crate) fn new() -> Kit {
        let config = Config { log_effects: true, ..Config::default() };
        let mut engine = Engine::new(config);
        let client = engine.connect("127.0.0.1:1");
        Kit { engine, client, now: Now::from_millis(1_700_000_000_000) }
    }

    /// Runs a command written as words; `"` groups, nothing is escaped.
    pub(crate) fn run(&mut self, line: &str) -> Reply {
        let client = self.client;
        match self.run_as(client, line) {
            CommandOutcome::Reply(reply) => reply,
            CommandOutcome::Blocked { .. } => panic!("{line} blocks"),
        }
    }

    pub(crate) fn run_as(&mut self, client: SessionId, line: &str) -> CommandOutcome {
        let words = words(line);
        let argv: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        self.engine.execute(self.now, client, &argv)
    }

    /// Runs a command and shows its reply as text.
    pub(crate) fn text(&mut self, line: &str) -> String {
        show(&self.run(line))
    }

    /// Runs a command and compares its reply, shown as text.
    #[track_caller]
    pub(crate) fn check(&mut self, line: &str, expected: &str) {
        let reply = self.text(line);
        assert_eq!(reply, expected, "{line}");
    }

    /// The effects gathered since the last call, each as its words joined by spaces.
    pub(crate) fn effects(&mut self) -> Vec<String> {
        effects(&self.engine.take_output().effects)
    }
}

/// Effects as text, each as its words joined by spaces.
pub(crate) fn effects(bytes: &[u8]) -> Vec<String> {
    let mut rest = bytes;
    let word = |rest: &mut &[u8]| {
        let (head, tail) = rest.split_at(4);
        *rest = tail;
        u32::from_le_bytes(head.try_into().unwrap()) as usize
    };
    let mut effects = Vec::new();
    while !rest.is_empty() {
        word(&mut rest);
        let count = word(&mut rest);
        let mut words = Vec::new();
        for _ in 0..count {
            let len = word(&mut rest);
            let (head, tail) = rest.split_at(len);
            rest = tail;
            words.push(String::from_utf8_lossy(head).into_owned());
        }
        effects.push(words.join(" "));
    }
    effects
}

fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (n, part) in line.split('"').enumerate() {
        if n % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// A reply as text: `(nil)`, `(error) …`, `[a b]`, `{a: b}`, `<a b>` for sets, numbers and strings
/// as they are.
pub(crate) fn show(reply: &Reply) -> String {
    let list = |items: &[Reply]| items.iter().map(show).collect::<Vec<_>>().join(" ");
    match reply {
        Reply::Ok => "OK".into(),
        Reply::Status(text) => String::from_utf8_lossy(text).into_owned(),
        Reply::Error(error) => format!("(error) {error}"),
        Reply::Int(n) => n.to_string(),
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Nil => "(nil)".into(),
        Reply::NilArray => "(nil array)".into(),
        Reply::Array(items) => format!("[{}]", list(items)),
        Reply::Set(items) => format!("<{}>", list(items)),
        Reply::Push(items) => format!(">{}", list(items)),
        Reply::Several(items) => list(items),
        Reply::Map(pairs) => {
            let pairs: Vec<_> = pairs
                .iter()
                .map(|(key, value)| format!("{}: {}", show(key), show(value)))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Reply::Double(value) => format!("({value})"),
        Reply::Bool(value) => format!("({value})"),
        Reply::Decimal(digits) | Reply::BigNumber(digits) | Reply::Verbatim(_, digits) => {
            String::from_utf8_lossy(digits).into_owned()
        }
    }
}
