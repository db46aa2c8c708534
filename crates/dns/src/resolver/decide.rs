//! Decides what a query gets: an answer made here, the true answer, or the true answer changed.
//!
//! What is decided is kept in memory: an answer made here as an entry of its own, and that an answer
//! passes as a mark on it, both under the generation of the filter.

use std::{net::IpAddr, sync::Arc, time::Duration};

use store::Millis;

use super::{QueryClient, Resolver, flight::FlightResult};
use crate::{
    DomainName,
    filter::{ClientContext, Filter, Profile, Reason, Verdict, blocked_answer, empty_answer},
    l0::{EntryNote, L0Entry, L0Key, LocalNote, PROFILE_SCOPE},
    l1::StoredAnswer,
    lists::Rewrite,
    local::{LocalAnswer, find_special, parse_data},
    name::Question,
    query_record::{CacheTier, Label, QueryOutcome, QueryRecord},
    wire::{
        AnswerKind, CLASS_IN, CachedAnswer, ExtendedError, MESSAGE_MAX_BYTES, PlainRecord,
        ReplayTtl, ReplyOptions, UDP_MAX_BYTES, WireQuery, rcode, rtype, write_reply,
    },
};

/// TTL of negative answers made here.
const NEGATIVE_TTL_SECONDS: u32 = 300;

/// Room for an OPT record with all its options, and for padding.
const OPTIONS_ROOM_BYTES: usize = 1_024;

/// Parameter of service bindings with the keys of encrypted client hello.
const ECH_PARAMETER: u16 = 5;

/// An answer made here.
pub(super) struct LocalReply {
    pub(super) answer: CachedAnswer,
    /// Time for which it is kept, in seconds.
    ttl: u32,
    pub(super) outcome: QueryOutcome,
    pub(super) reason: Option<Reason>,
    error: Option<(u16, Box<str>)>,
}

impl LocalReply {
    fn new(answer: CachedAnswer, outcome: QueryOutcome) -> Self {
        let ttl = answer.stored_ttl();
        Self { answer, ttl, outcome, reason: None, error: None }
    }

    fn blocked(answer: CachedAnswer, ttl: u32, outcome: QueryOutcome, reason: Reason) -> Self {
        // RFC 8914 §4.16: blocked by the operator's policy.
        let error = Some((15, reason.name.clone().into()));
        Self { answer, ttl, outcome, reason: Some(reason), error }
    }
}

/// Result of a look at an answer.
pub(super) enum Judgement {
    Pass,
    Replace(Box<LocalReply>),
    /// No reply, because of a rule if there is a reason.
    Drop(Option<Reason>),
}

