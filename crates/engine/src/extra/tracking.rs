//! `CLIENT TRACKING`: client-side caching with invalidation messages.
//!
//! A session that tracks is remembered with every key it reads; when the key changes, dies, is
//! evicted or flushed, it gets one invalidation and has to read the key again. In broadcasting mode
//! nothing is remembered: the session gets an invalidation for every change to keys with its
//! prefixes.
//!
//! Invalidations are collected in [`Tracking::pending`] while a command runs and handed out when
//! it is over ([`Core::tell_trackers`]): so a message never stands in the middle of a reply.
//! Read [`Tracking`] first, then [`Core::key_changed`].

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use crate::command::{CommandSpec, Ctx, PUBSUB, READONLY};
use crate::engine::Core;
use crate::error::{Error, SYNTAX};
use crate::session::ClientSession;
use crate::table::{Table, TableEntry};
use crate::{Reply, SessionId, args, keys};

/// Channel of invalidations for RESP2 sessions.
const CHANNEL: &str = "__redis__:invalidate";
/// Keys above `tracking-table-max-keys` that go with one command; more with each that follows, as
/// long as there are still too many.
const LIMIT_STEP: usize = 100;

/// Client-side caching: the keys and prefixes each session tracks.
#[derive(Debug)]
pub(crate) struct Tracking {
    clients: HashMap<SessionId, TrackingMode>,
    /// Keys and who has read them. Sessions that are gone stay until the key changes.
    table: Table<TrackedKey>,
    /// Total number of readers in the table.
    items: usize,
    prefixes: BTreeMap<Box<[u8]>, Prefix>,
    /// `tracking-table-max-keys`; 0 for no bound.
    pub(crate) most_keys: usize,
    /// Number of times in a row that there were still too many keys.
    overdue: usize,
    pending: Vec<PendingInvalidation>,
    /// The session whose command runs.
    pub(crate) current: Option<SessionId>,
    /// Keys of the script that runs, if its caller tracks what it reads.
    script_keys: Option<Vec<Box<[u8]>>>,
}

impl Default for Tracking {
    fn default() -> Tracking {
        Tracking {
            clients: HashMap::new(),
            table: Table::default(),
            items: 0,
            prefixes: BTreeMap::new(),
            most_keys: 1_000_000,
            overdue: 0,
            pending: Vec::new(),
            current: None,
            script_keys: None,
        }
    }
}

/// The tracking options of a session.
#[derive(Debug, Clone, Default)]
struct TrackingMode {
    /// Session that gets the invalidations in its place; 0 for itself.
    redirect: u64,
    /// The session that should get the invalidations is gone.
    broken: bool,
    broadcast: bool,
    opt_in: bool,
    opt_out: bool,
    no_loop: bool,
    /// `CLIENT CACHING` was called just before.
    caching: bool,
    prefixes: BTreeSet<Box<[u8]>>,
}

impl TrackingMode {
    /// Does it want to hear of keys that it reads now?
    fn remembers(&self) -> bool {
        match self.caching {
            true => !self.broadcast && !self.opt_out,
            false => !self.broadcast && !self.opt_in,
        }
    }
}

/// A key and who has read it.
#[derive(Debug)]
struct TrackedKey {
    key: Box<[u8]>,
    /// In the order of their numbers.
    readers: Vec<SessionId>,
}

impl TableEntry for TrackedKey {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

/// The sessions that track a prefix, and the keys changed under it.
#[derive(Debug, Default)]
struct Prefix {
    listeners: BTreeSet<SessionId>,
    /// Keys that changed, and who changed each last.
    changed: BTreeMap<Box<[u8]>, Option<SessionId>>,
}

/// An invalidation that is not sent yet.
#[derive(Debug)]
struct PendingInvalidation {
    to: SessionId,
    /// All keys if none.
    keys: Option<Vec<Box<[u8]>>>,
    /// It happened before the running command began: told before its reply.
    early: bool,
}

impl Tracking {
    /// Nobody tracks anything; hashes depend on `seed`.
    pub(crate) fn with_seed(seed: u64) -> Tracking {
        Tracking { table: Table::with_seed(seed), ..Tracking::default() }
    }

