//! Agents, teams and canned responses, as the archive has them, and the roster: a copy of them that
//! this instance keeps at hand.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Value, json};
use sqlx::{Row, any::AnyRow};
use store::{Millis, redis};

use super::{
    AgentNames, Chat, SlaTargets,
    hours::BusinessHours,
    record::{chat_words, json_list, list},
    rfc3339,
    send::check_line,
    visitors::check_email,
};
use crate::{
    AgentId, Error, TeamId,
    archive::{number_of, text_of},
    ids,
    random::random_hex,
};

/// Most agents.
const AGENTS_MOST: usize = 1_000;

/// Times that agents are published again because they changed meanwhile.
const PUBLISH_ATTEMPTS: usize = 10;

/// Time for which an invitation holds.
const INVITE_MS: i64 = 7 * 86_400_000;

chat_words! {
    /// Role of an agent.
    AgentRole, "role" {
        /// Answers conversations.
        Agent = "agent",
        /// Also sees reports and manages agents.
        Supervisor = "supervisor",
    }
}

/// An agent.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are described with the JSON, in docs/desk.md")]
pub struct Agent {
    pub id: AgentId,
    pub email: String,
    pub name: String,
    pub role: AgentRole,
    pub capacity: u32,
    pub skills: Vec<String>,
    pub teams: Vec<TeamId>,
    pub disabled: bool,
    pub has_password: bool,
    pub has_totp: bool,
    pub chosen: String,
    pub chosen_until: Option<Millis>,
    pub created_at: Millis,
}

impl Agent {
    /// Returns its JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id.as_str(),
            "email": self.email,
            "name": self.name,
            "role": self.role.as_str(),
            "capacity": self.capacity,
            "skills": self.skills,
            "team_ids": self.teams.iter().map(TeamId::as_str).collect::<Vec<_>>(),
            "disabled": self.disabled,
            "has_password": self.has_password,
            "has_totp": self.has_totp,
            "created_at": rfc3339(self.created_at),
        })
    }

    pub(crate) fn read(row: &AnyRow) -> Result<Self, Error> {
        let must = |column: &str| Ok::<_, Error>(text_of(row, column)?.unwrap_or_default());
        let number = |column: &str| Ok::<_, Error>(number_of(row, column)?.unwrap_or(0));
        Ok(Self {
            id: AgentId::parse(&must("id")?)?,
            email: must("email")?,
            name: must("name")?,
            role: AgentRole::parse(&must("role")?)?,
            capacity: u32::try_from(number("capacity")?).unwrap_or(0),
            skills: list(&must("skills")?),
            teams: Vec::new(),
            disabled: number("disabled")? != 0,
            has_password: text_of(row, "password")?.is_some(),
            has_totp: text_of(row, "totp")?.is_some(),
            chosen: must("chosen")?,
            chosen_until: number_of(row, "chosen_until_ms")?.map(Millis),
            created_at: Millis(number("created_ms")?),
        })
    }
}

/// A new agent.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the fields are those of an agent")]
pub struct NewAgent {
    pub email: String,
    pub name: String,
    pub role: AgentRole,
    pub capacity: Option<u32>,
    pub skills: Vec<String>,
    pub teams: Vec<TeamId>,
}

/// Changes of an agent; what is left out stays.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the fields are those of an agent")]
pub struct AgentChange {
    pub name: Option<String>,
    pub email: Option<String>,
    pub role: Option<AgentRole>,
    pub capacity: Option<u32>,
    pub skills: Option<Vec<String>>,
    pub teams: Option<Vec<TeamId>>,
    pub disabled: Option<bool>,
}

/// A team.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are described with the JSON, in docs/desk.md")]
pub struct Team {
    pub id: TeamId,
    pub name: String,
    pub hours: BusinessHours,
    pub created_at: Millis,
}

impl Team {
    /// Returns its JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id.as_str(),
            "name": self.name,
            "hours": self.hours.to_json(),
            "created_at": rfc3339(self.created_at),
        })
    }
}

/// A response that agents insert by its short code.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are described with the JSON, in docs/desk.md")]
pub struct CannedResponse {
    pub id: String,
    pub short_code: String,
    pub content: String,
    pub created_at: Millis,
}