impl Resolver {
    /// Answers a query of a client that may ask. Fills in the record and the summary.
    #[expect(clippy::too_many_arguments, reason = "one query with all that belongs to it")]
    pub(super) async fn answer_query(
        &self,
        filter: &Arc<Filter>,
        context: ClientContext,
        query: &WireQuery<'_>,
        client: QueryClient<'_>,
        cookie: Option<[u8; 24]>,
        record: &mut QueryRecord,
        summary: &mut String,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let profile = filter.profile(context.profile);
        let question = query.question();
        let options = ReplyOptions { cookie, ..self.reply_options(client, query) };
        if let Some(reply) = self.answer_locally(filter, profile, query, &question).await {
            return self.give(
                filter, profile, &question, reply, query, client, options, record, summary, out,
            );
        }
        if !query.is_recursion_desired() {
            // No cache snooping, and nothing is forwarded that nobody asked to be.
            record.rcode = rcode::REFUSED;
            return write_reply(query, rcode::REFUSED, options, make_room(out, 0));
        }
        let verdict = filter.decide(profile, client.address, &question.name, question.qtype);
        let is_allowed = matches!(verdict, Verdict::Pass(Some(_)));
        match self.judge_verdict(profile, &question, verdict).await {
            Judgement::Pass => {}
            Judgement::Drop(reason) => {
                self.note_drop(reason, record);
                return None;
            }
            Judgement::Replace(reply) => {
                return self.give(
                    filter, profile, &question, *reply, query, client, options, record, summary,
                    out,
                );
            }
        }
        let key = L0Key::in_scope(query.name(), query.qtype(), query.kind(), profile.route);
        let now = self.now();
        let known = if profile.cache { self.0.l0.get(&key, now) } else { None };
        let fresh = known.clone().filter(|entry| entry.stored.remaining(now) > 0);
        // An entry without a tier is one that may only be given as stale.
        let (entry, tier) = match fresh {
            Some(entry) => (Some(entry), Some(CacheTier::Memory)),
            None => match self.find_answer(profile, &question, query.kind()).await {
                Some(FlightResult::Answer { entry, tier }) => (Some(entry), Some(tier)),
                Some(FlightResult::Failed { stale }) => (stale.or(known), None),
                None => (known.or_else(|| self.0.l0.get(&key, self.now())), None),
            },
        };
        let now = self.now();
        let entry = entry.filter(|entry| tier.is_some() || self.may_serve_stale(entry, now));
        let Some(entry) = entry else {
            record.outcome = QueryOutcome::UpstreamError;
            record.rcode = rcode::SERVFAIL;
            let error = Some(ExtendedError::NO_REACHABLE_AUTHORITY);
            let options = ReplyOptions { error, ..options };
            return write_reply(query, rcode::SERVFAIL, options, make_room(out, 0));
        };
        let passes =
            profile.verdict_slot().is_some_and(|slot| entry.passes(slot, filter.generation));
        if !passes {
            let judged = self
                .judge_answer(filter, profile, client.address, &question, &entry, is_allowed)
                .await;
            match judged {
                Judgement::Pass => {
                    if let Some(slot) = profile.verdict_slot() {
                        entry.note_pass(slot, filter.generation);
                    }
                }
                Judgement::Drop(reason) => {
                    self.note_drop(reason, record);
                    return None;
                }
                Judgement::Replace(reply) => {
                    record.upstream = entry.note.upstream;
                    return self.give(
                        filter, profile, &question, *reply, query, client, options, record,
                        summary, out,
                    );
                }
            }
        }
        record.rcode = entry.stored.answer.rcode();
        record.upstream = entry.note.upstream;
        record.tier = tier.unwrap_or(CacheTier::Memory);
        record.outcome = match tier {
            None => QueryOutcome::Stale,
            Some(CacheTier::None) => QueryOutcome::Upstream,
            Some(_) => QueryOutcome::Cached,
        };
        summary.push_str(&entry.summary);
        let out = make_room(out, entry.stored.answer.as_wire().len());
        let (now, limit) = (self.now(), client.limit(query));
        if tier.is_none() && entry.stored.remaining(now) <= 0 {
            let ttl_seconds = u32::try_from(self.0.options.stale.ttl.as_secs()).unwrap_or(u32::MAX);
            let ttl = ReplayTtl::Stale { ttl_seconds: ttl_seconds.min(self.ttl_cap()) };
            let options = ReplyOptions { error: Some(ExtendedError::STALE), ..options };
            return entry.stored.answer.replay(query, ttl, options, limit, out);
        }
        if let Some(length) = self.replay_fresh(&entry, query, client, options, now, out) {
            return Some(length);
        }
        // Its TTL is 0, or ended on the way.
        entry.stored.answer.replay(query, self.fresh_ttl(&entry, now), options, limit, out)
    }

    /// Fills in the record of a query that gets no reply.
    fn note_drop(&self, reason: Option<Reason>, record: &mut QueryRecord) {
        record.outcome = QueryOutcome::Blocked;
        record.list = reason.map_or(Label::NONE, |reason| self.0.labels.label(&reason.source));
    }

    /// Finds an answer for a profile: shared with all who ask the same, unless the group caches
    /// nothing.
    async fn find_answer(
        &self,
        profile: &Profile,
        question: &Question,
        kind: AnswerKind,
    ) -> Option<FlightResult> {
        if profile.cache {
            return self.0.flights.wait_for(question.clone(), kind, profile.route).await;
        }
        let asked = Box::pin(self.0.flights.ask_uncached(question, kind, profile.route));
        let answered = tokio::time::timeout(self.0.options.client_timeout, asked).await.ok()?;
        Some(match answered {
            Some(entry) => FlightResult::Answer { entry, tier: CacheTier::None },
            None => FlightResult::Failed { stale: None },
        })
    }