    /// Number of sessions that track.
    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Keys, readers of keys and prefixes that are remembered.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.table.len(), self.items, self.prefixes.len())
    }

    /// The letters that CLIENT LIST shows for a session.
    pub(crate) fn letters(&self, id: SessionId) -> &'static str {
        match self.clients.get(&id) {
            None => "",
            Some(TrackingMode { broken: false, broadcast: false, .. }) => "t",
            Some(TrackingMode { broken: true, broadcast: false, .. }) => "tR",
            Some(TrackingMode { broken: false, broadcast: true, .. }) => "tB",
            Some(TrackingMode { broken: true, broadcast: true, .. }) => "tRB",
        }
    }

    /// Returns the session that gets the invalidations of another: 0 for itself, -1 if it does not
    /// track.
    pub(crate) fn redirect(&self, id: SessionId) -> i64 {
        self.clients.get(&id).map_or(-1, |m| i64::try_from(m.redirect).unwrap_or(i64::MAX))
    }

    /// The session tracks no more. What it has read stays in the table until it changes.
    pub(crate) fn forget(&mut self, id: SessionId) {
        let Some(mode) = self.clients.remove(&id) else { return };
        for prefix in mode.prefixes {
            if let Some(found) = self.prefixes.get_mut(&prefix) {
                found.listeners.remove(&id);
                if found.listeners.is_empty() {
                    self.prefixes.remove(&prefix);
                }
            }
        }
    }

    fn enable(&mut self, id: SessionId, wanted: TrackingMode) {
        let mode = self.clients.entry(id).or_default();
        let before = std::mem::take(mode);
        *mode =
            TrackingMode { caching: before.caching, prefixes: before.prefixes, ..wanted.clone() };
        if !wanted.broadcast {
            return;
        }
        let mut added = wanted.prefixes;
        if added.is_empty() {
            added.insert(Box::default());
        }
        for prefix in added {
            self.prefixes.entry(prefix.clone()).or_default().listeners.insert(id);
            mode.prefixes.insert(prefix);
        }
    }

    fn remember(&mut self, id: SessionId, key: &[u8]) {
        let Some(tracked) = self.table.get_mut(key) else {
            self.table.insert(TrackedKey { key: key.into(), readers: vec![id] });
            self.items += 1;
            return;
        };
        if let Err(at) = tracked.readers.binary_search(&id) {
            tracked.readers.insert(at, id);
            self.items += 1;
        }
    }

    /// Takes a key out of the table and notes the invalidations.
    fn invalidate(&mut self, key: &[u8]) {
        let Some(tracked) = self.table.remove(key) else { return };
        self.items = self.items.saturating_sub(tracked.readers.len());
        for to in tracked.readers {
            let own = self.current == Some(to);
            let tells = |mode: &TrackingMode| !mode.broadcast && (!own || !mode.no_loop);
            if self.clients.get(&to).is_some_and(tells) {
                self.pending.push(PendingInvalidation {
                    to,
                    keys: Some(vec![key.into()]),
                    early: false,
                });
            }
        }
    }

    /// A script begins: what it reads is remembered under these keys, if its caller tracks.
    pub(crate) fn script_begins(&mut self, id: SessionId, keys: &[&[u8]]) {
        if !self.clients.is_empty() && self.clients.get(&id).is_some_and(TrackingMode::remembers) {
            self.script_keys = Some(keys.iter().map(|key| Box::from(*key)).collect());
        }
    }

    /// The script is over.
    pub(crate) fn script_ends(&mut self) {
        self.script_keys = None;
    }

    /// A command is over: `CLIENT CACHING` counts for the next one only, or for a transaction.
    pub(crate) fn command_ends(&mut self, session: &ClientSession, argv: &[&[u8]]) {
        self.current = None;
        if self.clients.is_empty() || session.multi.is_some() {
            return;
        }
        if argv.first().is_some_and(|name| !args::is(name, "CLIENT"))
            && let Some(mode) = self.clients.get_mut(&session.id)
        {
            mode.caching = false;
        }
    }
}

