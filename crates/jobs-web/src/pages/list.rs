//! Jobs in one state, filtered by type and text, with actions on one, on the selected, on all that match.
//!
//! The rows live. A view's topic is `job-list?STATE/ACTS/QUERY`, where the query is that of the
//! page's address, so that everybody who looks at the same list shares it.

use axum::extract::State;
use jobs::{Cursor, Filter, FoundJob, Job, JobList, JobResult, Jobs};
use maud::{Markup, html};
use serde::Deserialize;

use super::{frame, why};
use crate::error::api_error;
use crate::service::JobsState;
use web::ApiError;
use web::extract::{Path, Query};
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

/// Rows on a page.
const ROWS: usize = 50;

#[derive(Debug, Default, Deserialize)]
pub(crate) struct JobsPageQuery {
    #[serde(rename = "type")]
    job_type: Option<String>,
    text: Option<String>,
    from: Option<String>,
}

impl JobsPageQuery {
    fn job_type(&self) -> &str {
        self.job_type.as_deref().unwrap_or_default().trim()
    }

    fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default().trim()
    }

    fn filtered(&self) -> bool {
        !self.job_type().is_empty() || !self.text().is_empty()
    }

    fn from(&self) -> Option<&str> {
        self.from.as_deref().filter(|from| !from.is_empty())
    }

    /// This view, or the one that starts elsewhere, as in an address.
    fn address(&self, from: &str) -> String {
        let (job_type, text) = (percent(self.job_type()), percent(self.text()));
        format!("type={job_type}&text={text}&from={}", percent(from))
    }

    /// Returns the topic that keeps this view live.
    fn topic(&self, name: &str, acts: bool) -> String {
        let acts = if acts { "acts" } else { "look" };
        format!("job-list?{name}/{acts}/{}", self.address(self.from().unwrap_or_default()))
    }

    fn filter(&self, which: JobList) -> Filter {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Filter { which: Some(which), job_type: some(self.job_type()), text: some(self.text()) }
    }
}

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
    ("dead", JobList::Dead, "No dead letters", "Jobs that failed every attempt appear here."),
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
    let from: Option<Cursor> = query.from().map(str::parse).transpose().map_err(api_error)?;
    let list = JobsPageList { name, which, title, text, acts };
    let rows = super::with_jobs(&service, async |jobs| list.rows(jobs, &query, from).await).await;
    let body = html! {
        section.card aria-label="Jobs" {
            (filters(name, &query))
            @if acts { (bulk(name, which, &query)) }
            div data-live=(topic) data-steady="" { (rows) }
        }
    };
    Ok(frame(&service, &shell, name, None, &body).await)
}