    /// Answers names that are answered here.
    async fn answer_locally(
        &self,
        filter: &Filter,
        profile: &Profile,
        query: &WireQuery<'_>,
        question: &Question,
    ) -> Option<LocalReply> {
        let (name, qtype) = (&question.name, question.qtype);
        let special = || {
            if filter.is_forwarded(name) {
                return None;
            }
            find_special(name, qtype, &self.0.options.endpoints)
        };
        let found = filter.records.find(name, qtype).or_else(special);
        let answer = match found {
            Some(LocalAnswer::Records(records)) if records.is_empty() => {
                empty_answer(question, rcode::NOERROR, NEGATIVE_TTL_SECONDS)
            }
            Some(LocalAnswer::Records(records)) => {
                CachedAnswer::build(question, rcode::NOERROR, true, [&records, &[], &[]])
            }
            Some(LocalAnswer::NoName) => {
                empty_answer(question, rcode::NXDOMAIN, NEGATIVE_TTL_SECONDS)
            }
            Some(LocalAnswer::Alias(records, target)) => {
                match Box::pin(self.follow_alias(profile, question, records, &target)).await {
                    Some(answer) => Some(answer),
                    // The name is ours, so it is asked of nobody else.
                    None => return failed_reply(question),
                }
            }
            // RFC 8482: one record that says so, in place of all there are.
            None if qtype == rtype::ANY && query.is_recursion_desired() => {
                let data = b"\x07RFC8482\x00".to_vec();
                let owner = name.clone();
                let record = [PlainRecord { owner, rtype: rtype::HINFO, ttl: 3_600, data }];
                CachedAnswer::build(question, rcode::NOERROR, false, [&record, &[], &[]])
            }
            None => None,
        };
        answer.map(|answer| LocalReply::new(answer, QueryOutcome::Local))
    }

    /// Makes the answer to a name that is an alias of another: the aliases, then what the other has. Callers box it:
    /// most queries that wait have no alias, and no room for one.
    async fn follow_alias(
        &self,
        profile: &Profile,
        question: &Question,
        mut records: Vec<PlainRecord>,
        target: &DomainName,
    ) -> Option<CachedAnswer> {
        let asked = Question { name: target.clone(), qtype: question.qtype, qclass: CLASS_IN };
        let found = self.find_answer(profile, &asked, AnswerKind::Plain).await;
        let now = self.now();
        let (entry, is_stale) = match found? {
            FlightResult::Answer { entry, .. } => (entry, false),
            FlightResult::Failed { stale } => {
                (stale.filter(|entry| self.may_serve_stale(entry, now))?, true)
            }
        };
        let stale_ttl = u32::try_from(self.0.options.stale.ttl.as_secs()).unwrap_or(u32::MAX);
        let age = entry.stored.age(now);
        let ttl_left = |mut record: PlainRecord| {
            record.ttl = match is_stale {
                true => record.ttl.min(stale_ttl),
                false => record.ttl.saturating_sub(age).max(1),
            };
            record
        };
        records.extend(entry.stored.answer.records(0).into_iter().map(ttl_left));
        let authority: Vec<PlainRecord> =
            entry.stored.answer.records(1).into_iter().map(ttl_left).collect();
        let code = entry.stored.answer.rcode();
        CachedAnswer::build(question, code, false, [&records, &authority, &[]])
    }

    /// Turns a verdict about a name into a reply.
    pub(super) async fn judge_verdict(
        &self,
        profile: &Profile,
        question: &Question,
        verdict: Verdict,
    ) -> Judgement {
        let reply = match verdict {
            Verdict::Pass(_) => return Judgement::Pass,
            Verdict::Block(reason) => {
                let ttl = profile.reply.ttl_seconds;
                blocked_answer(question, &profile.reply, reason.is_typed)
                    .map(|answer| LocalReply::blocked(answer, ttl, QueryOutcome::Blocked, reason))
            }
            Verdict::Rewrite(Rewrite::Drop, reason) => return Judgement::Drop(Some(reason)),
            Verdict::Rewrite(rewrite, reason) => {
                self.rewrite(profile, question, rewrite, reason).await
            }
            Verdict::SafeSearch(target, reason) => match question.qtype {
                rtype::A | rtype::AAAA => {
                    let alias = PlainRecord::alias(question.name.clone(), 300, &target);
                    let answer =
                        Box::pin(self.follow_alias(profile, question, vec![alias], &target)).await;
                    answer.map(|answer| LocalReply {
                        reason: Some(reason),
                        ..LocalReply::new(answer, QueryOutcome::SafeSearch)
                    })
                }
                // A service binding would lead past the safe addresses.
                rtype::HTTPS | rtype::SVCB => {
                    let answer = empty_answer(question, rcode::NOERROR, NEGATIVE_TTL_SECONDS);
                    answer.map(|answer| LocalReply::new(answer, QueryOutcome::SafeSearch))
                }
                _ => return Judgement::Pass,
            },
        };
        match reply {
            Some(reply) => Judgement::Replace(Box::new(reply)),
            // Not even the safe variant can be reached: better no answer than the true one.
            None => failed_reply(question)
                .map_or(Judgement::Drop(None), |reply| Judgement::Replace(Box::new(reply))),
        }
    }

