//! Jobs in one state, filtered by type and text, with actions on one, on the selected, on all that match.
//!
//! The rows live. A view's topic is `job-list?STATE/ACTS/QUERY`, where the query is that of the
//! page's address, so that everybody who looks at the same list shares it.

use std::time::Duration;

use axum::extract::State;
use jobs::{Cursor, Filter, FoundJob, Job, JobEndReason, JobList, Jobs, Millis, SortKey, Status};
use maud::{Markup, html};
use serde::Deserialize;

use super::frame;
use crate::error::api_error;
use crate::service::JobsState;
use web::ApiError;
use web::config::value::Value as _;
use web::extract::{Path, Query};
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

/// Rows on a page.
const ROWS: usize = 50;

/// A page's query, as its form and its address have it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct JobsPageQuery {
    #[serde(rename = "type")]
    job_type: String,
    text: String,
    worker: String,
    priority: String,
    error: String,
    reason: String,
    group: String,
    /// Greatest age of the jobs since their dispatch, as `1h`.
    max_age: String,
    sort: String,
    cursor: String,
}

impl JobsPageQuery {
    /// The fields in the order in which they stand in an address.
    fn fields(&self) -> [(&'static str, &str); 9] {
        [
            ("type", self.job_type.trim()),
            ("text", self.text.trim()),
            ("worker", self.worker.trim()),
            ("priority", self.priority.trim()),
            ("error", self.error.trim()),
            ("reason", self.reason.trim()),
            ("group", self.group.trim()),
            ("max_age", self.max_age.trim()),
            ("sort", self.sort.trim()),
        ]
    }

    fn filtered(&self) -> bool {
        self.fields().iter().any(|(name, value)| *name != "sort" && !value.is_empty())
    }

    /// Are filters set beyond those that are always in view?
    fn has_more_filters(&self) -> bool {
        let more = ["worker", "priority", "error", "reason", "max_age"];
        self.fields().iter().any(|(name, value)| more.contains(name) && !value.is_empty())
    }

    /// This view, or the one that starts elsewhere, as in an address.
    fn address(&self, cursor: &str) -> String {
        let mut parts: Vec<String> = self
            .fields()
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name}={}", percent(value)))
            .collect();
        if !cursor.is_empty() {
            parts.push(format!("cursor={}", percent(cursor)));
        }
        parts.join("&")
    }

    /// Returns the topic that keeps this view live.
    fn topic(&self, name: &str, acts: bool) -> String {
        let acts = if acts { "acts" } else { "look" };
        format!("job-list?{name}/{acts}/{}", self.address(&self.cursor))
    }

    fn filter(&self, which: JobList, now: Millis) -> Result<Filter, jobs::Error> {
        let invalid = |message: &str| jobs::Error::Invalid { message: message.to_owned() };
        let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let priority = some(&self.priority)
            .map(|text| text.parse().map_err(|_| invalid("a priority is a number from 1 to 10")))
            .transpose()?;
        let reason = some(&self.reason)
            .map(|word| {
                JobEndReason::parse(&word).ok_or_else(|| invalid("there is no such reason"))
            })
            .transpose()?;
        let earliest_created_at = some(&self.max_age)
            .map(|age| {
                Duration::parse(&age, None)
                    .map(|age| now - age)
                    .map_err(|_| invalid("the time is an age such as 15m, 2h or 7d"))
            })
            .transpose()?;
        Ok(Filter {
            which: Some(which),
            job_type: some(&self.job_type),
            text: some(&self.text),
            worker_id: some(&self.worker),
            priority,
            error: some(&self.error),
            reason,
            group: some(&self.group),
            earliest_created_at,
            latest_created_at: None,
        })
    }

    /// The order that was asked for; `None` is that of the list.
    fn sort(&self) -> Option<(SortKey, bool)> {
        SORTS
            .iter()
            .find(|(name, ..)| *name == self.sort.trim())
            .map(|(_, _, key, down)| (*key, *down))
    }

    /// Orders that may be chosen besides the list's own.
    fn sorts(which: JobList) -> impl Iterator<Item = (&'static str, &'static str)> {
        let fits = move |key: SortKey| match key {
            SortKey::DueAt => which == JobList::Delayed,
            SortKey::EndedAt => matches!(which, JobList::Finished | JobList::Dead),
            SortKey::Took => matches!(which, JobList::Active | JobList::Finished),
            SortKey::Waited => which != JobList::Delayed,
            _ => true,
        };
        SORTS
            .iter()
            .filter(move |(_, _, key, _)| fits(*key))
            .map(|(name, label, ..)| (*name, *label))
    }
}