/// The living part: `STATE/ACTS/QUERY`.
pub(crate) async fn part(service: &JobsState, arguments: &str) -> Markup {
    let mut words = arguments.splitn(3, '/');
    let mut next = || words.next().unwrap_or_default();
    let (state, acts) = (next(), next() == "acts");
    let query = parse(next()).unwrap_or_default();
    let known = LISTS.into_iter().find(|(name, ..)| *name == state);
    let from = query.from().map(str::parse::<Cursor>).transpose();
    let (Some((name, which, title, text)), Ok(from)) = (known, from) else {
        return ui::empty(crate::ICON, "No such list", "The address is not valid.", &html! {});
    };
    let list = JobsPageList { name, which, title, text, acts };
    super::with_jobs(service, async |jobs| list.rows(jobs, &query, from).await).await
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

impl JobsPageList {
    async fn rows(
        &self,
        jobs: &Jobs,
        query: &JobsPageQuery,
        from: Option<Cursor>,
    ) -> Result<Markup, jobs::Error> {
        let (rows, next) = jobs.find(&query.filter(self.which), from, ROWS).await?;
        let table = if rows.is_empty() {
            let told = "No match among the jobs searched so far.";
            let text = if query.filtered() { told } else { self.text };
            ui::empty(crate::ICON, self.title, text, &html! {})
        } else {
            table(jobs, self.which, &rows, self.acts).await?
        };
        Ok(html! {
            (table)
            (pager(self.name, query, from.is_some(), rows.len(), next))
        })
    }
}

fn filters(name: &str, query: &JobsPageQuery) -> Markup {
    html! {
        form.filters method="get" action={ "/jobs/" (name) } role="search" {
            span.search {
                (Icon::SEARCH)
                input.input type="search" name="text" value=(query.text()) placeholder="Text in the id or the payload"
                    aria-label="Find jobs by text" data-search="" spellcheck="false" autocomplete="off";
            }
            input.input type="text" name="type" value=(query.job_type()) placeholder="Type" aria-label="Only this type" spellcheck="false" autocomplete="off";
            button.btn type="submit" { "Find" }
        }
    }
}

/// An action on jobs of a list: label, verb in the URL, message afterwards, icon.
type Act = (&'static str, &'static str, &'static str, Icon);

const CANCEL: Act = ("Cancel", "cancel", "Cancelled", Icon::CROSS);
const RETRY: Act = ("Run now", "retry", "Due now:", Icon::BOLT);
const REPLAY: Act = ("Replay", "replay", "Requeued:", Icon::REFRESH);

fn acts(which: JobList) -> &'static [Act] {
    match which {
        JobList::Waiting | JobList::Active => &[CANCEL],
        JobList::Delayed => &[RETRY, CANCEL],
        JobList::Finished | JobList::Dead => &[REPLAY],
    }
}

/// Acts on the chosen rows, and on all jobs that fit.
fn bulk(name: &str, which: JobList, query: &JobsPageQuery) -> Markup {
    let mut choice = serde_json::Map::new();
    choice.insert("state".to_owned(), name.into());
    for (field, value) in [("type", query.job_type()), ("text", query.text())] {
        if !value.is_empty() {
            choice.insert(field.to_owned(), value.into());
        }
    }
    let choice = serde_json::Value::Object(choice).to_string();
    let all = if query.filtered() { "all that match" } else { "all" };
    html! {
        div.bulk {
            span.actions data-for-checked="input.pick" hidden {
                b { span data-count="" { "0" } " selected" }
                @for (word, verb, done, icon) in acts(which) {
                    button.btn.s type="button" data-act={ "POST /api/v1/jobs/{id}/" (verb) } data-each="input.pick" data-body="{}"
                        data-confirm={ (word) ": the selected " (name) " jobs?" } data-confirm-verb=(word) data-done={ (done) " {count}" } data-then="reload" { (icon) (word) }
                }
            }
            span.actions.end {
                @for (word, verb, done, icon) in acts(which) {
                    button.btn.s.ghost type="button" data-act={ "POST /api/v1/jobs/" (verb) } data-body=(choice)
                        data-confirm={ (word) ": " (all) " of the " (name) " jobs, up to 1,000 at a time?" } data-confirm-word=(name) data-confirm-verb=(word)
                        data-done={ (done) " {count}" } data-then="reload" { (icon) (word) " " (all) }
                }
            }
        }
    }
}

async fn table(
    jobs: &Jobs,
    which: JobList,
    rows: &[FoundJob],
    acts: bool,
) -> Result<Markup, jobs::Error> {
    let ended = matches!(which, JobList::Dead | JobList::Finished);
    let mut shown = Vec::with_capacity(rows.len());
    for FoundJob { id, job, .. } in rows {
        let result = if ended { jobs.result(id).await? } else { None };
        shown.push((id, job, result));
    }
    Ok(html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr {
                @if acts { th.check { input type="checkbox" data-check-all="input.pick" aria-label="Select all on this page"; } }
                th { "Job" } th { "Priority" } th { "Attempts" } th { (if ended { "Result" } else { "Needs" }) } th { (if ended { "Ended" } else { "Dispatched" }) }
            } }
            tbody {
                @for (id, job, result) in &shown {
                    tr data-key=(id.as_str()) {
                        @if acts { td.check { input.pick type="checkbox" value=(id.as_str()) aria-label={ "Select " (id.as_str()) }; } }
                        td { a.row href={ "/jobs/job/" (percent(id.as_str())) } { (job.as_ref().map_or("unreadable", |job| job.job_type.as_str())) } span.sub.mono { (id.as_str()) } }
                        td.num data-label="Priority" { @match job { Some(job) => { (job.priority.get()) } None => { "–" } } }
                        td.num data-label="Attempts" { @match job { Some(job) => { (tries(job, which, result.as_ref())) } None => { "–" } } }
                        td.wrap-any.small.wide {
                            @if ended {
                                @match result {
                                    Some(result) if result.success => { (ui::badge("good", "completed")) " " span.dim { (format::millis(i64::try_from(result.processing_time).unwrap_or(0))) } }
                                    result => { (ui::badge("bad", "failed")) " " (why(result.as_ref())) }
                                }
                            } @else { @if let Some(job) = job { span.dim { (super::needs(&job.target)) } } }
                        }
                        td.nowrap { @match (result, job) {
                            (Some(result), _) => { (format::moment(result.completed_at)) }
                            (None, Some(job)) => { (format::moment(job.created_at.0)) }
                            _ => { "–" }
                        } }
                    }
                }
            }
        } }
    })
}

