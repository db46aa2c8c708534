//! Which lanes a call to a script needs, each named once.
//!
//! Scripts that put jobs in line take the lanes first, as two keys and four arguments each, and
//! then name a lane by its number.

use std::collections::HashMap;

use store::{Key, script::Arg};

use crate::{
    Job, Priority,
    keys::Keys,
    route::{Route, RouteId},
};

/// A route by its name, and everything a script wants to know of it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) route: RouteId,
    pub(crate) text: String,
    pub(crate) server: String,
    pub(crate) priority: Priority,
}

impl Place {
    /// Where a job waits.
    pub(crate) fn of(job: &Job) -> Self {
        let route = Route::of(job);
        let (name, text) = route.name();
        let server = route.server().unwrap_or_default().to_owned();
        Self { route: name, text, server, priority: job.priority }
    }
}

/// The lanes of one call.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    known: HashMap<(RouteId, Priority), usize>,
    keys: Vec<Key>,
    args: Vec<Arg<'static>>,
}

impl Lanes {
    /// The number of a lane in this call.
    pub(crate) fn number(&mut self, keys: &Keys, place: &Place) -> usize {
        let next = self.known.len() + 1;
        *self.known.entry((place.route, place.priority)).or_insert_with(|| {
            self.keys.push(match place.server.as_str() {
                "" => keys.routes(),
                server => keys.routes_of(server),
            });
            self.keys.push(keys.lane(&place.route, place.priority.get()));
            self.args.extend([
                Arg::Text(place.route.as_str().to_owned()),
                Arg::Number(place.priority.get().into()),
                place.text.clone().into(),
                place.server.clone().into(),
            ]);
            next
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// The keys and arguments of the lanes, to be followed by those of the jobs.
    pub(crate) fn into_parts<'a>(self) -> (Vec<Key>, Vec<Arg<'a>>) {
        (self.keys, self.args)
    }
}