impl Core {
    /// A key changed, or was deleted, by this session or by nobody in particular.
    pub(crate) fn key_changed(&mut self, key: &[u8], by: Option<SessionId>) {
        let tracking = &mut self.tracking;
        for (prefix, state) in &mut tracking.prefixes {
            if key.starts_with(prefix) {
                state.changed.insert(key.into(), by);
            }
        }
        tracking.invalidate(key);
    }

    /// Returns true if any session tracks keys.
    pub(crate) fn is_tracking(&self) -> bool {
        !self.tracking.table.is_empty() || !self.tracking.prefixes.is_empty()
    }

    /// All keys of a database, or of all, are gone.
    pub(crate) fn all_keys_changed(&mut self) {
        let tracking = &mut self.tracking;
        let everybody = tracking.clients.keys().copied();
        let news = everybody.map(|to| PendingInvalidation { to, keys: None, early: false });
        tracking.pending.extend(news);
        let fresh = Table::with_seed(self.config.seed);
        let old = std::mem::replace(&mut tracking.table, fresh);
        tracking.items = 0;
        if !old.is_empty() {
            self.output.garbage.0.push(Box::new(old));
        }
    }

    /// Forgets keys above the bound, as if they had changed.
    pub(crate) fn limit_tracking(&mut self) {
        let most = self.tracking.most_keys;
        if most == 0 || self.tracking.table.len() <= most {
            self.tracking.overdue = 0;
            return;
        }
        for _ in 0..LIMIT_STEP * (self.tracking.overdue + 1) {
            let Some(chosen) = self.tracking.table.random(&mut self.rng) else { break };
            let key = chosen.key.clone();
            self.tracking.invalidate(&key);
            if self.tracking.table.len() <= most {
                self.tracking.overdue = 0;
                return;
            }
        }
        self.tracking.overdue += 1;
    }

    /// Marks the invalidations so far as older than the command about to run: they go before its
    /// reply.
    pub(crate) fn track_early(&mut self) {
        for pending in &mut self.tracking.pending {
            pending.early = true;
        }
    }

    /// Hands out what was noted before the running command began.
    pub(crate) fn tell_trackers_early(&mut self) {
        if self.tracking.pending.iter().any(|pending| pending.early) {
            let all = std::mem::take(&mut self.tracking.pending);
            let (early, rest) = all.into_iter().partition(|pending| pending.early);
            self.tracking.pending = rest;
            self.tell(early);
        }
    }

    /// Hands out all pending invalidations. To be called when no command runs.
    pub(crate) fn tell_trackers(&mut self) {
        if !self.tracking.pending.is_empty() {
            let all = std::mem::take(&mut self.tracking.pending);
            self.tell(all);
        }
        if !self.tracking.prefixes.is_empty() {
            self.broadcast_changes();
        }
    }

    fn broadcast_changes(&mut self) {
        let mut news = Vec::new();
        for state in self.tracking.prefixes.values_mut() {
            if state.changed.is_empty() {
                continue;
            }
            let changed = std::mem::take(&mut state.changed);
            for to in &state.listeners {
                let quiet = self.tracking.clients.get(to).is_some_and(|mode| mode.no_loop);
                let told = changed.iter().filter(|(_, by)| !(quiet && **by == Some(*to)));
                let keys: Vec<Box<[u8]>> = told.map(|(key, _)| key.clone()).collect();
                if !keys.is_empty() {
                    news.push(PendingInvalidation { to: *to, keys: Some(keys), early: false });
                }
            }
        }
        self.tell(news);
    }

