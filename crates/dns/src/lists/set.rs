//! A list, compiled: a table of names, and the rules that need more than a hash.
//!
//! Invariant: a set never changes; a list that changed is a new set, swapped in whole.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, BufReader, Read as _, Seek as _},
    net::IpAddr,
    path::Path,
};

use ipnet::IpNet;
use regex::{RegexSet, RegexSetBuilder};
use smallvec::SmallVec;

use super::{
    hash::{FLAG_BITS, HashSeed, SuffixHashes},
    index::{IndexBuilder, IndexFile, IndexLine, for_each_line},
    rewrite::Rewrite,
    rpz::{ZoneReader, is_zone},
    rule::{ListLine, Pattern, REGEX_MAX_COMPILED_BYTES, Rule, parse_line},
    table::{ALLOW_BELOW, ALLOW_EXACT, BLOCK_BELOW, BLOCK_EXACT, NameTable},
};
use crate::{DomainName, wire::rcode};

/// Rules of one list that need more than a hash; more are counted as unusable.
const COMPLEX_MAX: usize = 50_000;

/// Regular expressions of one list.
const REGEXES_MAX: usize = 2_000;

/// Expressions tried in one pass.
const REGEX_CHUNK: usize = 100;

/// Bytes at the beginning of a file by which a zone is told from a list.
const DETECT_BYTES: u64 = 256 << 10;

/// Unusable lines that are shown.
const UNUSABLE_SHOWN: usize = 20;

/// A client, as rules name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientFacts<'a> {
    pub(crate) address: IpAddr,
    pub(crate) id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) tags: &'a [String],
}

impl ClientFacts<'_> {
    /// Returns true if a word of `$client` means this client.
    pub(crate) fn is(&self, word: &str) -> bool {
        if (!self.id.is_empty() && self.id == word) || self.name.eq_ignore_ascii_case(word) {
            return !word.is_empty();
        }
        match word.parse::<IpAddr>() {
            Ok(address) => address == self.address,
            Err(_) => word.parse::<IpNet>().is_ok_and(|network| network.contains(&self.address)),
        }
    }

    fn has_tag(&self, word: &str) -> bool {
        self.tags.iter().any(|tag| tag == word)
    }
}

/// A name that is looked for.
#[derive(Debug)]
pub(crate) struct MatchName<'a> {
    pub(crate) text: String,
    pub(crate) hashes: SuffixHashes,
    pub(crate) qtype: u16,
    pub(crate) client: ClientFacts<'a>,
}

impl<'a> MatchName<'a> {
    pub(crate) fn new(
        seed: HashSeed,
        name: &DomainName,
        qtype: u16,
        client: ClientFacts<'a>,
    ) -> Self {
        Self { text: name.to_string(), hashes: seed.suffixes(name), qtype, client }
    }
}

/// Effect of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RuleEffect {
    Allow,
    Block,
    Rewrite(Rewrite),
}

/// A rule that matched.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuleMatch {
    pub(crate) effect: RuleEffect,
    pub(crate) is_important: bool,
    /// The rule is about some types only.
    pub(crate) is_typed: bool,
    pub(crate) place: RulePlace,
}

/// Place of a rule in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RulePlace {
    /// By the hash of its name.
    Hash(u64),
    /// By offset and number of its line.
    Line { offset: u32, line: u32 },
}

impl RuleMatch {
    fn simple(effect: RuleEffect, hash: u64) -> Self {
        let place = RulePlace::Hash(hash);
        Self { effect, is_important: false, is_typed: false, place }
    }

    /// Returns the precedence: an important exception, an important block, an exception, a block.
    fn rank(&self) -> u8 {
        let is_allow = self.effect == RuleEffect::Allow;
        match (self.is_important, is_allow) {
            (true, true) => 4,
            (true, false) => 3,
            (false, true) => 2,
            (false, false) => 1,
        }
    }

    /// Returns true if both block, and this one some types only.
    fn is_narrower(&self, other: &Self) -> bool {
        let both_block = self.effect == RuleEffect::Block && other.effect == RuleEffect::Block;
        both_block && self.is_typed && !other.is_typed
    }