impl CannedResponse {
    /// Returns its JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "short_code": self.short_code,
            "content": self.content,
            "created_at": rfc3339(self.created_at),
        })
    }
}

/// Agents and teams at hand.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    pub(crate) agents: BTreeMap<AgentId, Agent>,
    pub(crate) teams: BTreeMap<TeamId, Team>,
    /// Agents with a browser that takes notifications; none while they are off.
    push: BTreeSet<AgentId>,
    pub(crate) sla: SlaTargets,
}

impl Roster {
    /// Returns what assignment must know of agents, by the field of the store.
    fn published(&self) -> Vec<(String, String)> {
        let fields = self.agents.values().flat_map(|agent| {
            let id = &agent.id;
            let teams: Vec<&str> = agent.teams.iter().map(TeamId::as_str).collect();
            [
                (format!("{id}:capacity"), agent.capacity.to_string()),
                (format!("{id}:teams"), teams.join(",")),
                (format!("{id}:skills"), agent.skills.join(",")),
                (format!("{id}:disabled"), u8::from(agent.disabled).to_string()),
            ]
        });
        fields.collect()
    }
}

impl AgentNames for Roster {
    fn name_of(&self, agent: &AgentId) -> Option<String> {
        self.agents.get(agent).map(|agent| agent.name.clone())
    }

    fn has_push(&self, agent: &AgentId) -> bool {
        self.push.contains(agent)
    }
}

impl Roster {
    /// Tells whether anybody has a browser that takes notifications.
    pub(crate) fn takes_push(&self) -> bool {
        !self.push.is_empty()
    }
}

