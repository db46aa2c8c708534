//! Reads JSON lines into an archive.
//!
//! The lines are read twice: the first time everything is checked and nothing is written. The second time each
//! conversation with its messages is one transaction, and what the archive has already stays as it is. So an
//! import that was interrupted is begun again, and the same lines twice are the same as once. Memory holds one
//! conversation, and eight bytes for every id.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufRead, Read},
    path::Path,
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sqlx::{AnyConnection, AssertSqlSafe};
use store::Millis;

use super::{
    AgentRole, BusinessHours, ChatPriority, ChatVisitor, Conversation, ConversationChannel,
    ConversationStatus, Message, MessageType, SenderRole,
    agents::{check_agent, check_canned, check_words, put_teams},
    files::{ChatFile, clean_name, file_path, hash_of, sniff, write_file},
    lines::{
        AgentLine, CannedLine, ConversationLine, FileLine, HeaderLine, LINES_FORMAT, LINES_VERSION,
        LineTime, MessageLine, TeamLine, VisitorLine,
    },
    record::json_list,
    send::{check_client_id, check_line, preview},
    visitors::{VERIFIED, VisitorChange},
};
use crate::{
    AgentId, ConversationId, Error, TeamId, UserId,
    archive::{Archive, statement::execute_all},
};

/// Longest line: a file of 64 MB in base64, and room for its other fields.
const LINE_MOST: u64 = 96 << 20;

/// Largest file.
const FILE_MOST: usize = 64 << 20;

/// Most characters of a message. Other programs have longer ones than may be sent here.
const CONTENT_MOST: usize = 100_000;

/// Most agents.
const AGENTS_MOST: i64 = 1_000;

/// Bad lines that are told; more are counted.
const BAD_MOST: usize = 100;

/// Kinds of lines.
const KINDS: [&str; 7] = ["agent", "team", "canned", "visitor", "conversation", "message", "file"];

/// Kinds of lines that are for people and are not imported.
const TOLD_ONLY: [&str; 2] = ["session", "user"];

/// A line that cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1.
    pub line: u64,
    /// The fault, and what to do.
    pub message: String,
}

/// Lines of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportCount {
    /// Added, or would be.
    pub added: u64,
    /// In the archive already; they stay as they are.
    pub known: u64,
    /// Left out: bad themselves, or part of something bad, or files whose contents are lost.
    pub skipped: u64,
}

/// The outcome of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Lines read.
    pub lines: u64,
    /// By kind: `agent`, `team`, `canned`, `visitor`, `conversation`, `message`, `file`.
    pub counts: BTreeMap<&'static str, ImportCount>,
    /// The first bad lines.
    pub bad: Vec<BadLine>,
    /// All bad lines.
    pub bad_count: u64,
    /// Something was written, or there was nothing to write; false when bad lines stopped it.
    pub is_applied: bool,
}

/// Opens the lines; called twice.
pub type OpenLines<'a> = dyn Fn() -> std::io::Result<Box<dyn BufRead + Send>> + Send + Sync + 'a;

/// Imports JSON lines. Nothing is changed unless all lines are good, or bad ones are to be skipped.
///
/// # Errors
/// The lines cannot be read, or are no export; the archive cannot be written.
pub async fn import_archive(
    archive: &Archive,
    folder: &Path,
    open: &OpenLines<'_>,
    default_capacity: u32,
    skips_bad: bool,
) -> Result<ImportReport, Error> {
    let mut check = Import::new(archive, folder, default_capacity, None);
    check.run(open).await?;
    if check.report.bad_count > 0 && !skips_bad {
        return Ok(check.report);
    }
    let bad = std::mem::take(&mut check.bad_conversations);
    let mut import = Import::new(archive, folder, default_capacity, Some(bad));
    import.run(open).await?;
    let mut report = import.report;
    report.bad = check.report.bad;
    report.bad_count = check.report.bad_count;
    report.is_applied = true;
    let is_published = ["agent", "team", "conversation"];
    if is_published.iter().any(|kind| report.counts.get(kind).is_some_and(|count| count.added > 0))
    {
        archive.raise_generation().await?;
    }
    Ok(report)
}

/// A conversation whose lines are being read.
struct Unit {
    /// The number of its line.
    line: u64,
    is_known: bool,
    is_bad: bool,
    conversation: ConversationLine,
    /// Lines of messages, bad ones too: one that is bad does not make those after it bad.
    read: i64,
    messages: Vec<Message>,
    client_ids: HashSet<String>,
    files: Vec<(ChatFile, i64, Millis)>,
}