    fn tell(&mut self, news: Vec<PendingInvalidation>) {
        for PendingInvalidation { to, keys, .. } in news {
            let Some(mode) = self.tracking.clients.get_mut(&to) else { continue };
            let redirect = (mode.redirect != 0).then_some(SessionId(mode.redirect));
            let receiver = redirect.unwrap_or(to);
            let Some(session) = self.sessions.get(&receiver).and_then(Option::as_ref) else {
                mode.broken = true;
                let told = self.sessions.get(&to).and_then(Option::as_ref);
                if told.is_some_and(|session| session.resp == 3) {
                    let gone = Reply::Int(i64::try_from(receiver.0).unwrap_or(i64::MAX));
                    let parts = vec![Reply::bulk("tracking-redir-broken"), gone];
                    self.output.deliveries.push((to, Reply::Push(parts)));
                }
                continue;
            };
            let mut parts = match () {
                () if session.resp == 3 => vec![Reply::bulk("invalidate")],
                () if redirect.is_some() && session.subscribed() => {
                    vec![Reply::bulk("message"), Reply::bulk(CHANNEL)]
                }
                // RESP2 has no messages outside of pub/sub.
                () => continue,
            };
            parts.push(keys.map_or(Reply::Nil, Reply::bulks));
            self.output.deliveries.push((receiver, Reply::Push(parts)));
        }
    }
}

impl Ctx<'_> {
    /// Remembers what a command has read, if its session tracks.
    pub(crate) fn track_reads(&mut self, command: &CommandSpec) {
        const SCRIPTS: [&str; 3] = ["eval_ro", "evalsha_ro", "fcall_ro"];
        let tracking = &mut self.core.tracking;
        if tracking.clients.is_empty()
            || command.flags & READONLY == 0
            || SCRIPTS.contains(&command.name)
        {
            return;
        }
        let id = self.session.id;
        if self.session.in_script {
            // All keys of the script, whichever it has read.
            for key in tracking.script_keys.take().into_iter().flatten() {
                tracking.remember(id, &key);
            }
        } else if command.flags & PUBSUB == 0
            && tracking.clients.get(&id).is_some_and(TrackingMode::remembers)
        {
            for at in keys::positions(command, self.argv).unwrap_or_default() {
                tracking.remember(id, self.argv.get(at).copied().unwrap_or_default());
            }
        }
    }
}

/// `CLIENT TRACKING`
pub(crate) fn tracking(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (mode, prefixes) = read_options(ctx)?;
    let id = ctx.session.id;
    match () {
        () if args::is(ctx.arg(2), "ON") => {
            let before = ctx.core.tracking.clients.get(&id);
            check_options(before, &mode, &prefixes)?;
            let prefixes = prefixes.into_iter().map(Box::from).collect();
            ctx.core.tracking.enable(id, TrackingMode { prefixes, ..mode });
        }
        () if args::is(ctx.arg(2), "OFF") => ctx.core.tracking.forget(id),
        () => return Err(SYNTAX),
    }
    Ok(Reply::Ok)
}

fn read_options<'a>(ctx: &Ctx<'a>) -> Result<(TrackingMode, Vec<&'a [u8]>), Error> {
    let mut mode = TrackingMode::default();
    let mut prefixes = Vec::new();
    let mut words = args::Args::from(ctx.argv, 3);
    while let Some(word) = words.next() {
        match () {
            () if args::is(word, "REDIRECT") => {
                let id = words.next().ok_or(SYNTAX)?;
                if mode.redirect != 0 {
                    return Err(Error::fixed(
                        "ERR A client can only redirect to a single other client",
                    ));
                }
                mode.redirect = redirection(ctx, id)?;
            }
            () if args::is(word, "BCAST") => mode.broadcast = true,
            () if args::is(word, "OPTIN") => mode.opt_in = true,
            () if args::is(word, "OPTOUT") => mode.opt_out = true,
            () if args::is(word, "NOLOOP") => mode.no_loop = true,
            () if args::is(word, "PREFIX") => prefixes.push(words.next().ok_or(SYNTAX)?),
            () => return Err(SYNTAX),
        }
    }
    Ok((mode, prefixes))
}

/// The number of a session that exists.
fn redirection(ctx: &Ctx<'_>, id: &[u8]) -> Result<u64, Error> {
    let id = u64::try_from(args::int(id)?).unwrap_or(0);
    let other = ctx.core.session(SessionId(id)).is_some_and(|session| !session.trusted);
    if !other && id != ctx.session.id.0 {
        return Err(Error::fixed("ERR The client ID you want redirect to does not exist"));
    }
    Ok(id)
}

