//! `tidegate room`: queues from the command line.
//!
//! Every verb is one or two calls of the running server's API, so what a person may do here is what
//! their token may do. `settings.rs` has the flags that describe a queue, `watch.rs` the live view.

mod guard;
mod settings;
mod watch;

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

use self::settings::QueueArgs;
use crate::site::OWN_PATH;
use crate::units;
use web::cli::top::TopSection;
use web::cli::{
    Action, Client, Context, Failure, Outcome, Output, WatchFlag, number, segment, text,
};

/// Run waiting rooms: create and change queues, admit visitors, watch
#[derive(Debug, Parser)]
#[command(
    name = "room",
    before_help = "Examples:
  tidegate room ls
  tidegate room create spring-sale --rate 500/m --max-active 1000 --target-url https://shop.example/
  tidegate room pause spring-sale
  tidegate room admit spring-sale 50
  tidegate room watch spring-sale"
)]
pub(crate) struct RoomCommand {
    #[command(subcommand)]
    pub(crate) verb: RoomVerb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum RoomVerb {
    /// List queues with their waiting, admitted and active visitors
    #[command(before_help = "Examples:
  tidegate room ls
  tidegate room ls --watch
  tidegate room ls -o tsv | cut -f 1,3")]
    #[command(alias = "list")]
    Ls {
        #[command(flatten)]
        watch: WatchFlag,
    },
    /// Show one queue with all its settings
    #[command(before_help = "Examples:
  tidegate room show spring-sale
  tidegate room show spring-sale --json | jq .version")]
    Show {
        /// Name of the queue
        queue: String,
    },
    /// Create a queue
    #[command(before_help = "Examples:
  tidegate room create spring-sale
  tidegate room create spring-sale --rate 500/m --max-active 1000 --target-url https://shop.example/
  tidegate room create spring-sale --rate 10/s --burst 30 --session-timeout 10m --priority-policy strict")]
    Create {
        /// Name of the queue: a-z, 0-9 and -, up to 63
        queue: String,
        #[command(flatten)]
        settings: QueueArgs,
    },
    /// Change settings of a queue; the others stay as they are
    #[command(before_help = "Examples:
  tidegate room set spring-sale --rate 200/m
  tidegate room set spring-sale --max-active 500 --hold 10m")]
    Set {
        /// Name of the queue
        queue: String,
        #[command(flatten)]
        settings: QueueArgs,
    },
    /// Stop admissions; positions are kept and clocks stand still
    Pause {
        /// Name of the queue
        queue: String,
    },
    /// Resume admissions
    #[command(before_help = "Examples:
  tidegate room resume spring-sale")]
    Resume {
        /// Name of the queue
        queue: String,
    },
    /// Close a queue to new visitors as well; `resume` opens it again
    #[command(before_help = "Examples:
  tidegate room maintenance spring-sale --yes")]
    Maintenance(Destructive),
    /// Admit visitors by hand: the rate does not apply, the limit of active visitors does
    Admit {
        /// Name of the queue
        queue: String,
        /// Number of visitors, 1 to 10,000
        #[arg(default_value_t = 1)]
        count: u32,
    },
    /// Show statistics of a queue, also by hour and day
    #[command(before_help = "Examples:
  tidegate room stats spring-sale
  tidegate room stats spring-sale --by day
  tidegate room stats spring-sale --by hour -o tsv > hours.tsv
  tidegate room stats spring-sale --json | jq .total_waiting")]
    Stats {
        /// Name of the queue
        queue: String,
        /// List one row per hour or day, newest first; up to 31 days
        #[arg(long, value_name = "STEP", value_parser = ["hour", "day"])]
        by: Option<String>,
        #[command(flatten)]
        watch: WatchFlag,
    },
    /// Find a visitor and tell why they wait: by position, session, user id or e-mail address
    #[command(before_help = "Examples:
  tidegate room find spring-sale 01a1e166-0248-7000-b9d5-7ce922553e6c
  tidegate room find spring-sale customer-4711
  tidegate room find spring-sale ann@example.com     (where the user id is the SHA-256 of the address)")]
    Find {
        /// Name of the queue
        queue: String,
        /// Id of a position or a session, user id, or e-mail address
        text: String,
    },
    /// Watch a queue live: its counts when they change, and its events
    #[command(before_help = "Examples:
  tidegate room watch spring-sale
  tidegate room watch spring-sale --json | jq -c 'select(.kind == \"event\")'
  tidegate room watch spring-sale --lines 20")]
    Watch(watch::WatchArgs),
    /// Sign an invite: its bearers enqueue with its priority
    #[command(before_help = "Examples:
  tidegate room invite spring-sale --priority 2
  tidegate room invite spring-sale --priority 3 --uses 100 --expires 7d --id press")]
    Invite {
        /// Name of the queue
        queue: String,
        /// Priority it grants, 1 to 3
        #[arg(long)]
        priority: u8,
        /// Number of visitors who may use it
        #[arg(long, default_value_t = 1)]
        uses: u32,
        /// Time for which it is valid
        #[arg(long, value_name = "TIME", default_value = "1d", value_parser = settings::seconds)]
        expires: u64,
        /// Id of the invite; generated if omitted
        #[arg(long)]
        id: Option<String>,
        /// Id of the invited person on the site; kept with the position and the session
        #[arg(long, value_name = "ID")]
        user: Option<String>,
    },
    /// Show waiting visitors a message; without a text the message is removed
    #[command(before_help = "Examples:
  tidegate room message spring-sale 'We are back at noon'
  tidegate room message spring-sale --lang de 'Um zwölf geht es weiter'
  tidegate room message spring-sale")]
    Message {
        /// Name of the queue
        queue: String,
        /// Text of the message
        text: Option<String>,
        /// Language of the text; messages in other languages are kept
        #[arg(long, value_name = "TAG", default_value = "en")]
        lang: String,
    },
    /// List waiting positions, in order, or admitted ones
    #[command(before_help = "Examples:
  tidegate room positions spring-sale
  tidegate room positions spring-sale --admitted
  tidegate room positions spring-sale --limit 50 --cursor 1000")]
    Positions {
        /// Name of the queue
        queue: String,
        /// List admitted positions whose session has not started
        #[arg(long)]
        admitted: bool,
        #[command(flatten)]
        page: PageArgs,
    },
    /// List active sessions, the next to end first
    #[command(before_help = "Examples:
  tidegate room sessions spring-sale")]
    Sessions {
        /// Name of the queue
        queue: String,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Revoke a position or a session
    #[command(before_help = "Examples:
  tidegate room revoke --session 0b6f7a52-8e0c-4a55-9c0e-2f7c7a9d8f11
  tidegate room revoke --position 01a1e166-0248-7000-b9d5-7ce922553e6c spring-sale")]
    Revoke {
        /// Name of the queue; needed with --position
        #[arg(required_unless_present = "session")]
        queue: Option<String>,
        /// Id of the position
        #[arg(long, value_name = "ID", requires = "queue", required_unless_present = "session")]
        position: Option<String>,
        /// Id of the session; its pass is revoked
        #[arg(long, value_name = "ID", conflicts_with = "position")]
        session: Option<String>,
        /// Reason to keep with it: up to 64 letters, digits and _, such as abuse_detected
        #[arg(long, value_name = "WORD")]
        reason: Option<String>,
    },
    /// End every position and session of a queue; the queue and its settings are kept
    #[command(before_help = "Examples:
  tidegate room reset spring-sale --dry-run
  tidegate room reset spring-sale --yes")]
    Reset(Destructive),
    /// End every position and session of a queue and delete it
    #[command(before_help = "Examples:
  tidegate room rm spring-sale --dry-run
  tidegate room rm spring-sale --yes")]
    Rm(Destructive),
    /// Protect a site: a reverse proxy that admits what the site can take and shows the waiting page
    #[command(before_help = "Examples:
  tidegate room guard --origin http://127.0.0.1:3000 --rate 500/m --max-active 1000
  tidegate room guard --origin http://127.0.0.1:3000 --listen 0.0.0.0:80 --dashboard 127.0.0.1:7071
  tidegate room guard --origin http://10.0.0.7 --store redis://10.0.0.5 --queue shop")]
    Guard(guard::GuardArgs),
    /// Create new signing keys that sign from now on; tokens signed by old ones stay valid
    #[command(before_help = "Examples:
  tidegate room rotate-keys")]
    RotateKeys,
    /// Show the key that signs passes, or replace it
    #[command(before_help = "Examples:
  tidegate room pass-key                     which key signs, and its algorithm
  (umask 077; openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out pass.pem)
  tidegate room pass-key --file pass.pem     an RSA key: passes are RS256
  tidegate room pass-key --ed25519           a fresh Ed25519 key: passes are EdDSA")]
    PassKey {
        /// Private key in PEM: RSA of 2,048 bits and more (RS256) or Ed25519 (EdDSA)
        #[arg(long, value_name = "FILE", conflicts_with = "ed25519")]
        file: Option<PathBuf>,
        /// Create a fresh Ed25519 key
        #[arg(long)]
        ed25519: bool,
    },
}

/// A queue, and the confirmation of a destructive verb.
#[derive(Debug, Args)]
pub(crate) struct Destructive {
    /// Name of the queue
    queue: String,
    /// Confirm the action
    #[arg(long)]
    yes: bool,
    /// Say what would happen, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
}

impl Destructive {
    /// Returns the confirming body if `--yes` was given.
    fn confirmed(&self, verb: &str, what: &str) -> Outcome<Value> {
        if self.yes {
            return Ok(json!({ "confirm": self.queue }));
        }
        Err(Failure::usage(format!("this {what}; nothing was done without --yes"))
            .next(format!("tidegate room {verb} {} --yes", self.queue)))
    }
}

/// Says what a destructive verb would end.
fn preview_end(client: &Client, queue: &str, verb: &str, output: &Output) -> Outcome {
    let path = format!("/api/v1/admin/queues/{}", segment(queue));
    let found = client.get(&path).map_err(with_hint(queue))?;
    let count = |name: &str| found[name].as_u64().unwrap_or(0);
    let (waiting, admitted, active) = (count("waiting"), count("admitted"), count("active"));
    if output.json {
        return output.value(&json!({
            "would": verb, "queue_id": queue, "waiting": waiting, "admitted": admitted, "active": active,
        }));
    }
    let whom = format!("{waiting} waiting, {admitted} admitted and {active} active");
    output.line(&match verb {
        "maintenance" => format!("would close {queue} to new visitors; {whom} are kept"),
        "reset" => format!("would end the positions and sessions of {queue}: {whom}"),
        _ => format!("would delete {queue} and end its positions and sessions: {whom}"),
    })
}

/// Reads the queues for `tidegate top`, the longest first.
pub(crate) fn top(client: &Client) -> Outcome<Vec<TopSection>> {
    let mut queues = client.get_all("/api/v1/admin/queues")?;
    let count = |queue: &Value, name: &str| queue[name].as_u64().unwrap_or(0);
    queues.sort_by_key(|queue| std::cmp::Reverse(count(queue, "waiting")));
    let sum = |name: &str| queues.iter().map(|queue| count(queue, name)).sum::<u64>();
    let summary = format!(
        "{} waiting, {} admitted, {} active",
        sum("waiting"),
        sum("admitted"),
        sum("active")
    );
    let head = ["QUEUE", "STATUS", "WAITING", "ADMITTED", "ACTIVE", "MAX ACTIVE", "RATE"];
    let mut section = TopSection::new("Queues", summary, &head);
    section.rows = queues.iter().map(queue_cells).collect();
    Ok(vec![section])
}

/// Cells of a queue in a table, from its id to its rate.
fn queue_cells(queue: &Value) -> Vec<String> {
    vec![
        text(queue, "id"),
        text(queue, "status"),
        number(queue, "waiting"),
        number(queue, "admitted"),
        number(queue, "active"),
        limit(&queue["max_active"]),
        rate(&queue["admission"]),
    ]
}

/// Page of a list.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Number of items, at most 1,000
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: usize,
    /// Cursor of the page: `next_cursor` of the last one, printed with it
    #[arg(long)]
    cursor: Option<String>,
}

impl PageArgs {
    /// Returns the query parameters.
    fn query(&self) -> String {
        let cursor = self.cursor.as_deref().map(|cursor| format!("&cursor={}", segment(cursor)));
        format!("limit={}{}", self.limit, cursor.unwrap_or_default())
    }
}

pub(crate) fn run(verb: RoomVerb, context: &Context<'_>) -> Outcome<Action> {
    match verb {
        // The one verb that is a server, and does not talk to one.
        RoomVerb::Guard(flags) => guard::run(&flags, context),
        verb => {
            talk(verb, context)?;
            Ok(Action::Done)
        }
    }
}

fn talk(verb: RoomVerb, context: &Context<'_>) -> Outcome {
    let output = context.output;
    let client = Client::new(context)?;
    let one = |queue: &str| format!("/api/v1/admin/queues/{}", segment(queue));
    match verb {
        RoomVerb::Ls { watch } => watch.run(output, || ls(&client, output)),
        RoomVerb::Show { queue } => {
            let found = client.get(&one(&queue)).map_err(with_hint(&queue))?;
            show(&found, &client, output)
        }
        RoomVerb::Create { queue, settings } => {
            let mut body = settings.body();
            body.insert("id".to_owned(), queue.clone().into());
            let made = client.post("/api/v1/admin/queues", &body.into()).map_err(|failure| {
                if failure.code.as_deref() == Some("QUEUE_EXISTS") {
                    failure.next(format!("tidegate room set {queue} …   (changes it)"))
                } else {
                    failure
                }
            })?;
            output.note(&format!("created {queue}"));
            show(&made, &client, output)
        }
        RoomVerb::Set { queue, settings } => {
            let body = settings.body();
            if body.is_empty() {
                return Err(Failure::usage("nothing to set")
                    .next("tidegate room set --help   (lists the settings)"));
            }
            let changed = client.patch(&one(&queue), &body.into()).map_err(with_hint(&queue))?;
            output.note(&format!("changed {queue}"));
            show(&changed, &client, output)
        }
        RoomVerb::Pause { queue } => state(&client, &queue, "pause", &Value::Null, output),
        RoomVerb::Resume { queue } => state(&client, &queue, "resume", &Value::Null, output),
        RoomVerb::Maintenance(what) if what.dry_run => {
            preview_end(&client, &what.queue, "maintenance", output)
        }
        RoomVerb::Reset(what) if what.dry_run => preview_end(&client, &what.queue, "reset", output),
        RoomVerb::Rm(what) if what.dry_run => preview_end(&client, &what.queue, "rm", output),
        RoomVerb::Maintenance(what) => {
            let body = what.confirmed("maintenance", "turns new visitors away")?;
            state(&client, &what.queue, "maintenance", &body, output)
        }
        RoomVerb::Admit { queue, count } => {
            let path = format!("{}/admit", one(&queue));
            let answer =
                client.post(&path, &json!({ "count": count })).map_err(with_hint(&queue))?;
            if output.json {
                return output.value(&answer);
            }
            for id in answer["position_ids"].as_array().into_iter().flatten() {
                output.line(id.as_str().unwrap_or_default())?;
            }
            let admitted = answer["admitted"].as_u64().unwrap_or(0);
            output.note(&match admitted {
                0 => {
                    "nobody was admitted: nobody waits, or the limit of active visitors is reached"
                        .to_owned()
                }
                n => format!("admitted {n}"),
            });
            Ok(())
        }
        RoomVerb::Stats { queue, by, watch } => watch.run(output, || match &by {
            Some(step) => {
                let path = format!("{}/stats/history?step={step}&limit=1000", one(&queue));
                let answer = client.get(&path).map_err(with_hint(&queue))?;
                history(&answer["items"], output)
            }
            None => {
                let path = format!("{}/stats", one(&queue));
                stats(&client.get(&path).map_err(with_hint(&queue))?, output)
            }
        }),
        RoomVerb::Find { queue, text } => {
            let path = format!("{}/find?text={}", one(&queue), segment(&text));
            found(&client.get(&path).map_err(with_hint(&queue))?, output)
        }
        RoomVerb::Watch(what) => watch::run(&client, &what, output),
        RoomVerb::Invite { queue, priority, uses, expires, id, user } => {
            let body = json!({
                "priority": priority, "uses": uses, "expires_in_seconds": expires, "id": id, "user_id": user,
            });
            let path = format!("{}/invites", one(&queue));
            let answer = client.post(&path, &body).map_err(with_hint(&queue))?;
            if output.json {
                return output.value(&answer);
            }
            let id = answer["id"].as_str().unwrap_or_default();
            output.note(&format!("invite {id} with priority {priority}, good for {uses}:"));
            output.line(answer["invite"].as_str().unwrap_or_default())
        }
        RoomVerb::Message { queue, text, lang } => {
            let before = client.get(&one(&queue)).map_err(with_hint(&queue))?;
            let mut texts = before["message"].as_object().cloned().unwrap_or_default();
            match text {
                Some(text) => {
                    texts.insert(lang, text.into());
                }
                None => texts.clear(),
            }
            state(&client, &queue, "message", &json!({ "text": texts }), output)
        }
        RoomVerb::Positions { queue, admitted, page } => {
            let which = if admitted { "admitted" } else { "waiting" };
            let path = format!("{}/positions?state={which}&{}", one(&queue), page.query());
            let answer = client.get(&path).map_err(with_hint(&queue))?;
            note_next(&answer, output);
            positions(&answer["items"], output)
        }
        RoomVerb::Sessions { queue, page } => {
            let path = format!("{}/sessions?{}", one(&queue), page.query());
            let answer = client.get(&path).map_err(with_hint(&queue))?;
            note_next(&answer, output);
            sessions(&answer["items"], output)
        }
        RoomVerb::Revoke { queue, position, session, reason } => {
            let mut path = match (queue, position, session) {
                (Some(queue), Some(position), None) => {
                    format!("{}/positions/{}", one(&queue), segment(&position))
                }
                (_, _, Some(session)) => format!("/api/v1/admin/sessions/{}", segment(&session)),
                _ => return Err(Failure::usage("name a position with its queue, or a session")),
            };
            if let Some(reason) = reason {
                path.push_str(&format!("?reason={}", segment(&reason)));
            }
            let answer = client.delete(&path)?;
            if output.json {
                return output.value(&answer);
            }
            output.note(&format!("it is {} now", answer["status"].as_str().unwrap_or("revoked")));
            Ok(())
        }
        RoomVerb::Reset(what) => {
            let body = what.confirmed("reset", "ends every position and session of the queue")?;
            let path = format!("{}/reset", one(&what.queue));
            ended(&client.post(&path, &body).map_err(with_hint(&what.queue))?, "reset", output)
        }
        RoomVerb::Rm(what) => {
            what.confirmed("rm", "ends everything in the queue and deletes it")?;
            let path = format!("{}?confirm={}", one(&what.queue), segment(&what.queue));
            let answer = client.delete(&path).map_err(with_hint(&what.queue))?;
            ended(&answer, "deleted", output)
        }
        RoomVerb::Guard(_) => Ok(()),
        RoomVerb::RotateKeys => {
            let answer = client.post("/api/v1/admin/keys/rotate", &json!({}))?;
            if output.json {
                return output.value(&answer);
            }
            output.note("new keys sign from now on");
            Ok(())
        }
        RoomVerb::PassKey { file, ed25519 } => pass_key(&client, file.as_deref(), ed25519, output),
    }
}

/// Shows the key that signs passes, or chooses it.
fn pass_key(client: &Client, file: Option<&Path>, ed25519: bool, output: &Output) -> Outcome {
    let path = "/api/v1/admin/keys/pass";
    let answer = match file {
        Some(file) => {
            let pem = std::fs::read_to_string(file).map_err(|error| {
                Failure::usage(format!("cannot read {}: {error}", file.display()))
                    .next("tidegate room pass-key --help   (shows how to make a key)")
            })?;
            client.put_text(path, &json!({ "pem": pem }).to_string())?
        }
        None if ed25519 => client.put_text(path, "{}")?,
        None => client.get(path)?,
    };
    if output.json {
        return output.value(&answer);
    }
    output.line(&format!("{} {}", text(&answer, "algorithm"), text(&answer, "kid")))
}

/// Adds a hint to the error of a queue that does not exist.
fn with_hint(queue: &str) -> impl FnOnce(Failure) -> Failure {
    let queue = queue.to_owned();
    move |failure| {
        if failure.code.as_deref() == Some("QUEUE_NOT_FOUND") {
            failure.next(format!("tidegate room ls, or tidegate room create {queue}"))
        } else {
            failure
        }
    }
}

/// Prints the cursor of the next page, if there is one.
fn note_next(answer: &Value, output: &Output) {
    if let Some(cursor) = answer["next_cursor"].as_str() {
        output.note(&format!("more: --cursor {cursor}"));
    }
}

fn ls(client: &Client, output: &Output) -> Outcome {
    let queues = client.get_all("/api/v1/admin/queues")?;
    if output.json {
        return output.value(&Value::Array(queues));
    }
    if queues.is_empty() {
        output.note("no queues yet: tidegate room create NAME --rate 500/m --max-active 1000");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = queues
        .iter()
        .map(|queue| {
            let mut cells = queue_cells(queue);
            cells.push(text(queue, "name"));
            cells
        })
        .collect();
    output.table(
        &["QUEUE", "STATUS", "WAITING", "ADMITTED", "ACTIVE", "MAX ACTIVE", "RATE", "NAME"],
        &rows,
    )
}

/// Changes the status of a queue and prints it.
fn state(client: &Client, queue: &str, verb: &str, body: &Value, output: &Output) -> Outcome {
    let path = format!("/api/v1/admin/queues/{}/{verb}", segment(queue));
    let body = if body.is_null() { &json!({}) } else { body };
    let answer = client.post(&path, body).map_err(with_hint(queue))?;
    if output.json {
        return output.value(&answer);
    }
    let texts = answer["message"].as_object().filter(|texts| !texts.is_empty());
    let message = texts.map_or_else(String::new, |texts| {
        let languages: Vec<&str> = texts.keys().map(String::as_str).collect();
        format!(", with a message in {}", languages.join(", "))
    });
    output.note(&format!(
        "{queue} is {}: {} waiting, {} active{message}",
        text(&answer, "status"),
        number(&answer, "waiting"),
        number(&answer, "active")
    ));
    Ok(())
}

fn show(queue: &Value, client: &Client, output: &Output) -> Outcome {
    if output.json {
        return output.value(queue);
    }
    let seconds = |name: &str| units::span(queue[name].as_u64().unwrap_or(0));
    let size = limit(&queue["max_queue_size"]);
    let rows = [
        ("queue", text(queue, "id")),
        ("name", text(queue, "name")),
        ("status", text(queue, "status")),
        ("waiting", format!("{} of {size}", number(queue, "waiting"))),
        (
            "active",
            format!(
                "{} and {} admitted, of at most {}",
                number(queue, "active"),
                number(queue, "admitted"),
                limit(&queue["max_active"])
            ),
        ),
        ("rate", format!("{}, burst {}", rate(&queue["admission"]), queue["admission"]["burst"])),
        ("target", text(queue, "target_url")),
        ("waiting page", format!("{}{OWN_PATH}/{}", client.base(), text(queue, "id"))),
        ("policy", text(queue, "priority_policy")),
        ("admission window", seconds("admission_window_seconds")),
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
        ("duplicates", text(queue, "duplicates")),
        ("colour", text(queue, "brand_color")),
        ("logo", text(queue, "brand_logo")),
        ("version", number(queue, "version")),
    ];
    output.pairs(&rows)
}

fn stats(stats: &Value, output: &Output) -> Outcome {
    if output.json {
        return output.value(stats);
    }
    let average = stats["average_wait_ms"].as_u64();
    let rows = [
        ("status", text(stats, "status")),
        ("waiting", number(stats, "total_waiting")),
        ("admitted", number(stats, "total_admitted_now")),
        ("active", number(stats, "total_active")),
        (
            "admissions per minute",
            format!("{:.1}", stats["admission_rate"].as_f64().unwrap_or(0.0) * 60.0),
        ),
        ("average wait", average.map_or("-".to_owned(), |ms| units::span(ms.div_ceil(1000)))),
        ("enqueued in total", number(stats, "total_enqueued")),
        ("admitted in total", number(stats, "total_admitted")),
        ("completed", number(stats, "total_completed")),
        ("expired", number(stats, "total_expired")),
        ("cancelled", number(stats, "total_cancelled")),
        ("no-shows", number(stats, "total_no_shows")),
    ];
    output.pairs(&rows)?;
    if stats["hours"].as_array().is_none_or(Vec::is_empty) {
        return Ok(());
    }
    output.line("")?;
    history(&stats["hours"], output)
}

/// Prints rows of statistics.
fn history(list: &Value, output: &Output) -> Outcome {
    let names = ["START", "ENQUEUED", "ADMITTED", "EXPIRED", "NO-SHOWS", "PEAK", "AVERAGE WAIT"];
    rows(list, output, &names, |row| {
        vec![
            text(row, "started_at"),
            number(row, "enqueued"),
            number(row, "admitted"),
            number(row, "expired"),
            number(row, "no_shows"),
            number(row, "peak_queue_size"),
            row["average_wait_ms"]
                .as_u64()
                .map_or("-".to_owned(), |ms| units::span(ms.div_ceil(1000))),
        ]
    })
}

/// Prints a visitor that was looked up.
fn found(found: &Value, output: &Output) -> Outcome {
    if output.json {
        return output.value(found);
    }
    let (position, session) = (&found["position"], &found["session"]);
    let why = match found["wait_reason"].as_str() {
        Some("paused") => "the queue is paused",
        Some("closed") => "the queue is closed",
        Some("no_rate") => "the rate is 0, which admits nobody",
        Some("no_free_slot") => "all slots are taken; the next is admitted when a session ends",
        Some("address_limit") => "the limit of sessions from the same address is reached",
        Some("rate") => "others are ahead, and the rate admits only so many per time",
        _ => "",
    };
    let mut page = vec![
        ("position", text(position, "position_id")),
        ("status", text(position, "status")),
        ("priority", number(position, "priority")),
    ];
    if let Some(number) = position["position"].as_u64() {
        page.push(("number", number.to_string()));
    }
    if !why.is_empty() {
        page.push(("waits because", why.to_owned()));
    }
    if session.is_object() {
        page.push(("session", text(session, "session_id")));
        page.push(("session status", text(session, "status")));
        page.push(("user", text(session, "user_id")));
    }
    output.pairs(&page)
}

fn positions(list: &Value, output: &Output) -> Outcome {
    let names = ["NUMBER", "POSITION", "PRIORITY", "STATUS", "ESTIMATED WAIT"];
    rows(list, output, &names, |position| {
        vec![
            position["position"].as_u64().map_or("-".to_owned(), |n| n.to_string()),
            text(position, "position_id"),
            number(position, "priority"),
            text(position, "status"),
            position["estimated_wait_seconds"].as_u64().map_or("-".to_owned(), units::span),
        ]
    })
}

fn sessions(list: &Value, output: &Output) -> Outcome {
    let names = ["SESSION", "STATUS", "STARTED", "EXPIRES", "PAGE VIEWS", "POSITION"];
    rows(list, output, &names, |session| {
        vec![
            text(session, "session_id"),
            text(session, "status"),
            text(session, "started_at"),
            text(session, "expires_at"),
            number(session, "page_views"),
            text(session, "position_id"),
        ]
    })
}

/// Prints a list as a table, or as JSON.
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
        "{word}: {} positions and {} sessions were ended",
        number(answer, "positions"),
        number(answer, "sessions")
    ));
    Ok(())
}

/// Formats a limit, where 0 is none.
fn limit(value: &Value) -> String {
    match value.as_u64() {
        Some(0) | None => "no limit".to_owned(),
        Some(most) => most.to_string(),
    }
}

/// Formats a rate as it is written on the command line.
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
    fn a_hint_goes_by_the_code_of_an_error_and_not_by_its_text() {
        let mut refused = Failure::failed("nothing of this name here");
        refused.code = Some("QUEUE_NOT_FOUND".to_owned());
        let hint = with_hint("sale")(refused).next;
        assert_eq!(hint.as_deref(), Some("tidegate room ls, or tidegate room create sale"));
        assert_eq!(with_hint("sale")(Failure::failed("queue not found")).next, None);
    }

    #[test]
    fn a_shown_rate_can_be_typed_again() {
        for text in ["500/m", "10/s", "7/h", "1/d", "5/10s"] {
            let parsed: web::config::value::Rate = text.parse().unwrap();
            let view = json!({ "count": parsed.count, "per_seconds": parsed.per_seconds });
            assert_eq!(rate(&view), text);
        }
    }
}