struct Import<'a> {
    archive: &'a Archive,
    folder: &'a Path,
    default_capacity: u32,
    /// Numbers of the lines of conversations that the first reading found bad; none while it checks.
    skipped: Option<HashSet<u64>>,
    /// Agents and teams by the id of their line: the id they have in the archive.
    agents: HashMap<String, String>,
    teams: HashMap<String, String>,
    /// Hashes of ids in the lines so far.
    seen: HashSet<u64>,
    unit: Option<Unit>,
    /// A conversation whose line was bad: what follows belongs to it.
    left_out: Option<String>,
    /// Conversations that others were merged into, with the line that says so.
    merges: Vec<(u64, String)>,
    bad_conversations: HashSet<u64>,
    report: ImportReport,
}

fn mark(kind: &str, id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (kind, id).hash(&mut hasher);
    hasher.finish()
}

fn bad(message: impl Into<String>) -> Refusal {
    Refusal::Bad(message.into())
}

/// The reason why a line was not taken.
enum Refusal {
    /// The line is bad.
    Bad(String),
    /// The archive failed.
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            error @ (Error::Archive { .. } | Error::Store(_)) => Self::Failed(error),
            error => Self::Bad(error.to_string()),
        }
    }
}

impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error.into())
    }
}

fn parse<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, Refusal> {
    serde_json::from_value(Value::Object(fields)).map_err(|error| bad(error.to_string()))
}

impl<'a> Import<'a> {
    fn new(
        archive: &'a Archive,
        folder: &'a Path,
        default_capacity: u32,
        skipped: Option<HashSet<u64>>,
    ) -> Self {
        Self {
            archive,
            folder,
            default_capacity,
            skipped,
            agents: HashMap::new(),
            teams: HashMap::new(),
            seen: HashSet::new(),
            unit: None,
            left_out: None,
            merges: Vec::new(),
            bad_conversations: HashSet::new(),
            report: ImportReport::default(),
        }
    }

    fn writes(&self) -> bool {
        self.skipped.is_some()
    }