    async fn rewrite(
        &self,
        profile: &Profile,
        question: &Question,
        rewrite: Rewrite,
        reason: Reason,
    ) -> Option<LocalReply> {
        let ttl = profile.reply.ttl_seconds.max(1);
        match rewrite {
            Rewrite::None | Rewrite::Drop => None,
            Rewrite::Code(code) => {
                let answer = match code {
                    rcode::NOERROR | rcode::NXDOMAIN => empty_answer(question, code, ttl)?,
                    _ => CachedAnswer::build(question, code, false, [&[], &[], &[]])?,
                };
                Some(LocalReply::blocked(answer, ttl, QueryOutcome::Blocked, reason))
            }
            Rewrite::Alias(target) => {
                let alias = PlainRecord::alias(question.name.clone(), ttl, &target);
                let answer =
                    Box::pin(self.follow_alias(profile, question, vec![alias], &target)).await?;
                let reply = LocalReply::new(answer, QueryOutcome::Rewritten);
                Some(LocalReply { reason: Some(reason), ..reply })
            }
            Rewrite::Records(records) => {
                let fitting = records.iter().filter(|(rtype, _)| *rtype == question.qtype);
                let records = fitting.map(|(rtype, value)| {
                    let (owner, data) = (question.name.clone(), parse_data(*rtype, value).ok()?);
                    Some(PlainRecord { owner, rtype: *rtype, ttl, data })
                });
                let records: Vec<PlainRecord> = records.collect::<Option<_>>()?;
                let answer = match records.is_empty() {
                    true => empty_answer(question, rcode::NOERROR, ttl)?,
                    false => {
                        CachedAnswer::build(question, rcode::NOERROR, false, [&records, &[], &[]])?
                    }
                };
                let reply = LocalReply::new(answer, QueryOutcome::Rewritten);
                Some(LocalReply { reason: Some(reason), ..reply })
            }
        }
    }

    /// Decides whether a profile may have an answer as it is.
    pub(super) async fn judge_answer(
        &self,
        filter: &Filter,
        profile: &Profile,
        address: IpAddr,
        question: &Question,
        entry: &L0Entry,
        is_allowed: bool,
    ) -> Judgement {
        let answer = &entry.stored.answer;
        // An exception for the name asked for wins over what its answer leads to.
        if !is_allowed
            && let Some(verdict) = filter.decide_answer(profile, address, question, answer)
        {
            return self.judge_verdict(profile, question, verdict).await;
        }
        let remaining = u32::try_from(entry.stored.remaining(self.now())).unwrap_or(1).max(1);
        if filter.is_rebinding(question, answer) {
            let ttl = remaining.min(NEGATIVE_TTL_SECONDS);
            let reply = empty_answer(question, rcode::NOERROR, ttl).map(|answer| {
                let error = Some((17, "private address".into()));
                LocalReply { error, ..LocalReply::new(answer, QueryOutcome::Rebinding) }
            });
            return match reply {
                Some(reply) => Judgement::Replace(Box::new(reply)),
                None => Judgement::Drop(None),
            };
        }
        if let Some((stripped, what)) = strip_binding(filter, profile, address, question, answer) {
            let error = Some((ExtendedError::FILTERED.code, what.into()));
            let reply = LocalReply {
                ttl: remaining,
                error,
                ..LocalReply::new(stripped, QueryOutcome::Rewritten)
            };
            return Judgement::Replace(Box::new(reply));
        }
        Judgement::Pass
    }

