//! `tidegate desk limits`: policies, checks, blocks.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use web::cli::client::Client;
use web::cli::{Exit, Failure, Outcome, Output, Tone, number, segment, text};

use super::import::{self, ImportedDomain};

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum LimitsSubcommand {
    /// List the policies
    #[command(before_help = "Examples:
  tidegate desk limits list
  tidegate desk limits list --json | jq -r '.[].name'")]
    #[command(alias = "ls")]
    List,
    /// Store a policy, or change one; every instance has it within a second
    #[command(before_help = "Examples:
  tidegate desk limits set search --limit 20 --window 1m --algorithm sliding
  tidegate desk limits set api --limit 1000 --window 15m --exempt 10.0.0.0/8
  tidegate desk limits set quota --limit 100000 --algorithm calendar --period month --time-zone Europe/Berlin
  tidegate desk limits set new-rule --limit 5 --window 1s --shadow")]
    Set(Box<SetArgs>),
    /// Remove a stored policy; one of the product's own gets its default back
    #[command(before_help = "Examples:
  tidegate desk limits rm search")]
    Rm {
        /// Name of the policy
        policy: String,
    },
    /// Charge a request to a policy; exit code 6 if it is denied
    #[command(
        before_help = "Examples:
  tidegate desk limits check search --ip 203.0.113.7
  tidegate desk limits check api --user 123 --cost 5
  tidegate desk limits check api --user 123 --cost 0    only looks
  tidegate desk limits check search --ip 203.0.113.7 || echo denied",
        after_help = "Exit code 0: allowed. 6: denied. 3: no such policy. Others as of every command."
    )]
    Check {
        /// Name of the policy
        policy: String,
        #[command(flatten)]
        who: IdentityArgs,
        /// Units the request takes; 0 only looks
        #[arg(long, default_value_t = 1)]
        cost: u64,
    },
    /// Block an identity at a policy for a time; --for 0s lifts the block
    #[command(before_help = "Examples:
  tidegate desk limits block api --ip 203.0.113.7 --for 1h
  tidegate desk limits block api --ip 203.0.113.7 --for 0s")]
    Block {
        /// Name of the policy
        policy: String,
        #[command(flatten)]
        who: IdentityArgs,
        /// Time: 500ms, 10s, 5m, 2h or 7d
        #[arg(long = "for", value_name = "TIME", value_parser = time)]
        time: Duration,
    },
    /// Forget what an identity used of a policy, and lift its block there
    #[command(before_help = "Examples:
  tidegate desk limits reset api --user 123")]
    Reset {
        /// Name of the policy
        policy: String,
        #[command(flatten)]
        who: IdentityArgs,
    },
    /// Store the rules of Envoy's reference rate limit service, from its YAML files
    #[command(
        before_help = "Examples:
  tidegate desk limits import ratelimit.yaml
  tidegate desk limits import config/*.yaml --dry-run
  tidegate desk limits import ratelimit.yaml --skip-unsupported",
        after_help = "Exit code 0: stored. 2: a file has an error, or something that is not supported; nothing was
stored. Each is told with its line."
    )]
    Import {
        /// Files, one or more domains each
        #[arg(required = true, value_name = "FILE")]
        files: Vec<std::path::PathBuf>,
        /// Store the rest when something is not supported
        #[arg(long)]
        skip_unsupported: bool,
        /// Only tell what would be stored
        #[arg(long)]
        dry_run: bool,
    },
    /// Use of each policy, and the identities that hit it most
    #[command(before_help = "Examples:
  tidegate desk limits top
  tidegate desk limits top search --json | jq .top")]
    Top {
        /// Only this policy
        policy: Option<String>,
    },
}

/// A policy.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Name of the policy: a-z, 0-9, _ and -
    policy: String,
    /// Units allowed
    #[arg(long)]
    limit: u64,
    /// Time over which they are: 500ms, 10s, 5m, 2h or 7d
    #[arg(long, value_parser = time)]
    window: Option<Duration>,
    /// Algorithm
    #[arg(long, default_value = "counter", value_parser = ["fixed", "sliding", "counter", "bucket", "calendar", "concurrent"])]
    algorithm: String,
    /// Most units at once of a bucket
    #[arg(long)]
    burst: Option<u32>,
    /// Period of a calendar
    #[arg(long, value_parser = ["second", "minute", "hour", "day", "week", "month", "year"])]
    period: Option<String>,
    /// Time zone of a calendar
    #[arg(long)]
    time_zone: Option<String>,
    /// Decide and count, but never deny
    #[arg(long)]
    shadow: bool,
    /// Network that is not limited (repeatable)
    #[arg(long, value_name = "NETWORK")]
    exempt: Vec<String>,
    /// Network or identity that is always denied (repeatable)
    #[arg(long, value_name = "WHO")]
    blocked: Vec<String>,
    /// Limit of one identity: user:vip=1000 (repeatable)
    #[arg(long = "override", value_name = "WHO=LIMIT")]
    overrides: Vec<String>,
    /// Decision while the store is out of reach
    #[arg(long, default_value = "local", value_parser = ["local", "open", "closed"])]
    when_store_down: String,
    /// Time after which the store counts as out of reach; desk.limit_timeout if left out
    #[arg(long, value_parser = time)]
    timeout: Option<Duration>,
    /// Units drawn in advance and spent in process
    #[arg(long, default_value_t = 0)]
    prepay: u32,
    /// Time for which an identity is blocked after a denial
    #[arg(long, value_parser = time)]
    block_for: Option<Duration>,
}

/// The identity that is charged.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct IdentityArgs {
    /// A network address
    #[arg(long)]
    ip: Option<String>,
    /// A user
    #[arg(long)]
    user: Option<String>,
    /// An API key, or anything else
    #[arg(long)]
    key: Option<String>,
}

impl IdentityArgs {
    fn json(&self) -> Value {
        match (&self.ip, &self.user, &self.key) {
            (Some(ip), ..) => json!({ "ip": ip }),
            (_, Some(user), _) => json!({ "user": user }),
            (.., key) => json!({ "key": key }),
        }
    }

    fn path(&self, policy: &str) -> String {
        let (kind, id) = match (&self.ip, &self.user, &self.key) {
            (Some(ip), ..) => ("ip", ip.as_str()),
            (_, Some(user), _) => ("user", user.as_str()),
            (.., key) => ("key", key.as_deref().unwrap_or_default()),
        };
        format!("/api/v1/ratelimit/{}/{kind}/{}", segment(policy), segment(id))
    }
}

/// A time such as `500ms`, `10s`, `5m`, `2h` or `7d`, for a flag.
fn time(text: &str) -> Result<Duration, String> {
    use web::config::value::Value as _;
    Duration::parse(text, None)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn run(client: &Client, verb: LimitsSubcommand, output: &Output) -> Outcome {
    match verb {
        LimitsSubcommand::List => list(client, output),
        LimitsSubcommand::Set(args) => set(client, &args, output),
        LimitsSubcommand::Rm { policy } => {
            let path = format!("/api/v1/ratelimit/policies/{}", segment(&policy));
            done(output, &client.delete(&path)?, &format!("removed {policy}"))
        }
        LimitsSubcommand::Check { policy, who, cost } => check(client, &policy, &who, cost, output),
        LimitsSubcommand::Block { policy, who, time } if time.is_zero() => {
            let answer = client.delete(&format!("{}/block", who.path(&policy)))?;
            done(output, &answer, "unblocked")
        }
        LimitsSubcommand::Block { policy, who, time } => {
            let body = json!({ "for_ms": millis(time) }).to_string();
            let answer = client.put_text(&format!("{}/block", who.path(&policy)), &body)?;
            let said =
                format!("blocked {} until {}", text(&answer, "identity"), text(&answer, "ends_at"));
            done(output, &answer, &said)
        }
        LimitsSubcommand::Reset { policy, who } => {
            done(output, &client.delete(&who.path(&policy))?, "reset")
        }
        LimitsSubcommand::Import { files, skip_unsupported, dry_run } => {
            import(client, &files, skip_unsupported, dry_run, output)
        }
        LimitsSubcommand::Top { policy } => top(client, policy.as_deref(), output),
    }
}

fn done(output: &Output, answer: &Value, said: &str) -> Outcome {
    if output.json {
        return output.value(answer);
    }
    output.note(said);
    Ok(())
}

fn list(client: &Client, output: &Output) -> Outcome {
    let found = client.get_all("/api/v1/ratelimit/policies")?;
    if output.json {
        return output.value(&found);
    }
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|one| {
            let window = match (one["window_ms"].as_u64(), one["period"].as_str()) {
                (_, Some(period)) => period.to_owned(),
                (Some(ms), None) => web::format::duration(Duration::from_millis(ms)),
                (None, None) => String::new(),
            };
            let state = match (one["shadow"] == true, one["is_stored"] == true) {
                (true, _) => "shadow",
                (false, true) => "stored",
                (false, false) => "default",
            };
            vec![
                text(one, "name"),
                text(one, "algorithm"),
                number(one, "limit"),
                window,
                text(one, "when_store_down"),
                state.to_owned(),
            ]
        })
        .collect();
    output.table(&["POLICY", "ALGORITHM", "LIMIT", "WINDOW", "STORE DOWN", "STATE"], &rows)
}

fn set(client: &Client, args: &SetArgs, output: &Output) -> Outcome {
    let mut overrides = Vec::new();
    for pair in &args.overrides {
        let parsed =
            pair.rsplit_once('=').and_then(|(who, limit)| Some((who, limit.parse().ok()?)));
        let Some((identity, limit)): Option<(&str, u64)> = parsed else {
            return Err(Failure::usage(format!(
                "--override {pair}: write --override user:vip=1000"
            )));
        };
        overrides.push(json!({ "identity": identity, "limit": limit }));
    }
    let body = json!({
        "algorithm": args.algorithm,
        "limit": args.limit,
        "window_ms": args.window.map(millis),
        "burst": args.burst,
        "period": args.period,
        "time_zone": args.time_zone,
        "shadow": args.shadow,
        "exempt": args.exempt,
        "blocked": args.blocked,
        "overrides": overrides,
        "when_store_down": args.when_store_down,
        "timeout_ms": args.timeout.map(millis),
        "prepay": args.prepay,
        "block_ms": args.block_for.map(millis),
    });
    let path = format!("/api/v1/ratelimit/policies/{}", segment(&args.policy));
    let answer = client.put_text(&path, &body.to_string())?;
    done(output, &answer, &format!("stored {}", args.policy))
}

fn check(client: &Client, policy: &str, who: &IdentityArgs, cost: u64, output: &Output) -> Outcome {
    let body = json!({ "identity": who.json(), "policies": [policy], "cost": cost });
    let answer = client.post("/api/v1/ratelimit/check", &body)?;
    let allowed = answer["allowed"] == true;
    if output.json {
        output.value(&answer)?;
    } else {
        let limit = &answer["limits"][0];
        let word = if allowed {
            output.paint(Tone::Good, "allowed")
        } else {
            output.paint(Tone::Bad, "denied")
        };
        output.line(&format!(
            "{word}  {} of {} left, more in {} ms",
            number(limit, "remaining"),
            number(limit, "limit"),
            number(limit, "reset_ms"),
        ))?;
    }
    if allowed {
        return Ok(());
    }
    let wait = number(&answer, "retry_after_ms");
    Err(Failure::new(Exit::Denied, format!("denied by {policy}; allowed again in {wait} ms")))
}

/// Reads all files before any domain is stored.
fn import(
    client: &Client,
    files: &[std::path::PathBuf],
    skip_unsupported: bool,
    dry_run: bool,
    output: &Output,
) -> Outcome {
    let mut domains: Vec<ImportedDomain> = Vec::new();
    let mut refused = 0;
    for file in files {
        let name = file.display();
        let text = std::fs::read_to_string(file)
            .map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))?;
        let found = import::read(&text)
            .map_err(|note| Failure::usage(format!("{name}:{}: {}", note.line, note.message)))?;
        for domain in found {
            for note in &domain.notes {
                output.note(&format!("{name}:{}: {}", note.line, note.message));
            }
            for note in &domain.unsupported {
                output.note(&format!("{name}:{}: {}", note.line, note.message));
            }
            refused += domain.unsupported.len();
            if domains.iter().any(|known| known.domain == domain.domain) {
                let message = format!("{name}: the domain {} is in two files", domain.domain);
                return Err(Failure::usage(message));
            }
            domains.push(domain);
        }
    }
    if refused > 0 && !skip_unsupported {
        let message = match refused {
            1 => "one setting is not supported; nothing was stored".to_owned(),
            more => format!("{more} settings are not supported; nothing was stored"),
        };
        return Err(Failure::usage(message).next("--skip-unsupported stores the rest"));
    }
    let mut stored = Vec::new();
    for domain in &domains {
        if !dry_run {
            let path = format!("/api/v1/ratelimit/domains/{}", segment(&domain.domain));
            client.put_text(&path, &domain.body.to_string())?;
        }
        let rules = domain.rules;
        stored.push(json!({ "domain": domain.domain, "rules": rules, "stored": !dry_run }));
        if !output.json {
            let verb = if dry_run { "would store" } else { "stored" };
            let noun = if rules == 1 { "rule" } else { "rules" };
            output.note(&format!("{verb} {} with {rules} {noun}", domain.domain));
        }
    }
    if output.json { output.value(&stored) } else { Ok(()) }
}

fn top(client: &Client, policy: Option<&str>, output: &Output) -> Outcome {
    let found = client.get_all("/api/v1/ratelimit/stats")?;
    let chosen: Vec<&Value> =
        found.iter().filter(|one| policy.is_none_or(|name| one["policy"] == name)).collect();
    if let (Some(name), true) = (policy, chosen.is_empty()) {
        return Err(Failure::new(Exit::NotFound, format!("{name} has not been used"))
            .next("tidegate desk limits list"));
    }
    if output.json {
        return match (policy, chosen.first()) {
            (Some(_), Some(one)) => output.value(one),
            _ => output.value(&chosen),
        };
    }
    for one in chosen {
        output.line(&format!(
            "{}  allowed {}, near {}, denied {}, shadow {}, degraded {}",
            output.paint(Tone::Strong, &text(one, "policy")),
            number(one, "allowed"),
            number(one, "near"),
            number(one, "denied"),
            number(one, "shadow"),
            number(one, "degraded"),
        ))?;
        for top in one["top"].as_array().into_iter().flatten() {
            output.line(&format!(
                "  {:<40} {:>8} requests, {} denied",
                text(top, "identity"),
                number(top, "hits"),
                number(top, "denied"),
            ))?;
        }
    }
    Ok(())
}
