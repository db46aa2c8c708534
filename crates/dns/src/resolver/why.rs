//! Explanations: the whole decision about a name for a client, and what another policy would decide.

use std::{net::IpAddr, sync::Arc};

use super::{Resolver, govern::Surroundings};
use crate::{
    Error,
    filter::{Filter, Reason, Verdict},
    l0::L0Key,
    local::find_special,
    name::Question,
    policy::{Policy, PolicyVersion},
    query_record::QueryOutcome,
    wire::{AnswerKind, CLASS_IN},
};

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionStep {
    /// Step: `client`, `group`, `access`, `pause`, `schedule`, `local`, `rule`, `hop`, `cache`,
    /// `upstream`.
    pub step: &'static str,
    /// Result, for people.
    pub result: String,
}

/// The decision about a name for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Outcome; `upstream` if the name would be forwarded.
    pub outcome: QueryOutcome,
    /// Id of the client's entry; empty if it has none.
    pub client_id: String,
    /// Id of its group.
    pub group_id: String,
    /// List or rules that decided; empty if none did.
    pub list: String,
    /// Number of the line in it.
    pub line: Option<u32>,
    /// Text of the line.
    pub rule: Option<String>,
    /// Name or address in the answer that the rule matched, if not the name asked for.
    pub hop: Option<String>,
    /// Every step, in order.
    pub steps: Vec<DecisionStep>,
}

impl Resolver {
    /// Explains what a client gets for a name. Asks no upstream: an answer is looked at only if it is
    /// cached.
    pub async fn why(
        &self,
        question: &Question,
        address: IpAddr,
        client_id: Option<&str>,
    ) -> Explanation {
        let filter = self.current_filter(self.now());
        self.explain(&filter, question, address, client_id).await
    }

    /// Explains what a client would get for a name under another policy, which is not saved.
    pub async fn what_if(
        &self,
        policy: Policy,
        question: &Question,
        address: IpAddr,
        client_id: Option<&str>,
    ) -> Result<Explanation, Error> {
        policy.check()?;
        let resolver = self.clone();
        let compiled = tokio::task::spawn_blocking(move || {
            let before = resolver.0.filter.load_full();
            let version =
                PolicyVersion { version: before.policy.version, policy, changed_at: None };
            let surroundings = Surroundings::read(&resolver.0.options, &version.policy);
            let (inner, now) = (&resolver.0, resolver.now());
            Self::compile(
                &inner.options,
                Arc::new(version),
                &inner.lists,
                &inner.labels,
                &surroundings,
                Some(&before),
                now,
            )
        });
        let filter = compiled.await.map_err(|_| Error::Invalid {
            field: "policy",
            message: "could not be compiled".to_owned(),
        })??;
        Ok(self.explain(&filter, question, address, client_id).await)
    }