    /// Returns what counts of two matches of the same precedence. Rewrites of the same names are one.
    fn join(self, other: Self, is_same: bool) -> Self {
        if self.is_narrower(&other) {
            return other;
        }
        match (self.effect, other.effect) {
            (RuleEffect::Rewrite(first), RuleEffect::Rewrite(second)) if is_same => {
                Self { effect: RuleEffect::Rewrite(first.merge(second)), ..self }
            }
            (RuleEffect::Block, effect @ RuleEffect::Rewrite(_)) => Self { effect, ..other },
            (effect, _) => Self { effect, ..self },
        }
    }

    /// Returns the one of two matches that counts.
    pub(crate) fn stronger(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        match (first, second) {
            (Some(first), Some(second))
                if second.rank() > first.rank()
                    || (second.rank() == first.rank() && first.is_narrower(&second)) =>
            {
                Some(second)
            }
            (None, second) => second,
            (first, _) => first,
        }
    }
}

/// Figures of a compiled list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ListFigures {
    /// Lines.
    pub lines: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// Rules in use.
    pub rules: u64,
    /// Lines that cannot be used.
    pub unusable: u64,
    /// Some of them: number, beginning of the line, reason.
    pub unusable_lines: Vec<(u64, String, String)>,
}

/// A compiled list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListSet {
    pub(super) table: NameTable,
    pub(super) complex: ComplexRules,
    /// Names in the table get NXDOMAIN whatever the group's mode is, as a policy zone says.
    pub(super) is_zone: bool,
    /// Rules of other sets that this one cancels; kept of rules that people entered.
    pub(crate) cancelled: CancelledRules,
    pub(crate) figures: ListFigures,
}

/// Rules that `$badfilter` cancels.
#[derive(Clone, Debug, Default)]
pub(crate) struct CancelledRules {
    /// Flags of names, by hash.
    names: HashMap<u64, u64>,
    rules: Vec<Rule>,
}

impl CancelledRules {
    fn new(badfilters: Vec<Rule>, seed: HashSeed) -> Self {
        let mut cancelled = Self::default();
        for rule in badfilters {
            match word_of(&rule, seed) {
                Some(word) => {
                    *cancelled.names.entry(word & !FLAG_BITS).or_default() |= word & FLAG_BITS;
                }
                None => cancelled.rules.push(rule),
            }
        }
        cancelled
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.rules.is_empty()
    }

    /// Returns the flags of a name that are left.
    fn left(&self, hash: u64, flags: u64) -> u64 {
        flags & !self.names.get(&hash).copied().unwrap_or(0)
    }

    fn has(&self, rule: &Rule) -> bool {
        self.rules.contains(rule)
    }
}

impl ListSet {
    /// Compiles a text. The index says in which line each name is.
    pub(super) fn build(text: &[u8], seed: HashSeed) -> (Self, Vec<IndexLine>) {
        let mut builder = SetBuilder::new(seed, is_zone(text));
        // Reading from memory does not fail.
        let read = for_each_line(text, |line, offset, number| builder.add(line, offset, number));
        builder.figures.bytes = read.unwrap_or_default();
        builder.finish()
    }

    /// Compiles the text of a file, line by line. The index and what it is made of are files in another
    /// folder, so that a long list takes no more memory than its table.
    pub(super) fn build_file(
        text: &Path,
        seed: HashSeed,
        scratch: &Path,
    ) -> io::Result<(Self, IndexFile)> {
        let mut file = File::open(text)?;
        let mut start = Vec::new();
        (&mut file).take(DETECT_BYTES).read_to_end(&mut start)?;
        file.rewind()?;
        let mut builder = SetBuilder::new(seed, is_zone(&start));
        drop(start);
        builder.index = IndexBuilder::on_disk(&scratch.with_extension("runs"))?;
        let lines = BufReader::with_capacity(64 << 10, file);
        let read = for_each_line(lines, |line, offset, number| builder.add(line, offset, number));
        builder.figures.bytes = read?;
        builder.finish_file(&scratch.with_extension("index"))
    }

    /// Compiles rules entered by people. Refuses the first that cannot be used, with its index.
    pub(crate) fn of_rules(rules: &[String], seed: HashSeed) -> Result<Self, (usize, String)> {
        let mut builder = SetBuilder::new(seed, false);
        for (index, rule) in rules.iter().enumerate() {
            if rule.contains(['\n', '\r']) {
                return Err((index, "is more than one line".to_owned()));
            }
            let unusable = builder.figures.unusable;
            builder.add(rule.as_bytes(), index, index + 1);
            if builder.figures.unusable > unusable {
                let lines = &builder.figures.unusable_lines;
                let reason = lines.last().map_or("cannot be used", |(.., reason)| reason);
                return Err((index, reason.to_owned()));
            }
        }
        Ok(builder.finish().0)
    }

