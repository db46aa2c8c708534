//! Lists of names: fetched, compiled, kept on disk, swapped whole.
//!
//! Invariants: a list that cannot be fetched, read or believed leaves its last good copy in use; a set
//! is swapped in whole; at start compiled sets are read from disk and sources are asked later, so that
//! filtering does not wait for the network. A list that lost more than half of its rules since the
//! last time waits for somebody to confirm it.
//!
//! Read on in `lists/rule.rs` (lines), `lists/rpz.rs` (zones), `lists/set.rs` (a compiled list),
//! `lists/hash.rs` and `lists/table.rs` (names), `lists/index.rs` (their lines), `lists/disk.rs`, `lists/source.rs` (fetching),
//! `lists/services.rs` and `lists/safe_search.rs` (what is built in).

mod disk;
mod hash;
mod index;
mod rewrite;
mod rpz;
mod rule;
pub mod safe_search;
pub mod services;
mod set;
mod source;
mod table;

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use store::Millis;
use tokio::sync::watch;

use self::disk::{ListFolder, SourceState, draw_seed};
pub use self::set::ListFigures;
pub(crate) use self::{
    hash::HashSeed,
    rewrite::Rewrite,
    rule::parse_type,
    set::{CancelledRules, ClientFacts, ListSet, MatchName, RuleEffect, RuleMatch, RulePlace},
    source::is_private,
};
use crate::{
    Error,
    policy::{ListRefreshPolicy, ListSource},
    remote::Fetch,
    upstream::Bootstrap,
};

/// The list that is part of the program.
const EMBEDDED_DEFAULT: &str = include_str!("../data/default-list.txt");

/// Fewest rules of a list for which a loss of more than half is asked about.
const SHRINK_GUARD_MIN_RULES: u64 = 100;

/// Time until a source that failed is asked again; it doubles up to the usual time.
const RETRY_AFTER: Duration = Duration::from_secs(600);

/// Compiled lists by id.
pub(crate) type ListSets = HashMap<String, Arc<ListSet>>;

/// State of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListStatus {
    /// Id.
    pub id: String,
    /// True if the list is compiled and in use.
    pub is_loaded: bool,
    /// Figures of the copy in use.
    pub figures: ListFigures,
    /// Memory it takes, in bytes.
    pub memory_bytes: u64,
    /// Last time the source confirmed or gave the copy in use.
    pub fetched_at: Option<Millis>,
    /// Last time its text changed.
    pub changed_at: Option<Millis>,
    /// Last error, if the last attempt failed.
    pub error: Option<String>,
    /// Rules of a new copy that waits for confirmation, because it lost more than half.
    pub shrunk_to: Option<u64>,
}

/// Result of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListRefresh {
    /// The source has nothing new.
    Unchanged,
    /// A new copy is in use.
    Replaced {
        /// Rules before.
        rules_before: u64,
        /// Rules now.
        rules: u64,
    },
    /// The new copy has less than half of the rules and waits for confirmation.
    NeedsConfirmation {
        /// Rules in use.
        rules_before: u64,
        /// Rules of the new copy.
        rules: u64,
    },
}

/// Lists. A cheap clone.
#[derive(Clone, Debug)]
pub struct Lists(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: Option<ListFolder>,
    seed: HashSeed,
    fetch: Option<Arc<dyn Fetch>>,
    sets: RwLock<Arc<ListSets>>,
    states: Mutex<HashMap<String, ListState>>,
    /// Counts swaps, for those who compile sets into something else.
    changes: watch::Sender<u64>,
}

#[derive(Clone, Debug, Default)]
struct ListState {
    source: SourceState,
    error: Option<String>,
    shrunk_to: Option<u64>,
    failures: u32,
    /// Not asked again before this.
    retry_at: Option<Millis>,
}

impl Lists {
    /// Opens the lists of a folder; without one they are kept in memory only.
    pub(crate) fn open(
        folder: Option<&Path>,
        fetch: Option<Arc<dyn Fetch>>,
    ) -> Result<Self, Error> {
        let invalid = |error: std::io::Error| Error::Invalid {
            field: "lists folder",
            message: format!("cannot be used: {error}; name a folder that can be written to"),
        };
        let folder = folder.map(ListFolder::open).transpose().map_err(invalid)?;
        let seed = match &folder {
            Some(folder) => folder.seed().map_err(invalid)?,
            None => draw_seed(),
        };
        Ok(Self(Arc::new(Inner {
            folder,
            seed,
            fetch,
            sets: RwLock::default(),
            states: Mutex::default(),
            changes: watch::Sender::new(0),
        })))
    }