    async fn run(&mut self, open: &OpenLines<'_>) -> Result<(), Error> {
        let unreadable = |error: std::io::Error| {
            Error::invalid("file", format!("the lines cannot be read: {error}"))
        };
        let mut lines = open().map_err(unreadable)?;
        let (mut line, mut has_header) = (0_u64, false);
        loop {
            let mut text = Vec::new();
            let read = (&mut lines).take(LINE_MOST + 1).read_until(b'\n', &mut text);
            if read.map_err(unreadable)? == 0 {
                break;
            }
            line += 1;
            if text.len() as u64 > LINE_MOST {
                let message = format!("line {line} is longer than 96 MiB; leave out that file");
                return Err(Error::invalid("file", message));
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            if !has_header {
                check_header(line, &text)?;
                has_header = true;
                continue;
            }
            self.report.lines += 1;
            if let Err(refusal) = self.take(line, &text).await {
                // It may have been a message of the conversation that is being read.
                if let Some(unit) = &mut self.unit {
                    unit.is_bad = true;
                }
                self.refuse(line, refusal)?;
            }
        }
        if !has_header {
            return Err(Error::invalid("file", "it has no lines"));
        }
        self.flush().await?;
        for (line, target) in std::mem::take(&mut self.merges) {
            if !self.is_there("conversation", "conversations", &target).await? {
                self.bad_conversations.insert(line);
                let message = format!("merged_into: there is no conversation {target}");
                self.refuse(line, Refusal::Bad(message))?;
            }
        }
        Ok(())
    }

    fn refuse(&mut self, line: u64, refusal: Refusal) -> Result<(), Error> {
        match refusal {
            Refusal::Failed(error) => Err(error),
            Refusal::Bad(message) => {
                self.report.bad_count += 1;
                if self.report.bad.len() < BAD_MOST {
                    self.report.bad.push(BadLine { line, message });
                }
                Ok(())
            }
        }
    }

    fn count(&mut self, kind: &'static str) -> &mut ImportCount {
        self.report.counts.entry(kind).or_default()
    }

    async fn take(&mut self, line: u64, text: &[u8]) -> Result<(), Refusal> {
        let mut fields: Map<String, Value> = serde_json::from_slice(text)
            .map_err(|error| bad(format!("it is not a JSON object: {error}")))?;
        let kind = match fields.remove("kind") {
            Some(Value::String(kind)) => kind,
            _ => return Err(bad("kind: it must say what it is, such as \"message\"")),
        };
        let own = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        match kind.as_str() {
            "message" => {
                let of = own("conversation_id");
                let done = self.message(of.as_deref(), fields).await;
                if let Ok(unit) = self.unit_of(of.as_deref(), "message") {
                    unit.read += 1;
                }
                self.spoil(of.as_deref(), done, "message")
            }
            "file" if fields.get("conversation_id").is_some_and(|id| !id.is_null()) => {
                let of = own("conversation_id");
                let done = self.file(of.as_deref(), fields).await;
                self.spoil(of.as_deref(), done, "file")
            }
            other if !KINDS.contains(&other) && !TOLD_ONLY.contains(&other) => {
                Err(bad(format!("kind: {other:?} is none of {}", KINDS.join(", "))))
            }
            other => {
                self.flush().await.map_err(Refusal::Failed)?;
                let (kind, done) = match other {
                    "agent" => ("agent", self.agent(parse(fields)?).await),
                    "team" => ("team", self.team(parse(fields)?).await),
                    "canned" => ("canned", self.canned(parse(fields)?).await),
                    "visitor" => ("visitor", self.visitor(parse(fields)?).await),
                    "file" => ("file", self.unsent_file(parse(fields)?).await),
                    "conversation" => {
                        self.left_out = own("id");
                        ("conversation", self.conversation(line, fields).await)
                    }
                    _ => return Ok(()),
                };
                if done.is_err() {
                    self.count(kind).skipped += 1;
                    if kind == "conversation" {
                        self.bad_conversations.insert(line);
                    }
                }
                done
            }
        }
    }

    /// Leaves out a conversation one of whose lines is bad. What follows one that is left out is not told.
    fn spoil(
        &mut self,
        of: Option<&str>,
        done: Result<(), Refusal>,
        kind: &'static str,
    ) -> Result<(), Refusal> {
        if let Err(Refusal::Bad(_)) = &done {
            self.count(kind).skipped += 1;
            if of.is_some() && of == self.left_out.as_deref() {
                return Ok(());
            }
            if let Some(unit) = &mut self.unit {
                unit.is_bad = true;
            }
        }
        done
    }

    /// Tells whether something is in the lines so far or in the archive.
    async fn is_there(&self, kind: &str, table: &str, id: &str) -> Result<bool, Error> {
        Ok(self.seen.contains(&mark(kind, id)) || self.find_id(table, "id", id).await?.is_some())
    }

    /// Returns the id of the row of the archive that has a value.
    async fn find_id(
        &self,
        table: &str,
        column: &str,
        value: &str,
    ) -> Result<Option<String>, Error> {
        let select = format!("SELECT id FROM {table} WHERE {column} = $1");
        let row = sqlx::query(AssertSqlSafe(select))
            .bind(value.to_owned())
            .fetch_optional(self.archive.readers())
            .await?;
        Ok(row.map(|row| sqlx::Row::try_get(&row, 0)).transpose()?)
    }

    /// Notes an id; one that was in an earlier line is bad.
    fn see(&mut self, kind: &str, id: &str) -> Result<(), Refusal> {
        if self.seen.insert(mark(kind, id)) {
            return Ok(());
        }
        Err(bad(format!("id: an earlier line has the {kind} {id} already; delete one of them")))
    }

    async fn agent_of(&self, field: &str, id: &str) -> Result<String, Refusal> {
        if let Some(known) = self.agents.get(id) {
            return Ok(known.clone());
        }
        match self.find_id("agents", "id", id).await? {
            Some(known) => Ok(known),
            None => Err(bad(format!(
                "{field}: there is no agent {id}; put a line of kind agent before this one"
            ))),
        }
    }

    async fn agent(&mut self, line: AgentLine) -> Result<(), Refusal> {
        let id = AgentId::parse(&line.id)?;
        let capacity = line.capacity.unwrap_or(self.default_capacity);
        check_agent(Some(&line.name), Some(&line.email), Some(capacity), Some(&line.skills))?;
        AgentRole::parse(&line.role)?;
        let mut teams = Vec::new();
        for team in &line.team_ids {
            teams.push(TeamId::parse(&self.team_of(team).await?)?);
        }
        self.see("agent", &line.id)?;
        let email = line.email.to_lowercase();
        // Somebody whose address is known is that agent, under the id they have.
        let known = match self.find_id("agents", "id", &line.id).await? {
            Some(known) => Some(known),
            None => self.find_id("agents", "email", &email).await?,
        };
        if let Some(known) = known {
            self.agents.insert(line.id, known);
            self.count("agent").known += 1;
            return Ok(());
        }
        if !self.seen.insert(mark("email", &email)) {
            return Err(bad(format!("email: an earlier line has {email} already")));
        }
        let row =
            sqlx::query("SELECT COUNT(*) FROM agents").fetch_one(self.archive.readers()).await?;
        let there: i64 = sqlx::Row::try_get(&row, 0)?;
        let added = i64::try_from(self.count("agent").added).unwrap_or(i64::MAX);
        let added = if self.writes() { 0 } else { added };
        if there + added >= AGENTS_MOST {
            return Err(bad("there are 1,000 agents already"));
        }
        self.agents.insert(line.id.clone(), line.id.clone());
        self.count("agent").added += 1;
        if !self.writes() {
            return Ok(());
        }
        let (line, teams) = (Arc::new(line), Arc::new(teams));
        self.archive
            .write(move |tx| {
                let (line, teams, id) = (Arc::clone(&line), Arc::clone(&teams), id.clone());
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO agents (id, email, name, role, capacity, skills, disabled, totp_used, \
                         recovery, chosen, created_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, '[]', 'online', $8)",
                    )
                    .bind(line.id.clone())
                    .bind(line.email.to_lowercase())
                    .bind(line.name.clone())
                    .bind(line.role.clone())
                    .bind(i64::from(capacity))
                    .bind(json_list(&line.skills))
                    .bind(i64::from(line.disabled))
                    .bind(line.created_at.0.0)
                    .execute(&mut *tx)
                    .await?;
                    put_teams(tx, &id, &teams).await
                })
            })
            .await?;
        Ok(())
    }

    async fn team_of(&self, id: &str) -> Result<String, Refusal> {
        if let Some(known) = self.teams.get(id) {
            return Ok(known.clone());
        }
        match self.find_id("teams", "id", id).await? {
            Some(known) => Ok(known),
            None => {
                Err(bad(format!("there is no team {id}; put a line of kind team before this one")))
            }
        }
    }

    async fn team(&mut self, line: TeamLine) -> Result<(), Refusal> {
        TeamId::parse(&line.id)?;
        if line.name.trim().is_empty() {
            return Err(bad("name: 1 to 100 characters"));
        }
        check_line("name", Some(&line.name), 100)?;
        let hours = BusinessHours::parse(&Value::Object(line.hours.clone()))?;
        self.see("team", &line.id)?;
        let known = match self.find_id("teams", "id", &line.id).await? {
            Some(known) => Some(known),
            None => self.find_id("teams", "name", &line.name).await?,
        };
        if let Some(known) = known {
            self.teams.insert(line.id, known);
            self.count("team").known += 1;
            return Ok(());
        }
        if !self.seen.insert(mark("team name", &line.name)) {
            return Err(bad(format!("name: an earlier line has the team {} already", line.name)));
        }
        self.teams.insert(line.id.clone(), line.id.clone());
        self.count("team").added += 1;
        if self.writes() {
            let values = [line.id, line.name, hours.to_json().to_string()];
            let sql = "INSERT INTO teams (id, name, hours, created_ms) VALUES ($1, $2, $3, $4)";
            self.insert(sql, values, line.created_at).await?;
        }
        Ok(())
    }

    async fn canned(&mut self, line: CannedLine) -> Result<(), Refusal> {
        check_id("id", &line.id)?;
        check_canned(&line.short_code, &line.content)?;
        self.see("canned", &line.id)?;
        let is_known = self.find_id("canned", "id", &line.id).await?.is_some()
            || self.find_id("canned", "short_code", &line.short_code).await?.is_some();
        if is_known {
            self.count("canned").known += 1;
            return Ok(());
        }
        if !self.seen.insert(mark("short code", &line.short_code)) {
            return Err(bad(format!(
                "short_code: an earlier line has {} already",
                line.short_code
            )));
        }
        self.count("canned").added += 1;
        if self.writes() {
            let values = [line.id, line.short_code, line.content];
            let sql =
                "INSERT INTO canned (id, short_code, content, created_ms) VALUES ($1, $2, $3, $4)";
            self.insert(sql, values, line.created_at).await?;
        }
        Ok(())
    }

    /// Inserts a row of three texts and a time.
    async fn insert(
        &self,
        sql: &'static str,
        values: [String; 3],
        at: LineTime,
    ) -> Result<(), Error> {
        self.archive
            .write(move |tx| {
                let [first, second, third] = values.clone();
                Box::pin(async move {
                    sqlx::query(sql)
                        .bind(first)
                        .bind(second)
                        .bind(third)
                        .bind(at.0.0)
                        .execute(&mut *tx)
                        .await?;
                    Ok(())
                })
            })
            .await
    }

    async fn visitor(&mut self, line: VisitorLine) -> Result<(), Refusal> {
        UserId::parse(&line.id)?;
        let is_verified = line.id.starts_with(VERIFIED);
        if line.verified.is_some_and(|verified| verified != is_verified) {
            return Err(bad(
                "verified: ids of verified visitors begin with v~, and those of others do not; \
                 change the id or leave verified out",
            ));
        }
        let change = VisitorChange {
            name: line.name.clone(),
            email: line.email.clone().filter(|email| !email.is_empty()),
            notes: Some(line.notes.clone()),
            attributes: Some(Value::Object(line.attributes.clone())),
            page_url: line.page_url.clone(),
            locale: line.locale.clone(),
        };
        change.check()?;
        self.see("visitor", &line.id)?;
        if self.find_id("visitors", "id", &line.id).await?.is_some() {
            self.count("visitor").known += 1;
            return Ok(());
        }
        self.count("visitor").added += 1;
        if !self.writes() {
            return Ok(());
        }
        let line = Arc::new(line);
        self.archive
            .write(move |tx| {
                let line = Arc::clone(&line);
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO visitors (id, name, email, verified, notes, attributes, page_url, locale, \
                         created_ms, seen_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                    )
                    .bind(line.id.clone())
                    .bind(line.name.clone())
                    .bind(line.email.clone().filter(|email| !email.is_empty()))
                    .bind(i64::from(is_verified))
                    .bind(line.notes.clone())
                    .bind(Value::Object(line.attributes.clone()).to_string())
                    .bind(line.page_url.clone())
                    .bind(line.locale.clone())
                    .bind(line.created_at.0.0)
                    .bind(line.seen_at.unwrap_or(line.created_at).0.0)
                    .execute(&mut *tx)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        Ok(())
    }

    async fn conversation(
        &mut self,
        number: u64,
        fields: Map<String, Value>,
    ) -> Result<(), Refusal> {
        let mut line: ConversationLine = parse(fields)?;
        ConversationId::parse(&line.id)?;
        ConversationStatus::parse(&line.status)?;
        ChatPriority::parse(&line.priority)?;
        check_line("subject", line.subject.as_deref(), 200)?;
        ConversationChannel::parse(&line.channel)?;
        check_words("tags", &line.tags)?;
        check_words("skills", &line.skills)?;
        if line.rating.is_some_and(|rating| !(1..=5).contains(&rating)) {
            return Err(bad("rating: 1 to 5"));
        }
        if line.rating_comment.as_ref().is_some_and(|text| text.chars().count() > 1_000) {
            return Err(bad("rating_comment: at most 1,000 characters"));
        }
        if let Some(sla) = &line.sla
            && !["none", "running", "at_risk", "breached"].contains(&sla.state.as_str())
        {
            return Err(bad("sla.state: one of none running at_risk breached"));
        }
        if !self.is_there("visitor", "visitors", &line.visitor_id).await? {
            return Err(bad(format!(
                "visitor_id: there is no visitor {}; put a line of kind visitor before this one",
                line.visitor_id
            )));
        }
        if let Some(team) = &line.team_id {
            line.team_id = Some(self.team_of(team).await?);
        }
        for (field, agent) in
            [("assignee", &mut line.assignee), ("last_agent", &mut line.last_agent)]
        {
            if let Some(id) = agent.take() {
                *agent = Some(self.agent_of(field, &id).await?);
            }
        }
        for agent in line.missed.iter_mut().chain(&mut line.mentions) {
            *agent = self.agent_of("mentions", agent).await?;
        }
        for reply in &mut line.replies {
            reply.agent_id = self.agent_of("replies", &reply.agent_id).await?;
        }
        for resolution in &mut line.resolutions {
            if let Some(id) = resolution.agent_id.take() {
                resolution.agent_id = Some(self.agent_of("resolutions", &id).await?);
            }
        }
        if let Some(target) = &line.merged_into {
            ConversationId::parse(target)?;
            self.merges.push((number, target.clone()));
        }
        self.see("conversation", &line.id)?;
        let is_known = self.find_id("conversations", "id", &line.id).await?.is_some();
        let is_bad = self.skipped.as_ref().is_some_and(|skipped| skipped.contains(&number));
        if !is_bad {
            self.left_out = None;
        }
        self.unit = Some(Unit {
            line: number,
            is_known,
            is_bad,
            conversation: line,
            read: 0,
            messages: Vec::new(),
            client_ids: HashSet::new(),
            files: Vec::new(),
        });
        Ok(())
    }

    /// The conversation that a line belongs to.
    fn unit_of(&mut self, of: Option<&str>, kind: &str) -> Result<&mut Unit, Refusal> {
        let what =
            || bad(format!("conversation_id: a {kind} follows the line of its conversation"));
        match &mut self.unit {
            Some(unit) if Some(unit.conversation.id.as_str()) == of => Ok(unit),
            _ => Err(what()),
        }
    }

    async fn message(
        &mut self,
        of: Option<&str>,
        fields: Map<String, Value>,
    ) -> Result<(), Refusal> {
        let line: MessageLine = parse(fields)?;
        let role = SenderRole::parse(&line.sender_role)?;
        let kind = MessageType::parse(&line.message_type)?;
        if line.content.chars().count() > CONTENT_MOST || line.content.contains('\0') {
            return Err(bad("content: at most 100,000 characters, none of them NUL"));
        }
        if kind == MessageType::Note && role == SenderRole::User {
            return Err(bad("type: a visitor writes no notes"));
        }
        check_client_id(line.client_id.as_deref())?;
        check_line("sender.name", line.sender.name.as_deref(), 100)?;
        let sender = match (&line.sender.id, role) {
            (Some(id), SenderRole::Admin) => {
                Some(self.agents.get(id).cloned().unwrap_or_else(|| id.clone()))
            }
            (id, _) => id.clone(),
        };
        let unit = self.unit_of(of, "message")?;
        let next = unit.read + 1;
        if line.seq.is_some_and(|seq| seq != next) {
            return Err(bad(format!("seq: the next message of this conversation is {next}")));
        }
        if let Some(client_id) = &line.client_id
            && !unit.client_ids.insert(client_id.clone())
        {
            return Err(bad("client_id: an earlier message of this conversation has it"));
        }
        let (conversation, is_known) =
            (ConversationId::parse(&unit.conversation.id)?, unit.is_known || unit.is_bad);
        let visitor = unit.conversation.visitor_id.clone();
        let id = match line.id {
            Some(id) => id,
            None => {
                let hash = hash_of(format!("{conversation}/{next}").as_bytes());
                format!("msg_{}", hash.get(..32).unwrap_or_default())
            }
        };
        check_id("id", &id)?;
        self.see("message", &id)?;
        if !is_known && self.find_id("messages", "id", &id).await?.is_some() {
            return Err(bad(format!(
                "id: the archive has the message {id} in another conversation"
            )));
        }
        let is_user = role == SenderRole::User;
        let message = Message {
            id,
            conversation,
            seq: next,
            client_id: line.client_id,
            sender_role: role,
            sender_id: sender.or_else(|| is_user.then_some(visitor)),
            sender_name: line.sender.name,
            kind,
            content: if line.deleted { String::new() } else { line.content },
            attachments: Vec::new(),
            created_at: line.created_at.0,
            edited_at: line.edited_at.map(|at| at.0),
            deleted: line.deleted,
        };
        self.unit_of(of, "message")?.messages.push(message);
        Ok(())
    }

    async fn file(&mut self, of: Option<&str>, fields: Map<String, Value>) -> Result<(), Refusal> {
        let line: FileLine = parse(fields)?;
        let unit = self.unit_of(of, "file")?;
        let is_known = unit.is_known || unit.is_bad;
        let last = unit.read;
        if last == 0 || line.seq.is_some_and(|seq| seq != last) {
            return Err(bad("seq: a file follows the line of the message it was sent with"));
        }
        let (seq, at) = (last, line.created_at.0);
        let Some((mut file, bytes)) = self.contents(line).await? else { return Ok(()) };
        if !is_known && self.find_id("files", "id", &file.id).await?.is_some() {
            return Err(bad(format!("id: the archive has the file {} already", file.id)));
        }
        if self.writes() && !is_known {
            write_file(file_path(self.folder, &file.hash), bytes).await?;
        }
        let unit = self.unit_of(of, "file")?;
        file.conversation = Some(ConversationId::parse(&unit.conversation.id)?);
        if let Some(message) = unit.messages.last_mut() {
            message.attachments.push(file.to_json());
        }
        unit.files.push((file, seq, at));
        Ok(())
    }

    /// Decodes a file; none when its contents are lost.
    async fn contents(&mut self, line: FileLine) -> Result<Option<(ChatFile, Vec<u8>)>, Refusal> {
        check_id("id", &line.id)?;
        check_line("owner", Some(&line.owner), 128)?;
        let name = clean_name(&line.name)?;
        self.see("file", &line.id)?;
        let Some(data) = line.data else {
            self.count("file").skipped += 1;
            return Ok(None);
        };
        let bytes = STANDARD
            .decode(data)
            .map_err(|error| bad(format!("data: it is not base64: {error}")))?;
        if bytes.is_empty() || bytes.len() > FILE_MOST {
            return Err(bad("data: 1 byte to 64 MiB"));
        }
        let mime = sniff(&bytes)?;
        let owner = self.agents.get(&line.owner).cloned().unwrap_or(line.owner);
        let file = ChatFile {
            id: line.id,
            name,
            mime: mime.to_owned(),
            size: i64::try_from(bytes.len()).unwrap_or(i64::MAX),
            owner,
            conversation: None,
            hash: hash_of(&bytes),
        };
        Ok(Some((file, bytes)))
    }

    async fn unsent_file(&mut self, line: FileLine) -> Result<(), Refusal> {
        let at = line.created_at.0;
        let Some((file, bytes)) = self.contents(line).await? else { return Ok(()) };
        if self.find_id("files", "id", &file.id).await?.is_some() {
            self.count("file").known += 1;
            return Ok(());
        }
        self.count("file").added += 1;
        if self.writes() {
            write_file(file_path(self.folder, &file.hash), bytes).await?;
            self.archive
                .write(move |tx| {
                    let file = file.clone();
                    Box::pin(async move { insert_file(tx, &file, None, at).await })
                })
                .await?;
        }
        Ok(())
    }

    /// Writes the conversation whose lines were read.
    async fn flush(&mut self) -> Result<(), Error> {
        let Some(unit) = self.unit.take() else { return Ok(()) };
        let (messages, files) = (unit.messages.len() as u64, unit.files.len() as u64);
        let built = if unit.is_bad { None } else { Some(build(&unit)) };
        let conversation = match built {
            Some(Ok(conversation)) => conversation,
            other => {
                self.bad_conversations.insert(unit.line);
                self.seen.remove(&mark("conversation", &unit.conversation.id));
                self.left_out = Some(unit.conversation.id.clone());
                self.count("conversation").skipped += 1;
                self.count("message").skipped += messages;
                self.count("file").skipped += files;
                return match other {
                    Some(Err(error)) => self.refuse(unit.line, error.into()),
                    _ => Ok(()),
                };
            }
        };
        let is_new = !unit.is_known;
        for (kind, count) in [("conversation", 1), ("message", messages), ("file", files)] {
            let counted = self.count(kind);
            if is_new { counted.added += count } else { counted.known += count }
        }
        if !self.writes() || !is_new {
            return Ok(());
        }
        let unit = Arc::new((conversation, unit));
        self.archive
            .write(move |tx| {
                let unit = Arc::clone(&unit);
                Box::pin(async move { insert_unit(tx, &unit.0, &unit.1).await })
            })
            .await
    }
}

fn check_header(line: u64, text: &[u8]) -> Result<(), Error> {
    let wanted = format!(
        "line {line}: it begins with {{\"kind\":\"header\",\"format\":\"{LINES_FORMAT}\",\"version\":{LINES_VERSION}}}"
    );
    let fields = serde_json::from_slice::<Map<String, Value>>(text).ok();
    let header = fields.and_then(|mut fields| {
        let is_header = fields.remove("kind").is_some_and(|kind| kind == "header");
        is_header.then(|| serde_json::from_value::<HeaderLine>(Value::Object(fields)).ok())?
    });
    match header {
        Some(header) if header.format != LINES_FORMAT => Err(Error::invalid("file", wanted)),
        Some(header) if header.version != LINES_VERSION => Err(Error::invalid(
            "file",
            format!(
                "line {line}: it has version {} of the format, and this program knows {LINES_VERSION}; \
                 import it with the program that knows it",
                header.version
            ),
        )),
        Some(_) => Ok(()),
        None => Err(Error::invalid("file", wanted)),
    }
}

fn check_id(field: &'static str, id: &str) -> Result<(), Error> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if (1..=64).contains(&id.len()) && id.chars().all(is_plain) {
        return Ok(());
    }
    Err(Error::invalid(field, "1 to 64 characters of a-z, A-Z, 0-9, _ and -"))
}

