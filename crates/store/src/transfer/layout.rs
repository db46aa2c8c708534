//! The names of keys on both sides of a copy.

use super::KeyMaps;
use crate::{Layout, key_map::Place};

impl Place {
    /// Returns every key that may hold something of it.
    pub(crate) fn candidates(&self, key: &[u8]) -> Vec<Vec<u8>> {
        match self {
            Self::Key(one) | Self::Merged(one) => vec![one.clone()],
            Self::Field { keys, .. } => {
                keys.iter().map(|(_, key)| key.clone()).chain([key.to_vec()]).collect()
            }
            Self::Every(keys) => keys.clone(),
            Self::Members(places) => places.iter().map(|place| place.key.clone()).collect(),
        }
    }

    /// Tells whether it can only be filled once other keys are there, or together with others.
    pub(crate) fn is_deferred(&self) -> bool {
        matches!(self, Self::Members(_) | Self::Merged(_))
    }

    /// The keys that one hash, string or other value goes to, of which `first` are the first
    /// commands.
    pub(crate) fn resolve(&self, key: &[u8], first: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
        match self {
            Self::Field { field, keys } => {
                let value = field_value(first, field.as_bytes());
                let found = keys.iter().find(|(scope, _)| Some(scope.as_slice()) == value);
                vec![found.map_or_else(|| key.to_vec(), |(_, key)| key.clone())]
            }
            _ => self.candidates(key),
        }
    }
}

fn field_value<'a>(commands: &'a [Vec<Vec<u8>>], field: &[u8]) -> Option<&'a [u8]> {
    let hashes = commands.iter().filter(|argv| argv.first().is_some_and(|name| name == b"HSET"));
    hashes
        .flat_map(|argv| argv.get(2..).unwrap_or_default().chunks_exact(2))
        .find_map(|pair| (pair.first()? == field).then(|| pair.get(1).map(Vec::as_slice))?)
}

/// Keys of one side and what they are called on the other.
#[derive(Clone, Debug)]
pub(crate) struct Spelling {
    maps: KeyMaps,
    scopes: Vec<Vec<Vec<u8>>>,
    /// The layout of the side that is read.
    from: Layout,
    /// The layout of the side that is written; none if both are the same.
    to: Option<Layout>,
}

impl Spelling {
    pub(crate) fn new(maps: &KeyMaps, from: Layout, to: Layout) -> Self {
        let scopes = vec![Vec::new(); maps.0.len()];
        Self { maps: maps.clone(), scopes, from, to: (from != to).then_some(to) }
    }

    /// The sets that must be read for [`Spelling::set_scopes`], by number.
    pub(crate) fn scope_indexes(&self) -> Vec<(usize, &'static str)> {
        let indexes = self.maps.0.iter().enumerate();
        indexes.filter_map(|(at, map)| Some((at, map.scope_index()?))).collect()
    }

    pub(crate) fn add_scopes(&mut self, at: usize, members: impl IntoIterator<Item = Vec<u8>>) {
        if let Some(scopes) = self.scopes.get_mut(at) {
            scopes.extend(members);
            scopes.sort();
            scopes.dedup();
        }
    }

    /// The place of a key, and whether a service knows it.
    pub(crate) fn place(&self, key: &[u8]) -> (Place, bool) {
        // Within one layout a key keeps its name; a service knows it if it has a place in the other.
        let other = other(self.from);
        let mut maps = self.maps.0.iter().zip(&self.scopes);
        let known = maps.find_map(|(map, scopes)| map.place(key, other, scopes));
        let is_known = known.is_some();
        let moved = known.filter(|_| self.to.is_some());
        (moved.unwrap_or_else(|| Place::Key(key.to_vec())), is_known)
    }

    /// The other way round: keys of the side that is read that may be this one of the side that is
    /// written.
    pub(crate) fn sources(&self, key: &[u8]) -> Vec<Vec<u8>> {
        if self.to.is_none() {
            return vec![key.to_vec()];
        }
        let mut known = self.maps.0.iter().zip(&self.scopes);
        match known.find_map(|(map, scopes)| map.place(key, self.from, scopes)) {
            Some(place) => place.candidates(key),
            None => vec![key.to_vec()],
        }
    }
}

/// Returns the layout that is not this one.
fn other(layout: Layout) -> Layout {
    match layout {
        Layout::Standalone => Layout::Cluster,
        Layout::Cluster => Layout::Standalone,
    }
}