/// Orders of a list: name in the address, label, key, descending.
const SORTS: [(&str, &str, SortKey, bool); 9] = [
    ("newest", "Newest first", SortKey::CreatedAt, true),
    ("oldest", "Oldest first", SortKey::CreatedAt, false),
    ("priority", "Highest priority", SortKey::Priority, true),
    ("waited", "Waited longest", SortKey::Waited, true),
    ("ran", "Ran longest", SortKey::Took, true),
    ("due", "Due next", SortKey::DueAt, false),
    ("ended", "Ended last", SortKey::EndedAt, true),
    ("ended-first", "Ended first", SortKey::EndedAt, false),
    ("type", "By type", SortKey::Type, false),
];

/// Ages for the filter by time of dispatch.
const AGES: [(&str, &str); 5] = [
    ("15m", "Last 15 min"),
    ("1h", "Last hour"),
    ("24h", "Last 24 h"),
    ("7d", "Last 7 days"),
    ("30d", "Last 30 days"),
];

/// The states that have a list: name, what it is, the word of an empty one.
const LISTS: [(&str, JobList, &str, &str); 5] = [
    ("waiting", JobList::Waiting, "No waiting jobs", "Dispatched jobs appear here."),
    ("active", JobList::Active, "No active jobs", "Jobs that a worker has claimed appear here."),
    (
        "delayed",
        JobList::Delayed,
        "No delayed jobs",
        "Jobs scheduled for later and retries appear here.",
    ),
    (
        "finished",
        JobList::Finished,
        "No completed or failed jobs",
        "They are kept for a while and appear here.",
    ),
    (
        "dead",
        JobList::Dead,
        "No dead letters",
        "Jobs that failed for good appear here, with the reason.",
    ),
];

pub(crate) async fn page(
    State(service): State<JobsState>,
    shell: Shell,
    Path(state): Path<String>,
    Query(query): Query<JobsPageQuery>,
) -> Result<Markup, ApiError> {
    let (name, which, title, text) = LISTS
        .into_iter()
        .find(|(name, ..)| *name == state)
        .ok_or_else(|| ApiError::not_found("there is no such list of jobs"))?;
    let acts = shell.may_operate();
    let topic = query.topic(name, acts);
    // An address that was made up is refused before anything is shown.
    query.filter(which, service.jobs.now()).map_err(api_error)?;
    let list = JobsPageList { name, which, title, text, acts };
    list.place(&query).map_err(api_error)?;
    let has_groups = which == JobList::Dead && query.group.is_empty() && query.cursor.is_empty();
    let groups = match has_groups {
        true => Some(service.jobs.dead_groups(&Filter::default(), ROWS).await),
        false => None,
    };
    let rows = match &groups {
        // The newest of them are what the list begins with, unless it is another choice or order.
        Some(Ok(groups)) if !query.filtered() && query.sort().is_none() => {
            let next = groups.next.map(|next| next.to_string());
            list.rendered(&service.jobs, &query, &groups.newest, next)
        }
        _ => super::with_jobs(&service, async |jobs| list.rows(jobs, &query).await).await,
    };
    let body = html! { div.stack {
        @match &groups {
            None => {}
            Some(Ok(groups)) => { (super::groups::card(groups, acts)) }
            Some(Err(error)) => { (super::failure(error)) }
        }
        section.card aria-label="Jobs" {
            (filters(name, which, &query))
            @if acts { (bulk(name, which, &query, service.jobs.now())) }
            div data-live=(topic) data-steady="" { (rows) }
        }
    } };
    Ok(frame(&service, &shell, name, None, &body).await)
}

/// The living part: `STATE/ACTS/QUERY`.
pub(crate) async fn part(service: &JobsState, arguments: &str) -> Markup {
    let mut words = arguments.splitn(3, '/');
    let mut next = || words.next().unwrap_or_default();
    let (state, acts) = (next(), next() == "acts");
    let query = parse(next()).unwrap_or_default();
    let known = LISTS.into_iter().find(|(name, ..)| *name == state);
    let Some((name, which, title, text)) = known else {
        return ui::empty(crate::ICON, "No such list", "The address is not valid.", &html! {});
    };
    let list = JobsPageList { name, which, title, text, acts };
    super::with_jobs(service, async |jobs| list.rows(jobs, &query).await).await
}