    /// Makes a set of names that are blocked with all names below them.
    pub(crate) fn of_names(names: &[DomainName], seed: HashSeed) -> Self {
        let mut builder = SetBuilder::new(seed, false);
        for name in names {
            builder.put(Rule::suffix(name.clone(), false), 0, 0);
        }
        builder.finish().0
    }

    /// Returns true if a verdict may differ from client to client.
    pub(crate) fn depends_on_client(&self) -> bool {
        self.complex
            .rules
            .iter()
            .any(|rule| !rule.rule.clients.is_empty() || !rule.rule.tags.is_empty())
    }

    /// Returns the memory that the set takes, in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        8 * self.table.words().len() + self.complex.rules.len() * 256
    }

    /// Returns the rule that decides about a name.
    pub(crate) fn find(&self, name: &MatchName<'_>) -> Option<RuleMatch> {
        self.find_left(name, &[])
    }

    /// The same, without the rules that others cancel.
    pub(crate) fn find_left(
        &self,
        name: &MatchName<'_>,
        without: &[&CancelledRules],
    ) -> Option<RuleMatch> {
        if self.is_zone {
            return self.find_in_zone(name);
        }
        let found = self.find_simple(name, without);
        if self.complex.rules.is_empty() {
            return found;
        }
        RuleMatch::stronger(self.complex.find(name, without), found)
    }

    fn find_simple(&self, name: &MatchName<'_>, without: &[&CancelledRules]) -> Option<RuleMatch> {
        let mut blocked = None;
        for (depth, hash) in name.hashes.iter().enumerate() {
            let flags = match self.table.flags(*hash) {
                0 => continue,
                flags => without.iter().fold(flags, |flags, other| other.left(*hash, flags)),
            };
            let (allow, block) = match depth {
                0 => (ALLOW_EXACT, BLOCK_EXACT),
                _ => (ALLOW_BELOW, BLOCK_BELOW),
            };
            if flags & allow != 0 {
                return Some(RuleMatch::simple(RuleEffect::Allow, *hash));
            }
            if flags & block != 0 && blocked.is_none() {
                blocked = Some(RuleMatch::simple(RuleEffect::Block, *hash));
            }
        }
        blocked
    }

    /// Returns the rule of a policy zone: the closest trigger counts, the name itself before names above
    /// it, whatever each says.
    fn find_in_zone(&self, name: &MatchName<'_>) -> Option<RuleMatch> {
        name.hashes.iter().enumerate().find_map(|(depth, hash)| {
            let (allow, block) = match depth {
                0 => (ALLOW_EXACT, BLOCK_EXACT),
                _ => (ALLOW_BELOW, BLOCK_BELOW),
            };
            let flags = self.table.flags(*hash);
            if flags & allow != 0 {
                return Some(RuleMatch::simple(RuleEffect::Allow, *hash));
            }
            let denied = || {
                let effect = RuleEffect::Rewrite(Rewrite::Code(rcode::NXDOMAIN));
                (flags & block != 0).then(|| RuleMatch::simple(effect, *hash))
            };
            self.complex.find_at(*hash, depth, name).or_else(denied)
        })
    }

    /// Returns the rule that decides about an address in an answer, without those that others cancel.
    pub(crate) fn find_address(
        &self,
        address: IpAddr,
        name: &MatchName<'_>,
        without: &[&CancelledRules],
    ) -> Option<RuleMatch> {
        self.complex.find_address(address, name, self.is_zone, without)
    }
}

/// Compiles rules one by one.
struct SetBuilder {
    seed: HashSeed,
    zone: Option<ZoneReader>,
    index: IndexBuilder,
    complex: Vec<ComplexRule>,
    regexes: usize,
    badfilters: Vec<Rule>,
    figures: ListFigures,
}

impl SetBuilder {
    fn new(seed: HashSeed, is_zone: bool) -> Self {
        Self {
            seed,
            zone: is_zone.then(ZoneReader::default),
            index: IndexBuilder::default(),
            complex: Vec::new(),
            regexes: 0,
            badfilters: Vec::new(),
            figures: ListFigures::default(),
        }
    }