    pub(crate) fn seed(&self) -> HashSeed {
        self.0.seed
    }

    pub(crate) fn sets(&self) -> Arc<ListSets> {
        Arc::clone(&self.0.sets.read())
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Brings the lists of a policy into memory: from disk, or built in; removes the others. Blocks on
    /// files.
    pub(crate) fn load(&self, sources: &[ListSource]) {
        let wanted: HashSet<&str> = sources.iter().map(|source| source.id.as_str()).collect();
        let before = self.sets();
        let mut sets = ListSets::new();
        for source in sources {
            let is_same = self
                .0
                .states
                .lock()
                .get(&source.id)
                .is_some_and(|state| state.source.url == source.url);
            if let Some(set) = before.get(&source.id)
                && is_same
            {
                sets.insert(source.id.clone(), Arc::clone(set));
                continue;
            }
            if let Some((set, state)) = self.load_one(source) {
                sets.insert(source.id.clone(), set);
                let state = ListState { source: state, ..ListState::default() };
                self.0.states.lock().insert(source.id.clone(), state);
            } else {
                self.0.states.lock().remove(&source.id);
            }
        }
        for id in before.keys().filter(|id| !wanted.contains(id.as_str())) {
            if let Some(folder) = &self.0.folder {
                folder.remove(id);
            }
            self.0.states.lock().remove(id);
        }
        self.swap(sets);
    }

    fn load_one(&self, source: &ListSource) -> Option<(Arc<ListSet>, SourceState)> {
        if source.url == "embedded:default" {
            let (set, _) = ListSet::build(EMBEDDED_DEFAULT.as_bytes(), self.0.seed);
            let state = SourceState { url: source.url.clone(), ..SourceState::default() };
            return Some((Arc::new(set), state));
        }
        let (set, state) = self.0.folder.as_ref()?.load(&source.id, self.0.seed)?;
        // Files of another source that had this id are not this list.
        (state.url == source.url).then_some((set, state))
    }

    fn swap(&self, sets: ListSets) {
        *self.0.sets.write() = Arc::new(sets);
        self.0.changes.send_modify(|count| *count += 1);
    }

    /// Returns the state of the lists of a policy.
    pub fn status(&self, sources: &[ListSource]) -> Vec<ListStatus> {
        let sets = self.sets();
        let states = self.0.states.lock();
        let status = sources.iter().map(|source| {
            let set = sets.get(&source.id);
            let state = states.get(&source.id).cloned().unwrap_or_default();
            let time = |ms: i64| (ms > 0).then_some(Millis(ms));
            ListStatus {
                id: source.id.clone(),
                is_loaded: set.is_some(),
                figures: set.map(|set| set.figures.clone()).unwrap_or_default(),
                memory_bytes: set.map_or(0, |set| set.size_bytes() as u64),
                fetched_at: time(state.source.fetched_at),
                changed_at: time(state.source.changed_at),
                error: state.error,
                shrunk_to: state.shrunk_to,
            }
        });
        status.collect()
    }

    /// Returns, by list, the rules that no other list in use has. Only names count: rules with conditions
    /// and patterns are left out. Takes as long as a look at every name of every list.
    pub fn count_unique(&self, sources: &[ListSource]) -> HashMap<String, u64> {
        let sets = self.sets();
        let used: Vec<(&ListSource, &Arc<ListSet>)> = sources
            .iter()
            .filter(|source| source.enabled)
            .filter_map(|source| Some((source, sets.get(&source.id)?)))
            .collect();
        let count = |(source, set): &(&ListSource, &Arc<ListSet>)| {
            let others: Vec<&Arc<ListSet>> = used
                .iter()
                .filter(|(other, _)| other.id != source.id)
                .map(|(_, set)| *set)
                .collect();
            let names = set.table.words().iter().filter(|word| **word != 0);
            let unique = names.filter(|word| {
                let hash = **word & !hash::FLAG_BITS;
                others.iter().all(|other| other.table.flags(hash) == 0)
            });
            (source.id.clone(), unique.count() as u64)
        };
        used.iter().map(count).collect()
    }

    /// Fetches and compiles a list without putting it to use.
    pub(crate) async fn fetch_set(
        &self,
        source: &ListSource,
        options: &ListRefreshPolicy,
        bootstrap: &Bootstrap,
    ) -> Result<ListSet, String> {
        let seed = self.0.seed;
        if source.url == "embedded:default" {
            return Ok(ListSet::build(EMBEDDED_DEFAULT.as_bytes(), seed).0);
        }
        // In memory: nothing is written that a refresh of the same list could be writing.
        let (private, validators) = (options.allow_private, Default::default());
        let fetched = source::fetch(&self.0, source, private, bootstrap, validators, None).await?;
        let (text, _) = fetched.ok_or("the source has no text")?;
        let compiled = tokio::task::spawn_blocking(move || ListSet::build(&text, seed).0).await;
        let set = compiled.map_err(|_| "the list could not be compiled".to_owned())?;
        match set.figures.rules {
            0 => Err("the source has no rules; is it a list?".to_owned()),
            _ => Ok(set),
        }
    }

    /// Returns lists with these sets beside those in use, in memory only.
    pub(crate) fn with_sets(&self, extra: ListSets) -> Self {
        let mut sets = (*self.sets()).clone();
        sets.extend(extra);
        Self(Arc::new(Inner {
            folder: None,
            seed: self.0.seed,
            fetch: self.0.fetch.clone(),
            sets: RwLock::new(Arc::new(sets)),
            states: Mutex::default(),
            changes: watch::Sender::new(0),
        }))
    }

    /// Returns number and text of the line that a rule of a list is in.
    pub(crate) fn line(&self, id: &str, place: RulePlace) -> Option<(u32, String)> {
        let state = self.0.states.lock().get(id).cloned()?;
        if state.source.url == "embedded:default" {
            return line_of_text(EMBEDDED_DEFAULT, place, self.0.seed);
        }
        self.0.folder.as_ref()?.line(id, place)
    }

    /// Returns the lists that are due: not loaded, or not asked for so long. Failed ones come back
    /// sooner.
    pub(crate) fn due(
        &self,
        sources: &[ListSource],
        options: &ListRefreshPolicy,
        now: Millis,
    ) -> Vec<ListSource> {
        let every = Duration::from_secs(u64::from(options.every_hours) * 3_600);
        let (states, sets) = (self.0.states.lock(), self.sets());
        let is_due = |source: &&ListSource| {
            if !source.enabled || source.url == "embedded:default" {
                return false;
            }
            match states.get(&source.id) {
                None => true,
                Some(state) => match state.retry_at {
                    Some(retry_at) => now >= retry_at,
                    None => {
                        !sets.contains_key(&source.id) || now >= state.source.fetched_at() + every
                    }
                },
            }
        };
        sources.iter().filter(is_due).cloned().collect()
    }

    /// Fetches a list and puts it to use. One that lost more than half of its rules is put to use only
    /// if that is confirmed.
    pub(crate) async fn refresh(
        &self,
        source: &ListSource,
        options: &ListRefreshPolicy,
        bootstrap: &Bootstrap,
        confirmed: bool,
        now: Millis,
    ) -> Result<ListRefresh, Error> {
        let result = self.try_refresh(source, options, bootstrap, confirmed, now).await;
        let every = Duration::from_secs(u64::from(options.every_hours) * 3_600);
        let mut states = self.0.states.lock();
        let state = states.entry(source.id.clone()).or_default();
        match &result {
            Ok(ListRefresh::NeedsConfirmation { rules, .. }) => {
                state.shrunk_to = Some(*rules);
                state.retry_at = Some(now + every);
                state.error = None;
            }
            Ok(_) => {
                state.error = None;
                state.shrunk_to = None;
                state.failures = 0;
                state.retry_at = None;
            }
            Err(reason) => {
                state.error = Some(reason.clone());
                let wait = (RETRY_AFTER * (1 << state.failures.min(7))).min(every);
                state.failures += 1;
                state.retry_at = Some(now + wait);
                tracing::warn!(list = source.id, %reason, "a list was not refreshed");
            }
        }
        drop(states);
        result.map_err(|message| Error::Invalid { field: "list", message })
    }

    async fn try_refresh(
        &self,
        source: &ListSource,
        options: &ListRefreshPolicy,
        bootstrap: &Bootstrap,
        confirmed: bool,
        now: Millis,
    ) -> Result<ListRefresh, String> {
        let known = self.0.states.lock().get(&source.id).cloned().unwrap_or_default();
        let validators = match self.sets().contains_key(&source.id) && !confirmed {
            true => known.source.validators.clone(),
            false => Default::default(),
        };
        let part = self.0.folder.as_ref().map(|folder| folder.partial_path(&source.id));
        let private = options.allow_private;
        let fetched =
            source::fetch(&self.0, source, private, bootstrap, validators, part.as_deref()).await?;
        let Some((text, validators)) = fetched else {
            self.note_unchanged(source, now);
            return Ok(ListRefresh::Unchanged);
        };
        let (lists, source) = (self.clone(), source.clone());
        let compile = move || lists.compile(&source, &text, validators, confirmed, now);
        let compiled = tokio::task::spawn_blocking(compile).await;
        compiled.map_err(|_| "the list could not be compiled".to_owned())?
    }

    fn note_unchanged(&self, source: &ListSource, now: Millis) {
        let mut states = self.0.states.lock();
        let state = states.entry(source.id.clone()).or_default();
        state.source.fetched_at = now.0;
        if let Some(folder) = &self.0.folder
            && let Err(error) = folder.save_source(&source.id, &state.source)
        {
            tracing::warn!(list = source.id, %error, "the time of a fetch is not kept");
        }
    }

    /// Compiles a list and puts it to use. Its text is in memory, or else in the folder.
    fn compile(
        &self,
        source: &ListSource,
        text: &[u8],
        validators: crate::remote::Validators,
        confirmed: bool,
        now: Millis,
    ) -> Result<ListRefresh, String> {
        let no_room = |error: std::io::Error| {
            format!("the list cannot be written to disk: {error}; make room for it")
        };
        let (set, draft) = match &self.0.folder {
            Some(folder) => {
                let draft = folder.compile(&source.id, self.0.seed).map_err(no_room)?;
                (draft.set.clone(), Some((folder, draft)))
            }
            None => (Arc::new(ListSet::build(text, self.0.seed).0), None),
        };
        let rules = set.figures.rules;
        let rules_before = self.sets().get(&source.id).map_or(0, |set| set.figures.rules);
        let is_shrunk = rules_before >= SHRINK_GUARD_MIN_RULES && rules * 2 < rules_before;
        if let Some((folder, _)) = &draft
            && (rules == 0 || (is_shrunk && !confirmed))
        {
            folder.remove_partial(&source.id);
        }
        if rules == 0 {
            return Err("the source has no rules; is it a list?".to_owned());
        }
        if is_shrunk && !confirmed {
            return Ok(ListRefresh::NeedsConfirmation { rules_before, rules });
        }
        let state = SourceState {
            url: source.url.clone(),
            validators,
            fetched_at: now.0,
            changed_at: now.0,
        };
        if let Some((folder, draft)) = draft {
            folder.save(&source.id, draft, &state, self.0.seed).map_err(no_room)?;
        }
        self.0.states.lock().entry(source.id.clone()).or_default().source = state;
        let mut sets = (*self.sets()).clone();
        sets.insert(source.id.clone(), set);
        self.swap(sets);
        Ok(ListRefresh::Replaced { rules_before, rules })
    }
}

/// Finds the line of a rule by reading a text again.
pub(crate) fn line_of_text(text: &str, place: RulePlace, seed: HashSeed) -> Option<(u32, String)> {
    let line_of = |number: u32| {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        Some((number, text.lines().nth(index)?.to_owned()))
    };
    match place {
        RulePlace::Line { line, .. } => line_of(line),
        RulePlace::Hash(hash) => {
            let (_, index) = ListSet::build(text.as_bytes(), seed);
            let found = index.iter().find(|(word, ..)| word & !hash::FLAG_BITS == hash)?;
            line_of(found.2)
        }
    }
}