/// A page's query as its address has it.
fn parse(query: &str) -> Option<JobsPageQuery> {
    let address = format!("/?{query}").parse().ok()?;
    axum::extract::Query::try_from_uri(&address).ok().map(|query| query.0)
}

/// A list as it is looked at.
struct JobsPageList {
    name: &'static str,
    which: JobList,
    title: &'static str,
    text: &'static str,
    acts: bool,
}

/// Position of a page in its list.
enum ListPlace {
    Listed(Option<Cursor>),
    Sorted((SortKey, bool), usize),
}

impl JobsPageList {
    fn place(&self, query: &JobsPageQuery) -> Result<ListPlace, jobs::Error> {
        let cursor = Some(query.cursor.trim()).filter(|cursor| !cursor.is_empty());
        let invalid =
            || jobs::Error::Invalid { message: "this is not a place a list gave".to_owned() };
        Ok(match query.sort() {
            None => ListPlace::Listed(cursor.map(str::parse).transpose()?),
            Some(sort) => {
                let offset =
                    cursor.map(|cursor| cursor.parse().map_err(|_| invalid())).transpose()?;
                ListPlace::Sorted(sort, offset.unwrap_or(0))
            }
        })
    }

    async fn rows(&self, jobs: &Jobs, query: &JobsPageQuery) -> Result<Markup, jobs::Error> {
        let filter = query.filter(self.which, jobs.now())?;
        let (rows, next) = match self.place(query)? {
            ListPlace::Listed(from) => {
                let (rows, next) = jobs.find(&filter, from, ROWS).await?;
                (rows, next.map(|next| next.to_string()))
            }
            ListPlace::Sorted(sort, offset) => {
                let (rows, more) = jobs.find_sorted(&filter, sort, offset, ROWS).await?;
                let next = more.then(|| (offset + rows.len()).to_string());
                (rows, next)
            }
        };
        Ok(self.rendered(jobs, query, &rows, next))
    }

    /// Renders the rows of a page, of which `next` is the one that follows.
    fn rendered(
        &self,
        jobs: &Jobs,
        query: &JobsPageQuery,
        rows: &[FoundJob],
        next: Option<String>,
    ) -> Markup {
        let table = if rows.is_empty() && query.filtered() {
            let text = match next.is_some() {
                true => {
                    "None of the first 10,000 jobs of this list matches. There are more to search."
                }
                false => "The list has jobs, but none matches these filters.",
            };
            let all = html! { a.btn href={ "/jobs/" (self.name) } { "Clear the filters" } };
            ui::empty(Icon::SEARCH, "No match", text, &all)
        } else if rows.is_empty() {
            ui::empty(crate::ICON, self.title, self.text, &html! {})
        } else {
            table(jobs, self.which, rows, self.acts)
        };
        html! {
            (table)
            (pager(self.name, query, rows.len(), next))
        }
    }
}

fn filters(name: &str, which: JobList, query: &JobsPageQuery) -> Markup {
    let field = |field: &str, label: &str, value: &str, kind: &str| {
        html! {
            input.input type=(kind) name=(field) value=(value) placeholder=(label) aria-label=(label) spellcheck="false" autocomplete="off"
                min=[(kind == "number").then_some("1")] max=[(kind == "number").then_some("10")];
        }
    };
    let fails = matches!(which, JobList::Dead | JobList::Finished | JobList::Delayed);
    html! {
        form.filters method="get" action={ "/jobs/" (name) } role="search" {
            span.search {
                (Icon::SEARCH)
                input.input type="search" name="text" value=(query.text.trim()) placeholder="Text in the id or the payload"
                    aria-label="Find jobs by text" data-search="" spellcheck="false" autocomplete="off";
            }
            (field("type", "Type", query.job_type.trim(), "text"))
            select.input name="sort" aria-label="Order" data-submit-on-change="" {
                option value="" { "In order of the list" }
                @for (name, label) in JobsPageQuery::sorts(which) { option value=(name) selected[query.sort.trim() == name] { (label) } }
            }
            @if !query.group.trim().is_empty() { input type="hidden" name="group" value=(query.group.trim()); }
            button.btn type="submit" { "Find" }
            details.more-filters open[query.has_more_filters()] {
                summary { "More filters" }
                div.fields {
                    select.input name="max_age" aria-label="Dispatched" {
                        option value="" { "Dispatched at any time" }
                        @for (age, label) in AGES { option value=(age) selected[query.max_age.trim() == age] { (label) } }
                        @if !query.max_age.trim().is_empty() && !AGES.iter().any(|(age, _)| *age == query.max_age.trim()) {
                            option value=(query.max_age.trim()) selected { "Last " (query.max_age.trim()) }
                        }
                    }
                    (field("priority", "Priority", query.priority.trim(), "number"))
                    @if which != JobList::Waiting { (field("worker", "Worker", query.worker.trim(), "text")) }
                    @if fails { (field("error", "Text in the error", query.error.trim(), "text")) }
                    @if matches!(which, JobList::Dead | JobList::Finished) {
                        select.input name="reason" aria-label="Reason" {
                            option value="" { "Any reason" }
                            @for reason in JobEndReason::ALL { option value=(reason.as_str()) selected[query.reason.trim() == reason.as_str()] { (reason_word(reason)) } }
                        }
                    }
                }
            }
            @if query.filtered() { a.small href={ "/jobs/" (name) } { "Clear the filters" } }
        }
    }
}