/// May a session that tracks so far as `before` says be told to track like this?
fn check_options(
    before: Option<&TrackingMode>,
    mode: &TrackingMode,
    prefixes: &[&[u8]],
) -> Result<(), Error> {
    let was = |is: fn(&TrackingMode) -> bool| before.is_some_and(is);
    let wrong = match () {
        () if !mode.broadcast && !prefixes.is_empty() => {
            "ERR PREFIX option requires BCAST mode to be enabled"
        }
        () if before.is_some_and(|before| before.broadcast != mode.broadcast) => {
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, \
             and then re-enabling it with a different mode."
        }
        () if mode.broadcast && (mode.opt_in || mode.opt_out) => {
            "ERR OPTIN and OPTOUT are not compatible with BCAST"
        }
        () if mode.opt_in && mode.opt_out => {
            "ERR You can't specify both OPTIN mode and OPTOUT mode"
        }
        () if (mode.opt_in && was(|m| m.opt_out)) || (mode.opt_out && was(|m| m.opt_in)) => {
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, \
             and then re-enabling it with a different mode."
        }
        () => return check_overlap(before, prefixes),
    };
    Err(Error::fixed(wrong))
}

/// No key may have two of the prefixes of one session.
fn check_overlap(before: Option<&TrackingMode>, prefixes: &[&[u8]]) -> Result<(), Error> {
    let overlap = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
    let refuse = |one: &[u8], what: &str, other: &[u8]| {
        let parts: [&[u8]; 7] = [
            b"ERR Prefix '",
            crate::error::c_string(one),
            b"' overlaps with ",
            what.as_bytes(),
            b" prefix '",
            crate::error::c_string(other),
            b"'. Prefixes for a single client must not overlap.",
        ];
        Err(Error::new(parts.concat()))
    };
    for (n, prefix) in prefixes.iter().enumerate() {
        let old = before.into_iter().flat_map(|mode| &mode.prefixes);
        if let Some(other) = old.into_iter().find(|other| overlap(other, prefix)) {
            return refuse(prefix, "an existing", other);
        }
        if let Some(other) = prefixes.iter().skip(n + 1).find(|other| overlap(other, prefix)) {
            return refuse(prefix, "another provided", other);
        }
    }
    Ok(())
}

/// `CLIENT CACHING`
pub(crate) fn caching(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let word = ctx.arg(2);
    let Some(mode) = ctx.core.tracking.clients.get_mut(&ctx.session.id) else {
        return Err(Error::fixed(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with \
             OPTIN or OPTOUT mode enabled",
        ));
    };
    match () {
        () if args::is(word, "YES") && !mode.opt_in => Err(Error::fixed(
            "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
        )),
        () if args::is(word, "NO") && !mode.opt_out => Err(Error::fixed(
            "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
        )),
        () if args::is(word, "YES") || args::is(word, "NO") => {
            mode.caching = true;
            Ok(Reply::Ok)
        }
        () => Err(SYNTAX),
    }
}

/// `CLIENT GETREDIR`
pub(crate) fn getredir(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(Reply::Int(ctx.core.tracking.redirect(ctx.session.id)))
}

/// `CLIENT TRACKINGINFO`
pub(crate) fn trackinginfo(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let tracking = &ctx.core.tracking;
    let mode = tracking.clients.get(&ctx.session.id);
    let mut flags = vec![Reply::bulk(if mode.is_some() { "on" } else { "off" })];
    let mut prefixes = Vec::new();
    if let Some(mode) = mode {
        for (on, name) in [
            (mode.broadcast, "bcast"),
            (mode.opt_in, "optin"),
            (mode.opt_in && mode.caching, "caching-yes"),
            (mode.opt_out, "optout"),
            (mode.opt_out && mode.caching, "caching-no"),
            (mode.no_loop, "noloop"),
            (mode.broken, "broken_redirect"),
        ] {
            if on {
                flags.push(Reply::bulk(name));
            }
        }
        prefixes = mode.prefixes.iter().map(Reply::bulk).collect();
    }
    Ok(Reply::Map(vec![
        (Reply::bulk("flags"), Reply::Set(flags)),
        (Reply::bulk("redirect"), Reply::Int(tracking.redirect(ctx.session.id))),
        (Reply::bulk("prefixes"), Reply::Array(prefixes)),
    ]))
}
