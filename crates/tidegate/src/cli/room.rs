//! `tidegate room`: queues from the command line.
//!
//! Every verb is one or two calls of the running server's API, so what a person may do here is what
//! their token may do. `settings.rs` has the flags that describe a queue, `watch.rs` the live view.

mod guard;
mod settings;
mod watch;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use self::settings::Settings;
use super::Global;
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, Tone};

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List queues with how many wait and are inside
    Ls,
    /// Show one queue with all its settings
    #[command(before_help = "Examples:
  tidegate room show spring-sale
  tidegate room show spring-sale --json | jq .version")]
    Show {
        /// Name of the queue
        queue: String,
    },
    /// Make a queue
    #[command(before_help = "Examples:
  tidegate room create spring-sale
  tidegate room create spring-sale --rate 500/m --max-active 1000 --target https://shop.example/
  tidegate room create spring-sale --rate 10/s --burst 30 --session-timeout 10m --policy strict")]
    Create {
        /// Name of the queue: a-z, 0-9 and -, up to 63
        queue: String,
        #[command(flatten)]
        settings: Settings,
    },
    /// Change settings of a queue; the others stay as they are
    #[command(before_help = "Examples:
  tidegate room set spring-sale --rate 200/m
  tidegate room set spring-sale --max-active 500 --hold 10m")]
    Set {
        /// Name of the queue
        queue: String,
        #[command(flatten)]
        settings: Settings,
    },
    /// Stop letting people in; places are kept and clocks stand still
    Pause {
        /// Name of the queue
        queue: String,
    },
    /// Let people in again
    #[command(before_help = "Examples:
  tidegate room resume spring-sale")]
    Resume {
        /// Name of the queue
        queue: String,
    },
    /// Close a queue to newcomers as well; `resume` opens it again
    #[command(before_help = "Examples:
  tidegate room maintenance spring-sale --yes")]
    Maintenance(Destructive),
    /// Let people in by hand: the rate does not count, the limit of people inside does
    Admit {
        /// Name of the queue
        queue: String,
        /// How many, 1 to 10,000
        #[arg(default_value_t = 1)]
        count: u32,
    },
    /// Numbers of a queue, also by hour
    #[command(before_help = "Examples:
  tidegate room stats spring-sale
  tidegate room stats spring-sale --json | jq .total_waiting")]
    Stats {
        /// Name of the queue
        queue: String,
    },
    /// Watch a queue live: its numbers when they change, and what happens in it
    #[command(before_help = "Examples:
  tidegate room watch spring-sale
  tidegate room watch spring-sale --json | jq -c 'select(.kind == \"event\")'
  tidegate room watch spring-sale --lines 20")]
    Watch(watch::Watch),
    /// Sign an invite to a higher level: whoever has it may take places there
    #[command(before_help = "Examples:
  tidegate room invite spring-sale --level 2
  tidegate room invite spring-sale --level 3 --uses 100 --expires 7d --id press")]
    Invite {
        /// Name of the queue
        queue: String,
        /// The level it gives, 1 to 3
        #[arg(long)]
        level: u8,
        /// How many places may be taken with it
        #[arg(long, default_value_t = 1)]
        uses: u32,
        /// How long it is good
        #[arg(long, value_name = "TIME", default_value = "1d", value_parser = settings::seconds)]
        expires: u64,
        /// What tells it from others; made up if left out
        #[arg(long)]
        id: Option<String>,
    },
    /// Tell those who wait something; without a text the message goes away
    #[command(before_help = "Examples:
  tidegate room message spring-sale 'We are back at noon'
  tidegate room message spring-sale --lang de 'Um zwölf geht es weiter'
  tidegate room message spring-sale")]
    Message {
        /// Name of the queue
        queue: String,
        /// What to say
        text: Option<String>,
        /// In which language; messages in others stay
        #[arg(long, value_name = "TAG", default_value = "en")]
        lang: String,
    },
    /// List who waits, in order, or who may come in
    #[command(before_help = "Examples:
  tidegate room places spring-sale
  tidegate room places spring-sale --admitted
  tidegate room places spring-sale --from 1000 --count 50")]
    Places {
        /// Name of the queue
        queue: String,
        /// Those who may come in and have not
        #[arg(long)]
        admitted: bool,
        #[command(flatten)]
        page: Page,
    },
    /// List running sessions, the next to end first
    #[command(before_help = "Examples:
  tidegate room sessions spring-sale")]
    Sessions {
        /// Name of the queue
        queue: String,
        #[command(flatten)]
        page: Page,
    },
    /// Take a place or a session away
    #[command(before_help = "Examples:
  tidegate room revoke --session 0b6f7a52-8e0c-4a55-9c0e-2f7c7a9d8f11
  tidegate room revoke --place 01a1e166-0248-7000-b9d5-7ce922553e6c spring-sale")]
    Revoke {
        /// Name of the queue; needed with --place
        #[arg(required_unless_present = "session")]
        queue: Option<String>,
        /// Id of the place
        #[arg(long, value_name = "ID", requires = "queue", required_unless_present = "session")]
        place: Option<String>,
        /// Id of the session; its pass is void
        #[arg(long, value_name = "ID", conflicts_with = "place")]
        session: Option<String>,
    },
    /// End every place and session of a queue; the queue and its settings stay
    #[command(before_help = "Examples:
  tidegate room reset spring-sale --yes")]
    Reset(Destructive),
    /// End everything in a queue and take it away
    #[command(before_help = "Examples:
  tidegate room rm spring-sale --yes")]
    Rm(Destructive),
    /// Protect a site: stand in front of it, let in what it can take, show others the waiting page
    #[command(before_help = "Examples:
  tidegate room guard --origin http://127.0.0.1:3000 --rate 500/m --max-active 1000
  tidegate room guard --origin http://127.0.0.1:3000 --listen 0.0.0.0:80 --when-down open
  tidegate room guard --origin http://10.0.0.7 --store redis://10.0.0.5 --queue shop")]
    Guard(guard::Flags),
    /// Make new signing keys sign from now on; what the old ones signed stays valid
    #[command(before_help = "Examples:
  tidegate room rotate-keys")]
    RotateKeys,
}