/// Makes a conversation of its line and its messages.
fn build(unit: &Unit) -> Result<Conversation, Error> {
    let (line, messages) = (&unit.conversation, &unit.messages);
    let status = ConversationStatus::parse(&line.status)?;
    let is_resolved = status == ConversationStatus::Resolved;
    let last_seq = i64::try_from(messages.len()).unwrap_or(i64::MAX);
    let last_of = |role: SenderRole| {
        messages
            .iter()
            .rev()
            .find(|one| one.sender_role == role && !one.is_note())
            .map(|one| one.seq)
    };
    let read = |field: &'static str, given: Option<i64>, role: SenderRole| match given {
        Some(seq) if (0..=last_seq).contains(&seq) => Ok(seq),
        Some(_) => Err(Error::invalid(field, format!("the last message is {last_seq}"))),
        None if is_resolved => Ok(last_seq),
        None => Ok(last_of(role).unwrap_or(0)),
    };
    let agent_read_seq = read("agent_read_seq", line.agent_read_seq, SenderRole::Admin)?;
    let visitor_read_seq = read("visitor_read_seq", line.visitor_read_seq, SenderRole::User)?;
    let unread = |after: i64, is_counted: &dyn Fn(&Message) -> bool| {
        messages.iter().filter(|one| one.seq > after && is_counted(one)).count() as i64
    };
    let replied = last_of(SenderRole::Admin).unwrap_or(0);
    let waiting = match line.waiting_since {
        Some(given) => given.map(|at| at.0),
        None if status == ConversationStatus::Open && !line.bot => messages
            .iter()
            .find(|one| one.seq > replied && one.sender_role == SenderRole::User)
            .map(|one| one.created_at),
        None => None,
    };
    let queued = match line.queued_since {
        Some(given) => given.map(|at| at.0),
        None if status == ConversationStatus::Open => Some(waiting.unwrap_or(line.created_at.0)),
        None => None,
    };
    let last = messages.iter().rev().find(|one| !one.is_note());
    let last_message_at = last.map_or(line.created_at.0, |one| one.created_at);
    let first_reply = messages
        .iter()
        .find(|one| one.sender_role == SenderRole::Admin && !one.is_note())
        .map(|one| one.created_at);
    let agent = |id: &Option<String>| id.as_deref().map(AgentId::parse).transpose();
    let sla = line.sla.as_ref();
    Ok(Conversation {
        id: ConversationId::parse(&line.id)?,
        visitor: ChatVisitor {
            id: UserId::parse(&line.visitor_id)?,
            name: None,
            email: None,
            verified: false,
            notes: String::new(),
            attributes: Value::Null,
            page_url: None,
            locale: None,
            created_at: line.created_at.0,
            seen_at: line.created_at.0,
        },
        status,
        priority: ChatPriority::parse(&line.priority)?,
        subject: line.subject.clone().filter(|subject| !subject.is_empty()),
        tags: line.tags.clone(),
        channel: line.channel.clone(),
        team: line.team_id.as_deref().map(TeamId::parse).transpose()?,
        skills: line.skills.clone(),
        assignee: if is_resolved { None } else { agent(&line.assignee)? },
        assign_no: 0,
        last_agent: match agent(&line.last_agent)? {
            None if is_resolved => agent(&line.assignee)?,
            known => known,
        },
        missed: line.missed.clone(),
        bot: line.bot,
        waiting_since: waiting,
        queued_since: queued,
        last_seq,
        event_no: 0,
        last_message_at,
        last_preview: last.map(preview).unwrap_or_default(),
        last_role: last.map(|one| one.sender_role.as_str().to_owned()).unwrap_or_default(),
        agent_read_seq,
        visitor_read_seq,
        unread_agent: unread(agent_read_seq, &|one| one.sender_role == SenderRole::User),
        unread_visitor: unread(visitor_read_seq, &|one| {
            matches!(one.sender_role, SenderRole::Admin | SenderRole::Bot)
                && one.kind == MessageType::Text
        }),
        mentions: line.mentions.clone(),
        wakes_at: line.wakes_at.map(|at| at.0),
        sla_due_at: sla.and_then(|sla| sla.due_at).map(|at| at.0),
        sla_kind: sla.and_then(|sla| sla.kind.clone()),
        sla_state: sla.map_or_else(|| "none".to_owned(), |sla| sla.state.clone()),
        first_reply_at: line.first_reply_at.map(|at| at.0).or(first_reply),
        rating: line.rating,
        rating_comment: line.rating_comment.clone(),
        created_at: line.created_at.0,
        assigned_at: line.assigned_at.map(|at| at.0),
        resolved_at: match line.resolved_at {
            Some(at) if is_resolved => Some(at.0),
            _ => is_resolved.then_some(last_message_at),
        },
        version: 1,
        merged_into: line.merged_into.as_deref().map(ConversationId::parse).transpose()?,
    })
}

