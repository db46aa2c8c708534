//! Previews: how queries that were answered would be decided under another policy, or with another copy
//! of a list. Nothing is saved, and no upstream is asked.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use super::{Resolver, govern::Surroundings};
use crate::{
    Error,
    filter::{Filter, Verdict},
    l0::L0Key,
    name::Question,
    policy::{ListSource, Policy, PolicyVersion},
    query_record::QueryOutcome,
    wire::AnswerKind,
};

/// Lists that one preview fetches at most.
const FETCHES_MAX: usize = 8;

/// A query that was answered.
#[derive(Clone, Debug)]
pub struct PreviewQuery {
    /// Name and type.
    pub question: Question,
    /// Address of the client.
    pub address: IpAddr,
    /// Id of its entry, if it has one.
    pub client_id: Option<String>,
}

/// A query that would be decided otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewChange {
    /// Its place among the queries given.
    pub index: usize,
    /// Outcome under the policy in force; `upstream` stands for any true answer.
    pub before: QueryOutcome,
    /// Outcome under the other one.
    pub after: QueryOutcome,
    /// List or rules that decide in the case that is not a true answer.
    pub list: String,
}

/// Result of a preview.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreviewReport {
    /// The queries that change.
    pub changes: Vec<PreviewChange>,
    /// Rules of the lists that were fetched for it.
    pub fetched: BTreeMap<String, u64>,
}

impl Resolver {
    /// Decides queries under a policy that is not saved. Its lists that are not here yet are fetched into
    /// memory, and so is `fetch_again` even if it is here.
    pub async fn preview(
        &self,
        policy: Policy,
        fetch_again: Option<&str>,
        queries: Vec<PreviewQuery>,
    ) -> Result<PreviewReport, Error> {
        policy.check()?;
        let in_force = self.policy();
        let mut extra = HashMap::new();
        let is_here = |source: &ListSource| {
            let known = in_force.policy.lists.iter().find(|known| known.id == source.id);
            known.is_some_and(|known| known.url == source.url)
                && self.0.lists.sets().contains_key(&source.id)
        };
        let wanted = policy.lists.iter().filter(|source| source.enabled);
        let missing: Vec<ListSource> = wanted
            .filter(|source| fetch_again == Some(source.id.as_str()) || !is_here(source))
            .cloned()
            .collect();
        if missing.len() > FETCHES_MAX {
            let message = format!("a preview fetches at most {FETCHES_MAX} lists");
            return Err(Error::Invalid { field: "lists", message });
        }
        let routes = self.upstreams();
        for source in &missing {
            let fetched =
                self.0.lists.fetch_set(source, &policy.list_refresh, routes.bootstrap()).await;
            let set = fetched.map_err(|reason| Error::Invalid {
                field: "url",
                message: format!("{} cannot be fetched: {reason}", source.url),
            })?;
            extra.insert(source.id.clone(), Arc::new(set));
        }
        let resolver = self.clone();
        let compared = tokio::task::spawn_blocking(move || {
            let before = resolver.0.filter.load_full();
            let version =
                PolicyVersion { version: before.policy.version, policy, changed_at: None };
            let surroundings = Surroundings::read(&resolver.0.options, &version.policy);
            let fetched = extra.iter().map(|(id, set)| (id.clone(), set.figures.rules)).collect();
            let (inner, now) = (&resolver.0, resolver.now());
            let after = Self::compile(
                &inner.options,
                Arc::new(version),
                &inner.lists.with_sets(extra),
                &inner.labels,
                &surroundings,
                Some(&before),
                now,
            )?;
            let changes = queries.iter().enumerate().filter_map(|(index, query)| {
                let (was, was_by) = resolver.decide_again(&before, query);
                let (is, is_by) = resolver.decide_again(&after, query);
                let list = if is == QueryOutcome::Upstream { was_by } else { is_by };
                (was != is).then_some(PreviewChange { index, before: was, after: is, list })
            });
            let changes = changes.collect();
            Ok::<_, Error>(PreviewReport { changes, fetched })
        });
        compared.await.map_err(|_| Error::Invalid {
            field: "policy",
            message: "could not be compiled".to_owned(),
        })?
    }

    /// Decides by the name, and by the answer if it is still in memory.
    fn decide_again(&self, filter: &Filter, query: &PreviewQuery) -> (QueryOutcome, String) {
        let context = filter.context(query.address, query.client_id.as_deref());
        let profile = filter.profile(context.profile);
        let question = &query.question;
        if filter.records.find(&question.name, question.qtype).is_some() {
            return (QueryOutcome::Local, String::new());
        }
        let mut verdict = filter.decide(profile, query.address, &question.name, question.qtype);
        if matches!(verdict, Verdict::Pass(None)) {
            let (name, route) = (question.name.as_wire(), profile.route);
            let key = L0Key::in_scope(name, question.qtype, AnswerKind::Plain, route);
            if let Some(entry) = self.0.l0.get(&key, self.now())
                && let Some(found) =
                    filter.decide_answer(profile, query.address, question, &entry.stored.answer)
            {
                verdict = found;
            }
        }
        match verdict {
            Verdict::Pass(_) => (QueryOutcome::Upstream, String::new()),
            Verdict::Block(reason) => (QueryOutcome::Blocked, reason.source),
            Verdict::Rewrite(rewrite, reason) => match rewrite.is_refusal() {
                true => (QueryOutcome::Blocked, reason.source),
                false => (QueryOutcome::Rewritten, reason.source),
            },
            Verdict::SafeSearch(_, reason) => (QueryOutcome::SafeSearch, reason.source),
        }
    }
}