/// A queue, and the word that it is meant.
#[derive(Debug, Args)]
pub(crate) struct Destructive {
    /// Name of the queue
    queue: String,
    /// Really do it
    #[arg(long)]
    yes: bool,
}

impl Destructive {
    /// The body that confirms, if the person did.
    fn confirmed(&self, verb: &str, what: &str) -> Outcome<Value> {
        if self.yes {
            return Ok(json!({ "confirm": self.queue }));
        }
        Err(Failure::usage(format!("this {what}, and nothing was done"))
            .next(format!("tidegate room {verb} {} --yes", self.queue)))
    }
}

/// Which part of a list.
#[derive(Debug, Args)]
pub(crate) struct Page {
    /// Index of the first, from 0
    #[arg(long, default_value_t = 0)]
    from: usize,
    /// How many, 500 at most
    #[arg(long, default_value_t = 100)]
    count: usize,
}

pub(crate) fn run(verb: Verb, global: &Global, output: &Output) -> Outcome {
    // The one verb that is a server, and does not talk to one.
    let verb = match verb {
        Verb::Guard(flags) => return guard::run(&flags, global, output),
        verb => verb,
    };
    let client = Client::new(global)?;
    let one = |queue: &str| format!("/api/v1/admin/queues/{}", segment(queue));
    match verb {
        Verb::Ls => ls(&client, output),
        Verb::Show { queue } => show(&client.get(&one(&queue))?, output),
        Verb::Create { queue, settings } => {
            let mut body = settings.body();
            body.insert("id".to_owned(), queue.clone().into());
            let made = client.post("/api/v1/admin/queues", &body.into()).map_err(|failure| {
                if failure.message.contains("exists already") {
                    failure.next(format!("tidegate room set {queue} …   (changes it)"))
                } else {
                    failure
                }
            })?;
            output.note(&format!("made {queue}"));
            show(&made, output)
        }
        Verb::Set { queue, settings } => {
            let body = settings.body();
            if body.is_empty() {
                return Err(Failure::usage("nothing to set")
                    .next("tidegate room set --help   (lists the settings)"));
            }
            let changed = client.patch(&one(&queue), &body.into()).map_err(known(&queue))?;
            output.note(&format!("changed {queue}"));
            show(&changed, output)
        }
        Verb::Pause { queue } => state(&client, &queue, "pause", &Value::Null, output),
        Verb::Resume { queue } => state(&client, &queue, "resume", &Value::Null, output),
        Verb::Maintenance(what) => {
            let body = what.confirmed("maintenance", "turns newcomers away")?;
            state(&client, &what.queue, "maintenance", &body, output)
        }
        Verb::Admit { queue, count } => {
            let path = format!("{}/admit", one(&queue));
            let answer = client.post(&path, &json!({ "count": count })).map_err(known(&queue))?;
            if output.json {
                return output.value(&answer);
            }
            for id in answer["position_ids"].as_array().into_iter().flatten() {
                output.line(id.as_str().unwrap_or_default())?;
            }
            let admitted = answer["admitted"].as_u64().unwrap_or(0);
            output.note(&match admitted {
                0 => "nobody was let in: nobody waits, or it is as full as it may be".to_owned(),
                n => format!("let in {n}"),
            });
            Ok(())
        }
        Verb::Stats { queue } => {
            let answer = client.get(&format!("{}/stats", one(&queue))).map_err(known(&queue))?;
            stats(&answer, output)
        }
        Verb::Watch(what) => watch::run(&client, &what, output),
        Verb::Invite { queue, level, uses, expires, id } => {
            let body = json!({
                "level": level, "uses": uses, "expires_in_seconds": expires, "id": id,
            });
            let path = format!("{}/invites", one(&queue));
            let answer = client.post(&path, &body).map_err(known(&queue))?;
            if output.json {
                return output.value(&answer);
            }
            let id = answer["id"].as_str().unwrap_or_default();
            output.note(&format!("Invite {id} to level {level}, good for {uses}:"));
            output.line(answer["invite"].as_str().unwrap_or_default())
        }
        Verb::Message { queue, text, lang } => {
            let before = client.get(&one(&queue)).map_err(known(&queue))?;
            let mut texts = before["message"].as_object().cloned().unwrap_or_default();
            match text {
                Some(text) => {
                    texts.insert(lang, text.into());
                }
                None => texts.clear(),
            }
            state(&client, &queue, "message", &json!({ "text": texts }), output)
        }
        Verb::Places { queue, admitted, page } => {
            let which = if admitted { "admitted" } else { "waiting" };
            let path = format!(
                "{}/positions?state={which}&from={}&count={}",
                one(&queue),
                page.from,
                page.count
            );
            let answer = client.get(&path).map_err(known(&queue))?;
            places(&answer["positions"], output)
        }
        Verb::Sessions { queue, page } => {
            let path = format!("{}/sessions?from={}&count={}", one(&queue), page.from, page.count);
            let answer = client.get(&path).map_err(known(&queue))?;
            sessions(&answer["sessions"], output)
        }
        Verb::Revoke { queue, place, session } => {
            let path = match (queue, place, session) {
                (Some(queue), Some(place), None) => {
                    format!("{}/positions/{}", one(&queue), segment(&place))
                }
                (_, _, Some(session)) => format!("/api/v1/admin/sessions/{}", segment(&session)),
                _ => return Err(Failure::usage("name a place with its queue, or a session")),
            };
            let answer = client.delete(&path)?;
            if output.json {
                return output.value(&answer);
            }
            output.note(&format!("it is {} now", answer["status"].as_str().unwrap_or("gone")));
            Ok(())
        }
        Verb::Reset(what) => {
            let body = what.confirmed("reset", "ends every place and session of the queue")?;
            let path = format!("{}/reset", one(&what.queue));
            ended(&client.post(&path, &body).map_err(known(&what.queue))?, "emptied", output)
        }
        Verb::Rm(what) => {
            let body = what.confirmed("rm", "ends everything in the queue and takes it away")?;
            let path = one(&what.queue);
            let answer = client.delete_confirmed(&path, &body).map_err(known(&what.queue))?;
            ended(&answer, "gone", output)
        }
        Verb::Guard(flags) => guard::run(&flags, global, output),
        Verb::RotateKeys => {
            let answer = client.post("/api/v1/admin/keys/rotate", &json!({}))?;
            if output.json {
                return output.value(&answer);
            }
            output.note("new keys sign from now on");
            Ok(())
        }
    }
}