    async fn explain(
        &self,
        filter: &Filter,
        question: &Question,
        address: IpAddr,
        client_id: Option<&str>,
    ) -> Explanation {
        let context = filter.context(address, client_id);
        let profile = filter.profile(context.profile);
        let mut explanation = Explanation {
            outcome: QueryOutcome::Upstream,
            client_id: profile.client_id.clone(),
            group_id: profile.group_id.clone(),
            list: String::new(),
            line: None,
            rule: None,
            hop: None,
            steps: Vec::new(),
        };
        let mut step = |step, result: String| explanation.steps.push(DecisionStep { step, result });
        match profile.client_id.as_str() {
            "" => step("client", format!("{address} is not a known client")),
            id => step("client", format!("{address} is {id}")),
        }
        step("group", profile.group_id.clone());
        if !context.is_allowed {
            step("access", "not on the access list: refused".to_owned());
            explanation.outcome = QueryOutcome::Refused;
            return explanation;
        }
        let (pause, schedule) = profile.state();
        if let Some(pause) = pause {
            step("pause", format!("filtering is paused ({pause})"));
        }
        if let Some(schedule) = schedule {
            step("schedule", format!("{schedule} is on: everything is blocked"));
        }
        let (name, qtype) = (&question.name, question.qtype);
        let is_special = || {
            !filter.is_forwarded(name)
                && find_special(name, qtype, &self.0.options.endpoints).is_some()
        };
        if filter.records.find(name, qtype).is_some() || is_special() {
            step("local", "answered here".to_owned());
            explanation.outcome = QueryOutcome::Local;
            return explanation;
        }
        let verdict = filter.decide(profile, address, name, qtype);
        if !matches!(verdict, Verdict::Pass(None)) {
            self.note_verdict(filter, &mut explanation, verdict.clone());
        }
        if !matches!(verdict, Verdict::Pass(_)) {
            return explanation;
        }
        let key = L0Key::in_scope(name.as_wire(), qtype, AnswerKind::Plain, profile.route);
        let now = self.now();
        let cached = match self.0.l0.get(&key, now) {
            Some(entry) => Some((entry.stored.clone(), "memory", entry.note.upstream)),
            None if profile.route == 0 && question.qclass == CLASS_IN => {
                let stored = self.0.flights.read_store(question, AnswerKind::Plain, now).await;
                stored.plain.map(|stored| (stored, "store", Default::default()))
            }
            None => None,
        };
        let Some((stored, tier, upstream)) = cached else {
            let routes = filter.routes.find(name, profile.route);
            let servers: Vec<String> =
                routes.stats().iter().map(|server| server.server.to_string()).collect();
            let result = format!("not cached; would be asked of {}", servers.join(", "));
            explanation.steps.push(DecisionStep { step: "upstream", result });
            return explanation;
        };
        let left = stored.remaining(now);
        let result = format!("in the {tier}, {left} s left: {}", stored.answer.summary());
        explanation.steps.push(DecisionStep { step: "cache", result });
        if !upstream.is_none() {
            let result = self.0.labels.name(upstream).to_string();
            explanation.steps.push(DecisionStep { step: "upstream", result });
        }
        explanation.outcome = QueryOutcome::Cached;
        if matches!(verdict, Verdict::Pass(None))
            && let Some(verdict) = filter.decide_answer(profile, address, question, &stored.answer)
        {
            self.note_verdict(filter, &mut explanation, verdict);
            return explanation;
        }
        // Whoever is allowed a name is not allowed into the own network by it.
        if filter.is_rebinding(question, &stored.answer) {
            explanation.outcome = QueryOutcome::Rebinding;
            let result = "the answer has a private address, which is withheld".to_owned();
            explanation.steps.push(DecisionStep { step: "rule", result });
        }
        explanation
    }

    fn note_verdict(&self, filter: &Filter, explanation: &mut Explanation, verdict: Verdict) {
        let (outcome, word, reason): (_, _, Reason) = match verdict {
            Verdict::Pass(None) => return,
            Verdict::Pass(Some(reason)) => (explanation.outcome, "allowed by", reason),
            Verdict::Block(reason) => (QueryOutcome::Blocked, "blocked by", reason),
            Verdict::Rewrite(rewrite, reason) => match rewrite.is_refusal() {
                true => (QueryOutcome::Blocked, "blocked by", reason),
                false => (QueryOutcome::Rewritten, "rewritten by", reason),
            },
            Verdict::SafeSearch(target, reason) => {
                let result = format!("answered as {target}");
                explanation.steps.push(DecisionStep { step: "rule", result });
                (QueryOutcome::SafeSearch, "answered by", reason)
            }
        };
        explanation.outcome = outcome;
        let line = filter.rule_line(&self.0.lists, &reason);
        if let Some(hop) = &reason.hop {
            let result = format!("the answer leads to {hop}");
            explanation.steps.push(DecisionStep { step: "hop", result });
        }
        let result = match &line {
            Some((number, text)) => format!("{word} {}, line {number}: {text}", reason.name),
            None => format!("{word} {}", reason.name),
        };
        explanation.steps.push(DecisionStep { step: "rule", result });
        explanation.list = reason.source;
        explanation.hop = reason.hop;
        (explanation.line, explanation.rule) =
            line.map_or((None, None), |(number, text)| (Some(number), Some(text)));
    }
}