    fn add(&mut self, line: &[u8], offset: usize, number: usize) {
        self.figures.lines += 1;
        let parsed = match &mut self.zone {
            Some(zone) => zone.parse_line(line),
            None => parse_line(line),
        };
        match parsed {
            ListLine::Nothing => {}
            ListLine::Rules(rules) => {
                for rule in rules {
                    if let Err(reason) = self.try_put(rule, offset, number) {
                        self.refuse(line, number, reason);
                    }
                }
            }
            ListLine::Unusable(reason) => self.refuse(line, number, &reason),
        }
    }

    fn refuse(&mut self, line: &[u8], number: usize, reason: &str) {
        self.figures.unusable += 1;
        if self.figures.unusable_lines.len() < UNUSABLE_SHOWN {
            let shown: String = String::from_utf8_lossy(line).chars().take(100).collect();
            self.figures.unusable_lines.push((number as u64, shown, reason.to_owned()));
        }
    }

    fn try_put(&mut self, mut rule: Rule, offset: usize, line: usize) -> Result<(), &'static str> {
        if rule.is_badfilter {
            rule.is_badfilter = false;
            self.badfilters.push(rule);
            return Ok(());
        }
        if self.zone.is_some() && rule.rewrite == Some(Rewrite::Code(rcode::NXDOMAIN)) {
            let simple = Rule { rewrite: None, ..rule.clone() };
            if simple.is_simple() {
                rule = simple;
            }
        }
        if !rule.is_simple() {
            if self.complex.len() >= COMPLEX_MAX {
                return Err("too many rules of this kind");
            }
            if matches!(rule.pattern, Pattern::Regex(_)) {
                if self.regexes >= REGEXES_MAX {
                    return Err("too many regular expressions");
                }
                self.regexes += 1;
            }
        }
        self.put(rule, offset, line);
        Ok(())
    }

    fn put(&mut self, rule: Rule, offset: usize, line: usize) {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let line = u32::try_from(line).unwrap_or(u32::MAX);
        match word_of(&rule, self.seed) {
            Some(word) => self.index.push((word, offset, line)),
            None => self.complex.push(ComplexRule { rule, offset, line }),
        }
    }

    fn finish(mut self) -> (ListSet, Vec<IndexLine>) {
        let without = self.take_badfilters();
        let index = std::mem::take(&mut self.index).into_lines(&without);
        let table = NameTable::build(index.iter().map(|(word, ..)| *word));
        (self.into_set(table, index.len()), index)
    }

    fn finish_file(mut self, path: &Path) -> io::Result<(ListSet, IndexFile)> {
        let without = self.take_badfilters();
        let index = std::mem::take(&mut self.index).into_file(path, &without)?;
        let mut table = NameTable::with_names(index.names());
        index.for_each(|(word, ..)| table.put(word))?;
        Ok((self.into_set(table, index.lines()), index))
    }

    /// Takes complex rules out that another rule cancels; returns the words of simple ones.
    fn take_badfilters(&mut self) -> HashSet<u64> {
        let mut words = HashSet::new();
        for bad in &self.badfilters {
            match word_of(bad, self.seed) {
                Some(word) => _ = words.insert(word),
                None => self.complex.retain(|other| other.rule != *bad),
            }
        }
        words
    }

    fn into_set(mut self, table: NameTable, names: usize) -> ListSet {
        self.figures.rules = (names + self.complex.len()) as u64;
        ListSet {
            table,
            complex: ComplexRules::new(self.complex, self.seed),
            is_zone: self.zone.is_some(),
            cancelled: CancelledRules::new(self.badfilters, self.seed),
            figures: self.figures,
        }
    }
}

/// Returns the hash and the flags of a simple rule.
fn word_of(rule: &Rule, seed: HashSeed) -> Option<u64> {
    if !rule.is_simple() {
        return None;
    }
    let (name, exact, below) = match &rule.pattern {
        Pattern::Exact(name) => (name, true, false),
        Pattern::Below(name) => (name, false, true),
        Pattern::Suffix(name) => (name, true, true),
        _ => return None,
    };
    let (exact_flag, below_flag) = match rule.is_allow {
        true => (ALLOW_EXACT, ALLOW_BELOW),
        false => (BLOCK_EXACT, BLOCK_BELOW),
    };
    let flags = if exact { exact_flag } else { 0 } | if below { below_flag } else { 0 };
    Some(seed.whole(name) & !FLAG_BITS | flags)
}