/// What to do about a queue that is not there.
fn known(queue: &str) -> impl FnOnce(Failure) -> Failure {
    let queue = queue.to_owned();
    move |failure| {
        if failure.message.contains("no queue of this name") {
            failure.next(format!("tidegate room ls, or tidegate room create {queue}"))
        } else {
            failure
        }
    }
}

/// A name as one segment of a path, whatever is in it.
pub(super) fn segment(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

fn ls(client: &Client, output: &Output) -> Outcome {
    let answer = client.get("/api/v1/admin/queues")?;
    if output.json {
        return output.value(&answer["queues"]);
    }
    let queues: Vec<&Value> = answer["queues"].as_array().into_iter().flatten().collect();
    if queues.is_empty() {
        output.note("no queues yet: tidegate room create NAME --rate 500/m --max-active 1000");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = queues
        .iter()
        .map(|queue| {
            vec![
                text(queue, "id"),
                text(queue, "status"),
                number(queue, "waiting"),
                number(queue, "admitted"),
                number(queue, "active"),
                limit(&queue["max_active_users"]),
                rate(&queue["admission"]),
                text(queue, "name"),
            ]
        })
        .collect();
    output.table(
        &["QUEUE", "STATUS", "WAITING", "ADMITTED", "INSIDE", "MOST INSIDE", "RATE", "NAME"],
        &rows,
    )
}

/// Changes what state a queue is in, and says so.
fn state(client: &Client, queue: &str, verb: &str, body: &Value, output: &Output) -> Outcome {
    let path = format!("/api/v1/admin/queues/{}/{verb}", segment(queue));
    let body = if body.is_null() { &json!({}) } else { body };
    let answer = client.post(&path, body).map_err(known(queue))?;
    if output.json {
        return output.value(&answer);
    }
    let texts = answer["message"].as_object().filter(|texts| !texts.is_empty());
    let message = texts.map_or_else(String::new, |texts| {
        let languages: Vec<&str> = texts.keys().map(String::as_str).collect();
        format!(", with a message in {}", languages.join(", "))
    });
    output.note(&format!(
        "{queue} is {}: {} wait, {} inside{message}",
        text(&answer, "status"),
        number(&answer, "waiting"),
        number(&answer, "active")
    ));
    Ok(())
}

fn show(queue: &Value, output: &Output) -> Outcome {
    if output.json {
        return output.value(queue);
    }
    let seconds = |name: &str| settings::span(queue[name].as_u64().unwrap_or(0));
    let size = limit(&queue["max_queue_size"]);
    let rows = [
        ("queue", text(queue, "id")),
        ("name", text(queue, "name")),
        ("status", text(queue, "status")),
        ("waiting", format!("{} of {size}", number(queue, "waiting"))),
        (
            "inside",
            format!(
                "{} and {} on the way, of {}",
                number(queue, "active"),
                number(queue, "admitted"),
                limit(&queue["max_active_users"])
            ),
        ),
        ("rate", format!("{}, burst {}", rate(&queue["admission"]), queue["admission"]["burst"])),
        ("target", text(queue, "target_url")),
        ("policy", text(queue, "priority_policy")),
        ("claim window", seconds("claim_window_seconds")),
        ("hold", seconds("hold_seconds")),
        ("session", {
            let renewed = queue["session_renewal"].as_bool().unwrap_or(false);
            let kind = if renewed { "without activity" } else { "fixed" };
            format!(
                "{} {kind}, {} at most",
                seconds("session_timeout_seconds"),
                seconds("session_max_seconds")
            )
        }),
        ("same visitor by", text(queue, "duplicates")),
        ("colour", text(queue, "brand_color")),
        ("logo", text(queue, "brand_logo")),
        ("version", number(queue, "version")),
    ];
    pairs(&rows, output)
}

fn stats(stats: &Value, output: &Output) -> Outcome {
    if output.json {
        return output.value(stats);
    }
    let average = stats["average_wait_seconds"].as_f64();
    let rows = [
        ("status", text(stats, "status")),
        ("waiting", number(stats, "total_waiting")),
        ("admitted, not yet in", number(stats, "total_admitted_now")),
        ("inside", number(stats, "total_active")),
        (
            "admissions a minute",
            format!("{:.1}", stats["admission_rate"].as_f64().unwrap_or(0.0) * 60.0),
        ),
        (
            "average wait",
            average.map_or("-".to_owned(), |wait| settings::span(wait.round() as u64)),
        ),
        ("enqueued in all", number(stats, "total_enqueued")),
        ("admitted in all", number(stats, "total_admitted")),
        ("completed", number(stats, "total_completed")),
        ("expired", number(stats, "total_expired")),
        ("cancelled", number(stats, "total_cancelled")),
        ("no-shows", number(stats, "total_no_shows")),
    ];
    pairs(&rows, output)?;
    let hours: Vec<Vec<String>> = stats["hours"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|hour| {
            vec![
                text(hour, "hour"),
                number(hour, "enqueued"),
                number(hour, "admitted"),
                number(hour, "expired"),
                number(hour, "peak_queue_size"),
                hour["average_wait_seconds"].as_u64().map_or("-".to_owned(), settings::span),
            ]
        })
        .collect();
    if hours.is_empty() {
        return Ok(());
    }
    output.line("")?;
    output.table(&["HOUR (UTC)", "ENQUEUED", "ADMITTED", "EXPIRED", "PEAK", "AVERAGE WAIT"], &hours)
}

fn places(list: &Value, output: &Output) -> Outcome {
    let names = ["POSITION", "PLACE", "LEVEL", "STATUS", "ABOUT"];
    rows(list, output, &names, |place| {
        vec![
            place["position"].as_u64().map_or("-".to_owned(), |n| n.to_string()),
            text(place, "position_id"),
            number(place, "lane"),
            text(place, "status"),
            place["estimated_wait_seconds"].as_u64().map_or("-".to_owned(), settings::span),
        ]
    })
}

fn sessions(list: &Value, output: &Output) -> Outcome {
    let names = ["SESSION", "STATUS", "LASTS", "PAGE VIEWS", "PLACE"];
    rows(list, output, &names, |session| {
        let started = session["started_at_ms"].as_i64().unwrap_or(0);
        let ends = session["expires_at_ms"].as_i64().unwrap_or(0);
        let lasts = u64::try_from((ends - started) / 1000).unwrap_or(0);
        vec![
            text(session, "session_id"),
            text(session, "status"),
            settings::span(lasts),
            number(session, "page_views"),
            text(session, "position_id"),
        ]
    })
}

/// A list as a table, one row for each, or as it is.
fn rows(
    list: &Value,
    output: &Output,
    names: &[&str],
    row: impl Fn(&Value) -> Vec<String>,
) -> Outcome {
    if output.json {
        return output.value(list);
    }
    let rows: Vec<Vec<String>> = list.as_array().into_iter().flatten().map(row).collect();
    output.table(names, &rows)
}

fn ended(answer: &Value, word: &str, output: &Output) -> Outcome {
    if output.json {
        return output.value(answer);
    }
    output.note(&format!(
        "{word}: {} places and {} sessions were ended",
        number(answer, "places"),
        number(answer, "sessions")
    ));
    Ok(())
}

fn pairs(rows: &[(&str, String)], output: &Output) -> Outcome {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 2;
    let mut page = String::new();
    for (name, value) in rows {
        let name = output.paint(Tone::Dim, &format!("{name:width$}"));
        page.push_str(format!("{name}{value}").trim_end());
        page.push('\n');
    }
    output.text(&page)
}

pub(super) fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

pub(super) fn number(value: &Value, name: &str) -> String {
    value[name].as_u64().unwrap_or(0).to_string()
}

/// A limit, where 0 is none.
fn limit(value: &Value) -> String {
    match value.as_u64() {
        Some(0) | None => "any number".to_owned(),
        Some(most) => most.to_string(),
    }
}

/// A rate as it is written on the command line.
fn rate(rate: &Value) -> String {
    let count = rate["count"].as_u64().unwrap_or(0);
    match rate["per_seconds"].as_u64().unwrap_or(1) {
        1 => format!("{count}/s"),
        60 => format!("{count}/m"),
        3_600 => format!("{count}/h"),
        86_400 => format!("{count}/d"),
        other => format!("{count}/{other}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_segment() {
        assert_eq!(segment("spring-sale"), "spring-sale");
        assert_eq!(segment("../tokens?x#"), "%2E%2E%2Ftokens%3Fx%23");
    }

    #[test]
    fn a_shown_rate_can_be_typed_again() {
        for text in ["500/m", "10/s", "7/h", "1/d", "5/10s"] {
            let parsed: crate::config::value::Rate = text.parse().unwrap();
            let view = json!({ "count": parsed.count, "per_seconds": parsed.per_seconds });
            assert_eq!(rate(&view), text);
        }
    }
}