/// A reason as a label.
pub(super) fn reason_word(reason: JobEndReason) -> &'static str {
    match reason {
        JobEndReason::AttemptsUsed => "Attempts used",
        JobEndReason::Fatal => "Fatal",
        JobEndReason::Poison => "Poison",
        JobEndReason::SkipOn => "Not retried (skip_on)",
        JobEndReason::Malformed => "Malformed",
        JobEndReason::Expired => "Expired",
        JobEndReason::Dependency => "Dependency failed",
        JobEndReason::Cancelled => "Cancelled",
    }
}

/// An action on jobs of a list: label, verb in the URL, message afterwards, icon.
type Act = (&'static str, &'static str, &'static str, Icon);

const CANCEL: Act = ("Cancel", "cancel", "Cancelled", Icon::CROSS);
const RETRY: Act = ("Run now", "retry", "Due now:", Icon::BOLT);
const REMOVE: Act = ("Remove", "remove", "Removed", Icon::TRASH);
const REPLAY: Act = ("Replay", "replay", "Requeued:", Icon::REFRESH);

fn acts(which: JobList) -> &'static [Act] {
    match which {
        JobList::Waiting | JobList::Active => &[CANCEL],
        JobList::Delayed => &[RETRY, CANCEL],
        JobList::Finished | JobList::Dead => &[REPLAY, REMOVE],
    }
}

/// Acts on the chosen rows, and on all jobs that fit.
fn bulk(name: &str, which: JobList, query: &JobsPageQuery, now: Millis) -> Markup {
    let mut choice = serde_json::Map::new();
    choice.insert("state".to_owned(), name.into());
    for (field, value) in query.fields() {
        let field = match field {
            "sort" | "max_age" => continue,
            "worker" => "worker_id",
            "reason" => "end_reason",
            field => field,
        };
        match value.parse::<u8>() {
            _ if value.is_empty() => {}
            Ok(number) if field == "priority" => _ = choice.insert(field.to_owned(), number.into()),
            _ => _ = choice.insert(field.to_owned(), value.into()),
        }
    }
    if let Ok(Filter { earliest_created_at: Some(after), .. }) = query.filter(which, now) {
        choice.insert("earliest_created_at".to_owned(), format::rfc3339(after.0).into());
    }
    let choice = serde_json::Value::Object(choice).to_string();
    let all = if query.filtered() { "all that match" } else { "all" };
    html! {
        div.bulk {
            span.actions data-for-checked="input.pick" hidden {
                b { span data-count="" { "0" } " selected" }
                @for (word, verb, done, icon) in acts(which) {
                    @let act = if *verb == "remove" { "DELETE /api/v1/jobs/{id}".to_owned() } else { format!("POST /api/v1/jobs/{{id}}/{verb}") };
                    button.btn.s type="button" data-act=(act) data-each="input.pick" data-body=[(*verb != "remove").then_some("{}")]
                        data-confirm={ (word) ": the selected " (name) " jobs?" } data-confirm-verb=(word) data-done={ (done) " {count}" } data-then="reload" { (icon) (word) }
                }
            }
            span.actions.end {
                @for (word, verb, done, icon) in acts(which) {
                    button.btn.s.ghost type="button" data-act={ "POST /api/v1/jobs/" (verb) } data-body=(choice)
                        data-confirm={ (word) ": " (all) " of the " (name) " jobs, up to 1,000 at a time?" } data-confirm-word=(name) data-confirm-verb=(word)
                        data-done={ (done) " {count}" } data-then="reload" { (icon) @if *verb == "retry" { "Run " (all) " now" } @else { (word) " " (all) } }
                }
            }
        }
    }
}