/// Writes a conversation with everything of it, unless somebody else did.
async fn insert_unit(
    tx: &mut AnyConnection,
    conversation: &Conversation,
    unit: &Unit,
) -> Result<(), Error> {
    let id = conversation.id.to_string();
    let known = sqlx::query("SELECT 1 FROM conversations WHERE id = $1")
        .bind(id.clone())
        .fetch_optional(&mut *tx)
        .await?;
    if known.is_some() {
        return Ok(());
    }
    let messages = unit.messages.iter().map(Message::insert);
    execute_all(tx, std::iter::once(conversation.insert()).chain(messages).collect()).await?;
    for (file, seq, at) in &unit.files {
        insert_file(tx, file, Some(*seq), *at).await?;
    }
    for reply in &unit.conversation.replies {
        sqlx::query(
            "INSERT INTO replies (conversation_id, seq, agent_id, first, waited_ms, at_ms, in_time) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
        )
        .bind(id.clone())
        .bind(reply.seq)
        .bind(reply.agent_id.clone())
        .bind(i64::from(reply.first))
        .bind(reply.waited_ms)
        .bind(reply.at.0.0)
        .bind(reply.in_time.map(i64::from))
        .execute(&mut *tx)
        .await?;
    }
    for resolution in &unit.conversation.resolutions {
        sqlx::query(
            "INSERT INTO resolutions (conversation_id, at_ms, agent_id, handled_ms) \
             VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        )
        .bind(id.clone())
        .bind(resolution.at.0.0)
        .bind(resolution.agent_id.clone())
        .bind(resolution.handled_ms)
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}

async fn insert_file(
    tx: &mut AnyConnection,
    file: &ChatFile,
    seq: Option<i64>,
    at: Millis,
) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO files (id, hash, name, mime, size, owner, conversation_id, seq, created_ms) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(file.id.clone())
    .bind(file.hash.clone())
    .bind(file.name.clone())
    .bind(file.mime.clone())
    .bind(file.size)
    .bind(file.owner.clone())
    .bind(file.conversation.as_ref().map(ConversationId::to_string))
    .bind(seq)
    .bind(at.0)
    .execute(&mut *tx)
    .await?;
    Ok(())
}