/// Rules that need more than a hash, found by name where they have one.
#[derive(Clone, Debug, Default)]
pub(super) struct ComplexRules {
    pub(super) rules: Vec<ComplexRule>,
    by_name: HashMap<u64, SmallVec<[u32; 2]>>,
    globs: Vec<u32>,
    regexes: Vec<(RegexSet, Vec<u32>)>,
    networks: HashMap<IpNet, SmallVec<[u32; 1]>>,
    /// Lengths of the prefixes of networks, by family, the longest first.
    prefixes: Vec<(bool, u8)>,
}

#[derive(Clone, Debug)]
pub(super) struct ComplexRule {
    pub(super) rule: Rule,
    pub(super) offset: u32,
    pub(super) line: u32,
}

impl ComplexRules {
    pub(super) fn new(rules: Vec<ComplexRule>, seed: HashSeed) -> Self {
        let mut complex = Self { rules, ..Self::default() };
        let mut expressions = Vec::new();
        for (index, ComplexRule { rule, .. }) in complex.rules.iter().enumerate() {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            match &rule.pattern {
                Pattern::Exact(name) | Pattern::Below(name) | Pattern::Suffix(name) => {
                    complex.by_name.entry(seed.whole(name)).or_default().push(index);
                }
                Pattern::Glob { .. } => complex.globs.push(index),
                Pattern::Regex(text) => expressions.push((text.clone(), index)),
                Pattern::Addresses(network) => {
                    complex.networks.entry(*network).or_default().push(index);
                    let prefix = (network.addr().is_ipv4(), network.prefix_len());
                    if !complex.prefixes.contains(&prefix) {
                        complex.prefixes.push(prefix);
                    }
                }
            }
        }
        complex.prefixes.sort_unstable_by_key(|(_, prefix)| std::cmp::Reverse(*prefix));
        for chunk in expressions.chunks(REGEX_CHUNK) {
            let limit = REGEX_MAX_COMPILED_BYTES * chunk.len();
            let set = RegexSetBuilder::new(chunk.iter().map(|(text, _)| text))
                .case_insensitive(true)
                .size_limit(limit)
                .dfa_size_limit(4 * REGEX_MAX_COMPILED_BYTES)
                .build();
            // Each was tried on its own before, so together they fit their limits.
            if let Ok(set) = set {
                complex.regexes.push((set, chunk.iter().map(|(_, index)| *index).collect()));
            }
        }
        complex
    }

    fn find(&self, name: &MatchName<'_>, without: &[&CancelledRules]) -> Option<RuleMatch> {
        let mut found: SmallVec<[&ComplexRule; 4]> = SmallVec::new();
        let mut collect = |index: u32, fits: &dyn Fn(&Pattern) -> bool| {
            if let Some(rule) = self.rules.get(index as usize)
                && fits(&rule.rule.pattern)
                && applies(&rule.rule, name)
                && !without.iter().any(|other| other.has(&rule.rule))
            {
                found.push(rule);
            }
        };
        for (depth, hash) in name.hashes.iter().enumerate() {
            for index in self.by_name.get(hash).into_iter().flatten() {
                collect(*index, &|pattern| fits_depth(pattern, depth));
            }
        }
        for index in &self.globs {
            collect(*index, &|pattern| match pattern {
                Pattern::Glob { text, any_label } => glob_fits(text, *any_label, &name.text),
                _ => false,
            });
        }
        for (set, indexes) in &self.regexes {
            // Most names match none, and to find that out allocates nothing.
            if !set.is_match(&name.text) {
                continue;
            }
            for at in set.matches(&name.text) {
                if let Some(index) = indexes.get(at) {
                    collect(*index, &|_| true);
                }
            }
        }
        strongest(&found)
    }

    /// Returns the rule that counts among those of one name, which is so many labels above.
    fn find_at(&self, hash: u64, depth: usize, name: &MatchName<'_>) -> Option<RuleMatch> {
        let rules = self.by_name.get(&hash).into_iter().flatten();
        let rules = rules.filter_map(|index| self.rules.get(*index as usize));
        let found: SmallVec<[&ComplexRule; 4]> = rules
            .filter(|rule| fits_depth(&rule.rule.pattern, depth) && applies(&rule.rule, name))
            .collect();
        strongest(&found)
    }