fn table(jobs: &Jobs, which: JobList, rows: &[FoundJob], acts: bool) -> Markup {
    let now = jobs.now();
    let head: &[&str] = match which {
        JobList::Waiting => &["Job", "Priority", "Attempts", "Needs", "Waited"],
        JobList::Active => &["Job", "Worker", "Priority", "Attempts", "Waited", "Running for"],
        JobList::Delayed => &["Job", "Due", "Because", "Priority", "Attempts", "Dispatched"],
        JobList::Finished => &["Job", "Result", "Worker", "Attempts", "Waited", "Ran", "Ended"],
        JobList::Dead => &["Job", "Reason", "Error", "Worker", "Attempts", "Died"],
    };
    html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr {
                @if acts { th.check { input type="checkbox" data-check-all="input.pick" aria-label="Select all on this page"; } }
                @for name in head { th { (name) } }
            } }
            tbody {
                @for found in rows {
                    @let id = found.id.as_str();
                    tr data-key=(id) {
                        @if acts { td.check { input.pick type="checkbox" value=(id) aria-label={ "Select " (id) }; } }
                        td { (job_cell(found)) }
                        @for name in head.iter().skip(1) { (cell(found, which, name, now)) }
                    }
                }
            }
        } }
    }
}

/// The type and id of a job, and the beginning of its payload.
fn job_cell(found: &FoundJob) -> Markup {
    let id = found.id.as_str();
    html! {
        a.row href={ "/jobs/job/" (percent(id)) } { (found.job.as_ref().map_or("unreadable", |job| job.job_type.as_str())) }
        span.sub.mono { (id) }
        @if let Some(job) = &found.job { span.sub.mono.payload { (super::job::preview(job.payload.get())) } }
    }
}

/// One cell of a list, by the name of its column.
fn cell(found: &FoundJob, which: JobList, name: &str, now: Millis) -> Markup {
    let none = || html! { span.dim { "–" } };
    let moment = |at: Option<Millis>| at.map_or_else(none, |at| format::moment(at.0));
    let length =
        |time: Option<Duration>| time.map_or_else(none, |time| html! { (format::duration(time)) });
    let job = found.job.as_ref();
    match name {
        "Priority" => {
            html! { td.num data-label=(name) { @match job { Some(job) => { (job.priority.get()) } None => { (none()) } } } }
        }
        "Attempts" => {
            html! { td.num.nowrap data-label=(name) { @match job { Some(job) => { (tries(job, which, found)) } None => { (none()) } } } }
        }
        "Needs" => {
            html! { td.wrap-any.small data-label=(name) { @if let Some(job) = job { span.dim {
                @let needs = super::needs(&job.target);
                @if needs.is_empty() { "any worker" } @else { (needs) }
            } } } }
        }
        "Worker" => html! { td.wrap-any data-label=(name) { @match &found.worker_id {
            Some(worker) => { a href={ "/jobs/" (which.as_str()) "?worker=" (percent(worker)) } { (worker) } } None => { (none()) }
        } } },
        "Waited" => html! { td.nowrap data-label=(name) { (length(found.waited(now))) } },
        "Ran" | "Running for" => {
            html! { td.nowrap data-label=(name) { (length(found.took(now))) } }
        }
        "Due" => html! { td.nowrap data-label=(name) { (moment(found.due)) } },
        "Because" => html! { td.wrap-any.small.wide { @match (&found.error, job) {
            (Some(error), Some(job)) if job.attempts > 0 => { (ui::badge("warn", "retry")) " " (clip(&error.to_string())) }
            (_, Some(job)) if !job.depends_on.is_empty() && found.due.is_none() => { span.dim { "waits for other jobs" } }
            _ => { span.dim { "scheduled for later" } }
        } } },
        "Result" => html! { td.wrap-any.small.wide { @match (found.status, &found.error) {
            (Status::Completed, _) => { (ui::badge("good", "completed")) }
            (_, error) => {
                (ui::badge("bad", "failed")) " " @if let Some(reason) = found.reason { b { (reason_word(reason)) } " " }
                @if let Some(error) = error { (clip(&error.to_string())) }
            }
        } } },
        "Reason" => {
            html! { td.nowrap data-label=(name) { @match found.reason { Some(reason) => { (ui::badge("bad", reason_word(reason))) } None => { (none()) } } } }
        }
        "Error" => {
            html! { td.wrap-any.small.wide { @match &found.error { Some(error) => { (clip(&error.to_string())) } None => { (none()) } } } }
        }
        "Dispatched" => {
            html! { td.nowrap data-label=(name) { (moment(job.map(|job| job.created_at))) } }
        }
        _ => {
            html! { td.nowrap data-label=(name) { (moment(found.ended_at.or_else(|| job.map(|job| job.created_at)))) } }
        }
    }
}

