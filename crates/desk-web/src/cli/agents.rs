//! `tidegate desk agents`: the people who answer.

use clap::Subcommand;
use serde_json::{Value, json};
use web::cli::client::Client;
use web::cli::{Failure, Outcome, Output, number, segment, text};

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentsSubcommand {
    /// Add an agent and print the invitation with which they set their password
    #[command(before_help = "Examples:
  tidegate desk agents add anna@example.org --name Anna
  tidegate desk agents add ben@example.org --name Ben --role supervisor --capacity 5")]
    Add {
        /// E-mail address
        email: String,
        /// Name, which visitors see
        #[arg(long)]
        name: String,
        /// Role
        #[arg(long, default_value = "agent", value_parser = ["agent", "supervisor"])]
        role: String,
        /// Most conversations at a time
        #[arg(long)]
        capacity: Option<u32>,
        /// A skill (repeatable)
        #[arg(long = "skill")]
        skills: Vec<String>,
    },
    /// List agents with status and load
    #[command(before_help = "Examples:
  tidegate desk agents list")]
    #[command(alias = "ls")]
    List,
    /// Change name, address, role, capacity, skills or teams of an agent
    #[command(before_help = "Examples:
  tidegate desk agents set anna@example.org --capacity 5
  tidegate desk agents set anna@example.org --team Billing --team Sales")]
    Set {
        /// Id or e-mail address
        agent: String,
        /// Name
        #[arg(long)]
        name: Option<String>,
        /// E-mail address
        #[arg(long)]
        email: Option<String>,
        /// A team by name or id (repeatable); replaces those known
        #[arg(long = "team")]
        teams: Vec<String>,
        /// Role
        #[arg(long, value_parser = ["agent", "supervisor"])]
        role: Option<String>,
        /// Most conversations at a time
        #[arg(long)]
        capacity: Option<u32>,
        /// A skill (repeatable); replaces those known
        #[arg(long = "skill")]
        skills: Vec<String>,
    },
    /// Disable an agent: ends sessions, gives conversations back; or enable one again
    #[command(before_help = "Examples:
  tidegate desk agents disable anna@example.org
  tidegate desk agents disable anna@example.org --undo")]
    Disable {
        /// Id or e-mail address
        agent: String,
        /// Enable the agent again
        #[arg(long)]
        undo: bool,
    },
    /// Delete an agent's password and print a new invitation
    #[command(before_help = "Examples:
  tidegate desk agents reset-password anna@example.org")]
    ResetPassword {
        /// Id or e-mail address
        agent: String,
    },
}

pub(crate) fn run(client: &Client, verb: AgentsSubcommand, output: &Output) -> Outcome {
    match verb {
        AgentsSubcommand::Add { email, name, role, capacity, skills } => {
            let body = json!({
                "email": email, "name": name, "role": role, "capacity": capacity, "skills": skills,
            });
            invited(&client.post("/api/v1/agents", &body)?, output)
        }
        AgentsSubcommand::List => list(client, output),
        AgentsSubcommand::Set { agent, name, email, teams, role, capacity, skills } => {
            let mut body = json!({});
            let mut set = |field: &str, value: Value| {
                if !value.is_null() {
                    body[field] = value;
                }
            };
            set("name", json!(name));
            set("email", json!(email));
            if !teams.is_empty() {
                set("team_ids", json!(find_teams(client, &teams)?));
            }
            set("role", json!(role));
            set("capacity", json!(capacity));
            if !skills.is_empty() {
                set("skills", json!(skills));
            }
            let id = find(client, &agent)?;
            let changed = client.patch(&format!("/api/v1/agents/{}", segment(&id)), &body)?;
            output.value(&changed)
        }
        AgentsSubcommand::Disable { agent, undo } => {
            let id = find(client, &agent)?;
            let body = json!({ "disabled": !undo });
            let changed = client.patch(&format!("/api/v1/agents/{}", segment(&id)), &body)?;
            output.value(&changed)
        }
        AgentsSubcommand::ResetPassword { agent } => {
            let id = find(client, &agent)?;
            let path = format!("/api/v1/agents/{}/invitation", segment(&id));
            invited(&client.post(&path, &json!({}))?, output)
        }
    }
}

fn invited(answer: &Value, output: &Output) -> Outcome {
    if output.json {
        return output.value(answer);
    }
    let rows = vec![
        vec!["agent".to_owned(), text(&answer["agent"], "id")],
        vec!["e-mail".to_owned(), text(&answer["agent"], "email")],
        vec!["invitation".to_owned(), text(answer, "invitation")],
    ];
    output.table(&["WHAT", "VALUE"], &rows)?;
    output.note("the invitation is shown this once and holds for 7 days: POST /api/v1/agents/accept sets the password");
    Ok(())
}

/// The id of an agent by id or e-mail address.
pub(super) fn find(client: &Client, wanted: &str) -> Outcome<String> {
    let found = client.get_all("/api/v1/agents")?;
    let is_it = |agent: &&Value| {
        agent["id"] == wanted || agent["email"].as_str() == Some(wanted.to_lowercase().as_str())
    };
    let agent = found.iter().find(is_it);
    agent.map(|agent| text(agent, "id")).ok_or_else(|| {
        Failure::usage(format!("there is no agent {wanted:?}")).next("tidegate desk agents list")
    })
}

/// The ids of teams by id or name.
fn find_teams(client: &Client, wanted: &[String]) -> Outcome<Vec<String>> {
    let found = client.get_all("/api/v1/teams")?;
    let find = |wanted: &String| {
        let is_it = |team: &&Value| team["id"] == *wanted || team["name"] == *wanted;
        found.iter().find(is_it).map(|team| text(team, "id")).ok_or_else(|| {
            let names: Vec<String> = found.iter().map(|team| text(team, "name")).collect();
            Failure::usage(format!("there is no team {wanted:?}"))
                .next(format!("teams: {}", names.join(", ")))
        })
    };
    wanted.iter().map(find).collect()
}

fn list(client: &Client, output: &Output) -> Outcome {
    let agents = client.get_all("/api/v1/agents")?;
    if output.json {
        return output.value(&agents);
    }
    if agents.is_empty() {
        output.note("no agents yet: tidegate desk agents add anna@example.org --name Anna");
        return Ok(());
    }
    let presence = client.get_all("/api/v1/presence")?;
    let rows: Vec<Vec<String>> = agents
        .iter()
        .map(|agent| {
            let one = presence.iter().find(|one| one["agent"]["id"] == agent["id"]);
            let status = match agent["disabled"].as_bool() {
                Some(true) => "disabled".to_owned(),
                _ => one.map_or_else(String::new, |one| text(one, "status")),
            };
            let load = one.map_or_else(String::new, |one| number(one, "load"));
            vec![
                text(agent, "id"),
                text(agent, "email"),
                text(agent, "name"),
                text(agent, "role"),
                status,
                format!("{load}/{}", number(agent, "capacity")),
            ]
        })
        .collect();
    output.table(&["AGENT", "E-MAIL", "NAME", "ROLE", "STATUS", "LOAD"], &rows)
}