impl Chat {
    /// Reads agents and teams anew.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub async fn load_roster(&self) -> Result<(), Error> {
        // One at a time: what was read before a change must not replace what was read after it.
        let _turn = self.0.roster_turn.lock().await;
        let roster = self.read_roster().await?;
        self.0.roster.store(Arc::new(roster));
        Ok(())
    }

    async fn read_roster(&self) -> Result<Roster, Error> {
        let readers = self.0.archive.readers();
        let mut roster = Roster::default();
        for row in sqlx::query("SELECT * FROM agents ORDER BY id").fetch_all(readers).await? {
            let agent = Agent::read(&row)?;
            roster.agents.insert(agent.id.clone(), agent);
        }
        for row in sqlx::query("SELECT * FROM teams ORDER BY id").fetch_all(readers).await? {
            let team = read_team(&row)?;
            roster.teams.insert(team.id.clone(), team);
        }
        let members = "SELECT team_id, agent_id FROM team_members ORDER BY team_id";
        for row in sqlx::query(members).fetch_all(readers).await? {
            let team = TeamId::parse(&row.try_get::<String, _>(0)?)?;
            let agent = AgentId::parse(&row.try_get::<String, _>(1)?)?;
            if let Some(agent) = roster.agents.get_mut(&agent) {
                agent.teams.push(team);
            }
        }
        if self.options().push {
            let browsers = "SELECT DISTINCT agent_id FROM push_subscriptions";
            for row in sqlx::query(browsers).fetch_all(readers).await? {
                roster.push.insert(AgentId::parse(&row.try_get::<String, _>(0)?)?);
            }
        }
        roster.sla = SlaTargets::load(readers).await?;
        Ok(roster)
    }

    /// Reads agents and teams anew, and puts what assignment must know of them into the store. Whoever puts it there
    /// last looks once more: so a change made meanwhile, here or on another instance, is not undone by what was
    /// read before it.
    pub(crate) async fn publish_roster(&self) -> Result<(), Error> {
        let _turn = self.0.roster_turn.lock().await;
        let mut roster = self.read_roster().await?;
        for _ in 0..PUBLISH_ATTEMPTS {
            self.put_roster(&roster).await?;
            let again = self.read_roster().await?;
            let is_same = again.published() == roster.published();
            roster = again;
            if is_same {
                break;
            }
        }
        self.0.roster.store(Arc::new(roster));
        Ok(())
    }

    async fn put_roster(&self, roster: &Roster) -> Result<(), Error> {
        // A server does not answer an empty pipeline.
        if roster.agents.is_empty() {
            return Ok(());
        }
        let mut pipe = redis::pipe();
        pipe.hset_multiple(&self.0.keys.agents, &roster.published()).ignore();
        for agent in roster.agents.values() {
            // Both are there or none: a status is written together with its end.
            let until = agent.chosen_until.map(|until| until.0.to_string()).unwrap_or_default();
            for (field, value) in [("chosen", &agent.chosen), ("chosen_until_ms", &until)] {
                let field = format!("{}:{field}", agent.id);
                pipe.hset_nx(&self.0.keys.agents, field, value).ignore();
            }
        }
        let () = pipe.query_async(&mut self.0.store.clone()).await?;
        Ok(())
    }

    pub(crate) async fn roster_changed(&self) -> Result<(), Error> {
        self.publish_roster().await?;
        self.announce("roster.updated", None, &json!({}), false).await?;
        self.0.dispatch.notify_one();
        Ok(())
    }

    /// Returns all agents.
    pub fn agents(&self) -> Vec<Agent> {
        self.0.roster.load().agents.values().cloned().collect()
    }

    /// Returns an agent.
    ///
    /// # Errors
    /// There is none of this id.
    pub fn agent(&self, id: &AgentId) -> Result<Agent, Error> {
        let roster = self.0.roster.load();
        roster.agents.get(id).cloned().ok_or(Error::NotFound { what: "agent" })
    }

    /// Returns all teams.
    pub fn teams(&self) -> Vec<Team> {
        self.0.roster.load().teams.values().cloned().collect()
    }

    /// Returns the agents' names.
    pub fn names(&self) -> Arc<impl AgentNames + use<>> {
        self.0.roster.load_full()
    }

    /// Adds an agent and returns the secret of their invitation, which is shown this once.
    ///
    /// # Errors
    /// `EMAIL_TAKEN`; an invalid value.
    pub async fn add_agent(&self, new: NewAgent) -> Result<(Agent, String), Error> {
        let capacity = new.capacity.unwrap_or(self.options().default_capacity);
        check_agent(Some(&new.name), Some(&new.email), Some(capacity), Some(&new.skills))?;
        self.check_teams(&new.teams)?;
        if self.0.roster.load().agents.len() >= AGENTS_MOST {
            return Err(Error::conflict("TOO_MANY_AGENTS", "there are 1,000 agents already"));
        }
        let (now, id, secret) = (self.now(), AgentId::fresh(), random_hex::<24>()?);
        let hash = super::login::hash_secret(&secret);
        let (new, agent_id) = (Arc::new(new), id.clone());
        self.0
            .archive
            .write(move |tx| {
                let (new, id, hash) = (Arc::clone(&new), agent_id.clone(), hash.clone());
                Box::pin(async move {
                    let email = new.email.to_lowercase();
                    let taken = sqlx::query("SELECT 1 FROM agents WHERE email = $1")
                        .bind(email.clone())
                        .fetch_optional(&mut *tx)
                        .await?;
                    if taken.is_some() {
                        return Err(Error::conflict("EMAIL_TAKEN", "an agent has this address already"));
                    }
                    sqlx::query(
                        "INSERT INTO agents (id, email, name, role, capacity, skills, disabled, totp_used, \
                         recovery, invite, invite_until_ms, chosen, created_ms) \
                         VALUES ($1, $2, $3, $4, $5, $6, 0, 0, '[]', $7, $8, 'online', $9)",
                    )
                    .bind(id.as_str().to_owned())
                    .bind(email)
                    .bind(new.name.clone())
                    .bind(new.role.as_str())
                    .bind(i64::from(capacity))
                    .bind(json_list(&new.skills))
                    .bind(hash)
                    .bind(now.0 + INVITE_MS)
                    .bind(now.0)
                    .execute(&mut *tx)
                    .await?;
                    put_teams(tx, &id, &new.teams).await
                })
            })
            .await?;
        self.roster_changed().await?;
        Ok((self.agent(&id)?, secret))
    }

    /// Makes a new invitation, with which an agent sets a new password; sessions end.
    ///
    /// # Errors
    /// There is no such agent.
    pub async fn invite_again(&self, id: &AgentId) -> Result<String, Error> {
        self.agent(id)?;
        let (secret, until, agent_id) = (random_hex::<24>()?, self.now().0 + INVITE_MS, id.clone());
        let hash = super::login::hash_secret(&secret);
        self.0
            .archive
            .write(move |tx| {
                let (id, hash) = (agent_id.clone(), hash.clone());
                Box::pin(async move {
                    sqlx::query(
                        "UPDATE agents SET invite = $1, invite_until_ms = $2, password = NULL WHERE id = $3",
                    )
                    .bind(hash)
                    .bind(until)
                    .bind(id.as_str().to_owned())
                    .execute(&mut *tx)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        self.0.users.end_all_sessions(&super::login::user_of(id)?).await?;
        self.load_roster().await?;
        Ok(secret)
    }

    /// Changes an agent. One who is disabled loses sessions and conversations.
    ///
    /// # Errors
    /// There is no such agent; `EMAIL_TAKEN`; an invalid value.
    pub async fn change_agent(&self, id: &AgentId, change: AgentChange) -> Result<Agent, Error> {
        let before = self.agent(id)?;
        check_agent(
            change.name.as_deref(),
            change.email.as_deref(),
            change.capacity,
            change.skills.as_deref(),
        )?;
        self.check_teams(change.teams.as_deref().unwrap_or_default())?;
        let (change, agent_id) = (Arc::new(change), id.clone());
        let wanted = Arc::clone(&change);
        self.0
            .archive
            .write(move |tx| {
                let (change, id, before) = (Arc::clone(&wanted), agent_id.clone(), before.clone());
                Box::pin(async move {
                    let email = change.email.as_deref().unwrap_or(&before.email).to_lowercase();
                    let taken = sqlx::query("SELECT 1 FROM agents WHERE email = $1 AND id <> $2")
                        .bind(email.clone())
                        .bind(id.as_str().to_owned())
                        .fetch_optional(&mut *tx)
                        .await?;
                    if taken.is_some() {
                        return Err(Error::conflict("EMAIL_TAKEN", "an agent has this address already"));
                    }
                    sqlx::query(
                        "UPDATE agents SET name = $1, email = $2, role = $3, capacity = $4, skills = $5, \
                         disabled = $6 WHERE id = $7",
                    )
                    .bind(change.name.clone().unwrap_or_else(|| before.name.clone()))
                    .bind(email)
                    .bind(change.role.unwrap_or(before.role).as_str())
                    .bind(i64::from(change.capacity.unwrap_or(before.capacity)))
                    .bind(json_list(change.skills.as_deref().unwrap_or(&before.skills)))
                    .bind(i64::from(change.disabled.unwrap_or(before.disabled)))
                    .bind(id.as_str().to_owned())
                    .execute(&mut *tx)
                    .await?;
                    match &change.teams {
                        Some(teams) => put_teams(tx, &id, teams).await,
                        None => Ok(()),
                    }
                })
            })
            .await?;
        self.roster_changed().await?;
        if change.disabled == Some(true) {
            self.0.users.end_all_sessions(&super::login::user_of(id)?).await?;
            self.release_all(id, "disabled").await?;
        }
        self.agent(id)
    }

    fn check_teams(&self, teams: &[TeamId]) -> Result<(), Error> {
        let roster = self.0.roster.load();
        match teams.iter().find(|team| !roster.teams.contains_key(team)) {
            Some(_) => Err(Error::NotFound { what: "team" }),
            None => Ok(()),
        }
    }

    /// Adds a team, or changes one.
    ///
    /// # Errors
    /// `NAME_TAKEN`; an invalid value; there is no such team.
    pub async fn put_team(
        &self,
        id: Option<&TeamId>,
        name: &str,
        hours: BusinessHours,
    ) -> Result<Team, Error> {
        if name.trim().is_empty() {
            return Err(Error::invalid("name", "1 to 100 characters"));
        }
        check_line("name", Some(name), 100)?;
        if let Some(id) = id
            && !self.0.roster.load().teams.contains_key(id)
        {
            return Err(Error::NotFound { what: "team" });
        }
        let team = Team {
            id: id.cloned().unwrap_or_else(TeamId::fresh),
            name: name.to_owned(),
            hours,
            created_at: self.now(),
        };
        let written = team.clone();
        self.0
            .archive
            .write(move |tx| {
                let team = written.clone();
                Box::pin(async move {
                    let taken = sqlx::query("SELECT 1 FROM teams WHERE name = $1 AND id <> $2")
                        .bind(team.name.clone())
                        .bind(team.id.to_string())
                        .fetch_optional(&mut *tx)
                        .await?;
                    if taken.is_some() {
                        return Err(Error::conflict("NAME_TAKEN", "a team has this name already"));
                    }
                    sqlx::query(
                        "INSERT INTO teams (id, name, hours, created_ms) VALUES ($1, $2, $3, $4) \
                         ON CONFLICT (id) DO UPDATE SET name = excluded.name, hours = excluded.hours",
                    )
                    .bind(team.id.to_string())
                    .bind(team.name.clone())
                    .bind(team.hours.to_json().to_string())
                    .bind(team.created_at.0)
                    .execute(&mut *tx)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        self.roster_changed().await?;
        self.announce_availability().await?;
        Ok(self.0.roster.load().teams.get(&team.id).cloned().unwrap_or(team))
    }

    /// Deletes a team. Its conversations are for all agents from then on.
    ///
    /// # Errors
    /// There is no such team.
    pub async fn delete_team(&self, id: &TeamId) -> Result<(), Error> {
        if !self.0.roster.load().teams.contains_key(id) {
            return Err(Error::NotFound { what: "team" });
        }
        let open = self.open_of_team(id).await?;
        for conversation in open {
            self.change_conversation(
                &conversation,
                super::ConversationChange { team: Some(None), ..Default::default() },
                None,
                None,
            )
            .await?;
        }
        let team = id.to_string();
        self.0
            .archive
            .write(move |tx| {
                let team = team.clone();
                Box::pin(async move {
                    for sql in [
                        "DELETE FROM team_members WHERE team_id = $1",
                        "UPDATE conversations SET team_id = NULL WHERE team_id = $1",
                        "DELETE FROM teams WHERE id = $1",
                    ] {
                        sqlx::query(sql).bind(team.clone()).execute(&mut *tx).await?;
                    }
                    Ok(())
                })
            })
            .await?;
        self.roster_changed().await
    }

    /// Returns canned responses, at most 1,000, by short code; those that begin with a text.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub async fn canned(&self, start: &str) -> Result<Vec<CannedResponse>, Error> {
        let rows = sqlx::query(
            "SELECT id, short_code, content, created_ms FROM canned \
             WHERE short_code LIKE $1 ESCAPE '!' ORDER BY short_code LIMIT 1000",
        )
        .bind(start.replace('!', "!!").replace('%', "!%").replace('_', "!_") + "%")
        .fetch_all(self.0.archive.readers())
        .await?;
        rows.iter().map(read_canned).collect()
    }

    /// Adds a canned response, or changes one.
    ///
    /// # Errors
    /// `SHORT_CODE_TAKEN`; an invalid value; there is no such response.
    pub async fn put_canned(
        &self,
        id: Option<&str>,
        short_code: &str,
        content: &str,
    ) -> Result<CannedResponse, Error> {
        check_canned(short_code, content)?;
        let canned = CannedResponse {
            id: id.map_or_else(|| ids::fresh("can"), str::to_owned),
            short_code: short_code.to_owned(),
            content: content.to_owned(),
            created_at: self.now(),
        };
        let (written, is_new) = (canned.clone(), id.is_none());
        self.0
            .archive
            .write(move |tx| {
                let canned = written.clone();
                Box::pin(async move {
                    let known = sqlx::query("SELECT id FROM canned WHERE id = $1")
                        .bind(canned.id.clone())
                        .fetch_optional(&mut *tx)
                        .await?;
                    if known.is_none() && !is_new {
                        return Err(Error::NotFound { what: "canned response" });
                    }
                    let taken = sqlx::query("SELECT 1 FROM canned WHERE short_code = $1 AND id <> $2")
                        .bind(canned.short_code.clone())
                        .bind(canned.id.clone())
                        .fetch_optional(&mut *tx)
                        .await?;
                    if taken.is_some() {
                        return Err(Error::conflict("SHORT_CODE_TAKEN", "another one has this short code"));
                    }
                    sqlx::query(
                        "INSERT INTO canned (id, short_code, content, created_ms) VALUES ($1, $2, $3, $4) \
                         ON CONFLICT (id) DO UPDATE SET short_code = excluded.short_code, \
                         content = excluded.content",
                    )
                    .bind(canned.id.clone())
                    .bind(canned.short_code.clone())
                    .bind(canned.content.clone())
                    .bind(canned.created_at.0)
                    .execute(&mut *tx)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        self.canned_changed().await;
        Ok(canned)
    }

    /// Deletes a canned response.
    ///
    /// # Errors
    /// There is none of this id.
    pub async fn delete_canned(&self, id: &str) -> Result<(), Error> {
        let id = id.to_owned();
        let deleted = self
            .0
            .archive
            .write(move |tx| {
                let id = id.clone();
                Box::pin(async move {
                    let done = sqlx::query("DELETE FROM canned WHERE id = $1")
                        .bind(id)
                        .execute(&mut *tx)
                        .await?;
                    Ok(done.rows_affected())
                })
            })
            .await?;
        if deleted == 0 {
            return Err(Error::NotFound { what: "canned response" });
        }
        self.canned_changed().await;
        Ok(())
    }

    /// Tells consoles to fetch the canned responses. The change is made: one that is not told has it after its
    /// next load.
    async fn canned_changed(&self) {
        if let Err(error) = self.announce("canned.updated", None, &json!({}), false).await {
            tracing::debug!(%error, "consoles are not told of changed canned responses");
        }
    }
}

pub(crate) fn read_team(row: &AnyRow) -> Result<Team, Error> {
    let hours: String = row.try_get("hours")?;
    Ok(Team {
        id: TeamId::parse(&row.try_get::<String, _>("id")?)?,
        name: row.try_get("name")?,
        hours: BusinessHours::parse(&super::record::object(&hours))?,
        created_at: Millis(row.try_get("created_ms")?),
    })
}

pub(crate) fn read_canned(row: &AnyRow) -> Result<CannedResponse, Error> {
    Ok(CannedResponse {
        id: row.try_get("id")?,
        short_code: row.try_get("short_code")?,
        content: row.try_get("content")?,
        created_at: Millis(row.try_get("created_ms")?),
    })
}

pub(crate) async fn put_teams(
    tx: &mut sqlx::AnyConnection,
    agent: &AgentId,
    teams: &[TeamId],
) -> Result<(), Error> {
    sqlx::query("DELETE FROM team_members WHERE agent_id = $1")
        .bind(agent.as_str().to_owned())
        .execute(&mut *tx)
        .await?;
    for team in teams {
        sqlx::query(
            "INSERT INTO team_members (team_id, agent_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        )
        .bind(team.as_str().to_owned())
        .bind(agent.as_str().to_owned())
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}

pub(crate) fn check_agent(
    name: Option<&str>,
    email: Option<&str>,
    capacity: Option<u32>,
    skills: Option<&[String]>,
) -> Result<(), Error> {
    if name.is_some_and(|name| name.trim().is_empty()) {
        return Err(Error::invalid("name", "1 to 100 characters"));
    }
    check_line("name", name, 100)?;
    email.map(check_email).transpose()?;
    if capacity.is_some_and(|capacity| !(1..=100).contains(&capacity)) {
        return Err(Error::invalid("capacity", "1 to 100"));
    }
    check_words("skills", skills.unwrap_or_default())
}

pub(crate) fn check_canned(short_code: &str, content: &str) -> Result<(), Error> {
    let is_code = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    if !(1..=50).contains(&short_code.chars().count()) || !short_code.chars().all(is_code) {
        return Err(Error::invalid("short_code", "1 to 50 letters, digits, - and _"));
    }
    super::send::check_content(content, false)
}

/// Refuses tags and skills that are no short words.
pub(crate) fn check_words(field: &'static str, words: &[String]) -> Result<(), Error> {
    let is_word = |word: &String| {
        let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
        (1..=40).contains(&word.chars().count())
            && word.chars().all(is_plain)
            && word.trim() == word
    };
    if words.len() > 20 || !words.iter().all(is_word) {
        return Err(Error::invalid(
            field,
            "at most 20, each of 1 to 40 letters, digits, -, _, . and spaces",
        ));
    }
    Ok(())
}