    /// Writes an answer made here, and keeps it for the next query.
    #[expect(clippy::too_many_arguments, reason = "one query with all that belongs to it")]
    fn give(
        &self,
        filter: &Filter,
        profile: &Profile,
        question: &Question,
        reply: LocalReply,
        query: &WireQuery<'_>,
        client: QueryClient<'_>,
        options: ReplyOptions<'_>,
        record: &mut QueryRecord,
        summary: &mut String,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let list = reply.reason.as_ref().map(|reason| self.0.labels.label(&reason.source));
        record.outcome = reply.outcome;
        record.rcode = reply.answer.rcode();
        record.list = list.unwrap_or(Label::NONE);
        summary.push_str(&reply.answer.summary());
        let entry = self.keep_local(filter, profile, question, reply, record.list, self.now());
        let note = entry.note.local.as_ref()?;
        let error = note.error.as_ref().map(|(code, text)| ExtendedError { code: *code, text });
        let options = ReplyOptions { error, ..options };
        let ttl = ReplayTtl::Fresh { age_seconds: 0, cap_seconds: self.ttl_cap() };
        let out = make_room(out, entry.stored.answer.as_wire().len());
        entry.stored.answer.replay(query, ttl, options, client.limit(query), out)
    }

    fn keep_local(
        &self,
        filter: &Filter,
        profile: &Profile,
        question: &Question,
        reply: LocalReply,
        list: Label,
        now: Millis,
    ) -> Arc<L0Entry> {
        let slot = profile.verdict_slot().and_then(|slot| u8::try_from(slot).ok());
        let scope = PROFILE_SCOPE + slot.unwrap_or(0);
        let (name, qtype) = (question.name.as_wire(), question.qtype);
        let key = L0Key::in_scope(name, qtype, AnswerKind::Plain, scope);
        let stored = StoredAnswer {
            soft_expiry: now.as_secs() + i64::from(reply.ttl),
            stored_ttl: reply.ttl,
            auth_ttl: reply.ttl,
            answer: Arc::new(reply.answer),
        };
        let local = LocalNote {
            filter_generation: filter.generation,
            outcome: reply.outcome,
            list,
            error: reply.error,
        };
        let note = EntryNote { local: Some(local), ..EntryNote::default() };
        // Made and not kept where another client would have to be asked about again.
        let generation = if slot.is_some() { self.0.l0.generation() } else { u64::MAX };
        self.0.l0.insert_noted(&key, stored, Duration::ZERO, generation, note)
    }
}

/// Makes the reply to a name whose other name cannot be resolved; it is not kept.
fn failed_reply(question: &Question) -> Option<LocalReply> {
    let answer = CachedAnswer::build(question, rcode::SERVFAIL, false, [&[], &[], &[]])?;
    let error = Some((ExtendedError::NO_REACHABLE_AUTHORITY.code, "".into()));
    Some(LocalReply { ttl: 0, error, ..LocalReply::new(answer, QueryOutcome::UpstreamError) })
}

/// Makes the buffer of a reply as long as an answer of this length may need with options and padding. Not
/// before the answer is there: many queries wait.
pub(super) fn make_room(out: &mut Vec<u8>, length: usize) -> &mut [u8] {
    out.resize((length + OPTIONS_ROOM_BYTES).clamp(UDP_MAX_BYTES, MESSAGE_MAX_BYTES), 0);
    out
}

/// Takes out of service bindings what a profile is not to learn from them; none if there is nothing.
fn strip_binding(
    filter: &Filter,
    profile: &Profile,
    address: IpAddr,
    question: &Question,
    answer: &CachedAnswer,
) -> Option<(CachedAnswer, &'static str)> {
    if !matches!(question.qtype, rtype::HTTPS | rtype::SVCB) {
        return None;
    }
    let mut keys = filter.withheld_hints(profile, address, question);
    let hints = keys.len();
    if !profile.keep_ech {
        keys.push(ECH_PARAMETER);
    }
    let what = match (hints, profile.keep_ech) {
        (0, _) => "ech removed",
        (_, true) => "hints removed",
        (_, false) => "hints and ech removed",
    };
    Some((without_parameters(question, answer, &keys)?, what))
}

/// Takes parameters of service bindings out of an answer; none if there are none. Signatures go with
/// them, because they would not fit any more.
fn without_parameters(
    question: &Question,
    answer: &CachedAnswer,
    keys: &[u16],
) -> Option<CachedAnswer> {
    let mut records = answer.records(0);
    let mut has_changed = false;
    for record in &mut records {
        has_changed |= record.remove_parameters(keys);
    }
    if !has_changed {
        return None;
    }
    records.retain(|record| record.rtype != rtype::RRSIG);
    CachedAnswer::build(question, answer.rcode(), false, [&records, &[], &[]])
}