/// Formats attempts made of attempts allowed. Stored is the number of attempts that failed and
/// were followed by another.
fn tries(job: &Job, which: JobList, result: Option<&JobResult>) -> String {
    let ran = match which {
        JobList::Waiting | JobList::Delayed => false,
        JobList::Active | JobList::Dead => true,
        // What was cancelled or expired in line did not run.
        JobList::Finished => result.is_some_and(|result| result.success),
    };
    let most = job.retry.attempts.saturating_add(1);
    let tried = job.attempts.saturating_add(u32::from(ran));
    format!("{} of {most}", tried.min(most))
}

fn pager(
    name: &str,
    query: &JobsPageQuery,
    later: bool,
    shown: usize,
    next: Option<Cursor>,
) -> Markup {
    let address = |from: &str| format!("/jobs/{name}?{}", query.address(from));
    html! {
        div.pager {
            span { (shown) @if shown == 1 { " job" } @else { " jobs" } @if later { " on this page" } }
            span.actions {
                @if later { a.btn.s href=(address("")) { "First" } }
                @if let Some(next) = next { a.btn.s href=(address(&next.to_string())) { "More" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_counts_when_it_was_made() {
        let text = r#"{"type":"a","attempts":1,"retry":{"attempts":3}}"#;
        let job = Job::parse(jobs::JobId::parse("j").unwrap(), text.as_bytes()).unwrap();
        let done: JobResult =
            serde_json::from_str(r#"{"success":true,"completedAt":1,"processingTime":1}"#).unwrap();
        assert_eq!(tries(&job, JobList::Delayed, None), "1 of 4");
        assert_eq!(tries(&job, JobList::Active, None), "2 of 4");
        assert_eq!(tries(&job, JobList::Finished, Some(&done)), "2 of 4");
        assert_eq!(tries(&job, JobList::Finished, None), "1 of 4");
    }

    #[test]
    fn a_topic_holds_the_whole_view() {
        let some = |text: &str| Some(text.to_owned());
        let query =
            JobsPageQuery { job_type: some("a/b c"), text: some("50 %/ü+&"), from: some("12") };
        let topic = query.topic("waiting", true);
        assert!(!topic.contains(' '), "topics are separated by spaces: {topic}");
        let rest = topic.strip_prefix("job-list?waiting/acts/").unwrap();
        let again = parse(rest).unwrap();
        assert_eq!(
            (again.job_type(), again.text(), again.from()),
            ("a/b c", "50 %/ü+&", Some("12"))
        );
    }
}