    fn find_address(
        &self,
        address: IpAddr,
        name: &MatchName<'_>,
        is_zone: bool,
        without: &[&CancelledRules],
    ) -> Option<RuleMatch> {
        let mut found: SmallVec<[&ComplexRule; 4]> = SmallVec::new();
        for (is_v4, prefix) in &self.prefixes {
            if *is_v4 != address.is_ipv4() {
                continue;
            }
            let Ok(network) = IpNet::new(address, *prefix) else { continue };
            for index in self.networks.get(&network.trunc()).into_iter().flatten() {
                let rule = self.rules.get(*index as usize);
                let is_left = |rule: &Rule| !without.iter().any(|other| other.has(rule));
                found.extend(rule.filter(|rule| applies(&rule.rule, name) && is_left(&rule.rule)));
            }
            // In a policy zone the longest prefix counts, whatever the others say.
            if is_zone && !found.is_empty() {
                break;
            }
        }
        strongest(&found)
    }
}

/// Returns true if a pattern of a name is about names so many labels below it.
fn fits_depth(pattern: &Pattern, depth: usize) -> bool {
    match pattern {
        Pattern::Exact(_) => depth == 0,
        Pattern::Below(_) => depth > 0,
        _ => true,
    }
}

/// Returns true if the modifiers of a rule do not stand against it.
fn applies(rule: &Rule, name: &MatchName<'_>) -> bool {
    let is_below = |except: &DomainName| {
        let except = except.to_string();
        name.text.strip_suffix(&except).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    rule.types.fits(name.qtype)
        && rule.clients.fits(|word| name.client.is(word))
        && rule.tags.fits(|word| name.client.has_tag(word))
        && !rule.except.iter().any(is_below)
}

/// Returns the match that counts, of the closest name first. An exception from rewrites takes rewrites
/// out, and nothing else; a rewrite goes before a block.
fn strongest(found: &[&ComplexRule]) -> Option<RuleMatch> {
    let no_rewrites = found
        .iter()
        .any(|rule| rule.rule.is_allow && rule.rule.rewrite.as_ref().is_some_and(Rewrite::is_none));
    let mut best: Option<(RuleMatch, &Pattern)> = None;
    for ComplexRule { rule, offset, line } in found {
        let effect = match (&rule.rewrite, rule.is_allow) {
            (Some(_), true) => continue,
            (Some(_), false) if no_rewrites => continue,
            (Some(rewrite), false) => RuleEffect::Rewrite(rewrite.clone()),
            (None, true) => RuleEffect::Allow,
            (None, false) => RuleEffect::Block,
        };
        let place = RulePlace::Line { offset: *offset, line: *line };
        let is_typed = !rule.types.is_empty();
        let matched = RuleMatch { effect, is_important: rule.is_important, is_typed, place };
        best = Some(match best {
            Some((known, pattern)) if known.rank() == matched.rank() => {
                let joined = known.join(matched, *pattern == rule.pattern);
                let pattern = if joined.place == place { &rule.pattern } else { pattern };
                (joined, pattern)
            }
            Some((known, pattern)) if known.rank() > matched.rank() => (known, pattern),
            _ => (matched, &rule.pattern),
        });
    }
    best.map(|(best, _)| best)
}

/// Matches a text with `*` against a whole name, or against its end from any label on.
pub(super) fn glob_fits(glob: &str, any_label: bool, name: &str) -> bool {
    if glob_equals(glob.as_bytes(), name.as_bytes()) {
        return true;
    }
    any_label
        && name
            .match_indices('.')
            .any(|(dot, _)| glob_equals(glob.as_bytes(), &name.as_bytes()[dot + 1..]))
}

/// Linear in the product of the lengths at worst: the last star takes one byte more each time.
fn glob_equals(glob: &[u8], text: &[u8]) -> bool {
    let (mut at, mut glob_at) = (0, 0);
    let mut star = None;
    while at < text.len() {
        match glob.get(glob_at) {
            Some(b'*') => {
                star = Some((glob_at, at));
                glob_at += 1;
            }
            Some(byte) if *byte == text[at] => {
                glob_at += 1;
                at += 1;
            }
            _ => match star {
                Some((star_at, taken)) => {
                    star = Some((star_at, taken + 1));
                    (glob_at, at) = (star_at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    glob.get(glob_at..).is_some_and(|rest| rest.iter().all(|byte| *byte == b'*'))
}

#[cfg(test)]
mod tests;