/// The beginning of a text, for a cell.
pub(super) fn clip(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Formats attempts made of attempts allowed. Stored is the number of attempts that failed and
/// were followed by another.
fn tries(job: &Job, which: JobList, found: &FoundJob) -> String {
    let ran = match which {
        JobList::Waiting | JobList::Delayed => false,
        JobList::Active | JobList::Dead => true,
        // What was cancelled or expired in line did not run.
        JobList::Finished => found.status == Status::Completed,
    };
    let most = job.retry.attempts.saturating_add(1);
    let tried = job.attempts.saturating_add(u32::from(ran));
    format!("{} of {most}", tried.min(most))
}

fn pager(name: &str, query: &JobsPageQuery, shown: usize, next: Option<String>) -> Markup {
    let address = |cursor: &str| format!("/jobs/{name}?{}", query.address(cursor));
    let later = !query.cursor.trim().is_empty();
    html! {
        div.pager {
            span { (shown) @if shown == 1 { " job" } @else { " jobs" } @if later { " on this page" } }
            span.actions {
                @if later { a.btn.s href=(address("")) { "First" } }
                @if let Some(next) = next { a.btn.s href=(address(&next)) { "More" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobs::JobId;

    fn found(status: Status) -> FoundJob {
        FoundJob {
            id: JobId::parse("j").unwrap(),
            status,
            job: None,
            due: None,
            worker_id: None,
            claimed_at: None,
            ended_at: None,
            ran: None,
            error: None,
            reason: None,
        }
    }

    #[test]
    fn a_try_counts_when_it_was_made() {
        let text = r#"{"type":"a","attempts":1,"retry":{"attempts":3}}"#;
        let job = Job::parse(JobId::parse("j").unwrap(), text.as_bytes()).unwrap();
        let tries = |which, status| tries(&job, which, &found(status));
        assert_eq!(tries(JobList::Delayed, Status::Delayed), "1 of 4");
        assert_eq!(tries(JobList::Active, Status::Active), "2 of 4");
        assert_eq!(tries(JobList::Finished, Status::Completed), "2 of 4");
        assert_eq!(tries(JobList::Finished, Status::Failed), "1 of 4");
    }

    #[test]
    fn a_topic_holds_the_whole_view() {
        let query = JobsPageQuery {
            job_type: "a/b c".to_owned(),
            text: "50 %/ü+&".to_owned(),
            error: "Timeout: 5".to_owned(),
            sort: "ran".to_owned(),
            cursor: "12".to_owned(),
            ..JobsPageQuery::default()
        };
        let topic = query.topic("waiting", true);
        assert!(!topic.contains(' '), "topics are separated by spaces: {topic}");
        let rest = topic.strip_prefix("job-list?waiting/acts/").unwrap();
        let again = parse(rest).unwrap();
        assert_eq!(again.fields(), query.fields());
        assert_eq!(again.cursor, "12");
    }

    #[test]
    fn a_made_up_filter_is_refused() {
        let query = |max_age: &str, priority: &str| JobsPageQuery {
            max_age: max_age.to_owned(),
            priority: priority.to_owned(),
            ..JobsPageQuery::default()
        };
        let now = Millis(10_000_000);
        let filter = query("1h", "7").filter(JobList::Dead, now).unwrap();
        assert_eq!(
            (filter.earliest_created_at, filter.priority),
            (Some(Millis(6_400_000)), Some(7))
        );
        assert!(query("soon", "").filter(JobList::Dead, now).is_err());
        assert!(query("", "high").filter(JobList::Dead, now).is_err());
    }
}
