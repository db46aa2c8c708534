//! GEOADD GEODIST GEOHASH GEOPOS GEORADIUS GEOSEARCH: sorted sets whose scores are places.
//!
//! The encoding of a point as a score is in `geo/cell.rs`.

mod cell;

use hashbrown::HashMap;

use crate::args::{self, Args};
use crate::command::{CommandRow, Ctx, DENYOOM, MOVABLE_KEYS, READONLY, WRITE};
use crate::error::{Error, SYNTAX};
use crate::notify::Class;
use crate::t_set::store_result;
use crate::t_zset::{ScoreRange, Zset, ZsetLimits, zadd};
use crate::value::Value;
use crate::{Reply, number};
use cell::{GeoPoint, GeoShape};

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("geoadd", -5, WRITE | DENYOOM, geoadd).keys(1, 1, 1),
    CommandRow::new("geodist", -4, READONLY, geodist).keys(1, 1, 1),
    CommandRow::new("geohash", -2, READONLY, geohash).keys(1, 1, 1),
    CommandRow::new("geopos", -2, READONLY, geopos).keys(1, 1, 1),
    CommandRow::new("georadius", -6, WRITE | DENYOOM | MOVABLE_KEYS, georadius).keys(1, 1, 1),
    CommandRow::new("georadius_ro", -6, READONLY, georadius_ro).keys(1, 1, 1),
    CommandRow::new("georadiusbymember", -5, WRITE | DENYOOM | MOVABLE_KEYS, georadiusbymember)
        .keys(1, 1, 1),
    CommandRow::new("georadiusbymember_ro", -5, READONLY, georadiusbymember_ro).keys(1, 1, 1),
    CommandRow::new("geosearch", -7, READONLY, geosearch).keys(1, 1, 1),
    CommandRow::new("geosearchstore", -8, WRITE | DENYOOM, geosearchstore).keys(1, 2, 1),
];

const NO_SUCH_MEMBER: Error = Error::fixed("ERR could not decode requested zset member");

/// A longitude and a latitude.
fn place(longitude: &[u8], latitude: &[u8]) -> Result<GeoPoint, Error> {
    let (longitude, latitude) = (args::float(longitude)?, args::float(latitude)?);
    GeoPoint::new(longitude, latitude).ok_or_else(|| {
        Error::new(format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}"))
    })
}

/// Returns the length of a unit in meters.
fn unit(word: &[u8]) -> Result<f64, Error> {
    match () {
        () if args::is(word, "M") => Ok(1.0),
        () if args::is(word, "KM") => Ok(1000.0),
        () if args::is(word, "FT") => Ok(0.3048),
        () if args::is(word, "MI") => Ok(1609.34),
        () => Err(Error::fixed("ERR unsupported unit provided. please use M, KM, FT, MI")),
    }
}

/// A radius and its unit: the shape, and meters in the unit.
fn circle(radius: &[u8], word: &[u8]) -> Result<(GeoShape, f64), Error> {
    let radius = number::parse_f64(radius).ok_or(Error::fixed("ERR need numeric radius"))?;
    if radius < 0.0 {
        return Err(Error::fixed("ERR radius cannot be negative"));
    }
    let unit = unit(word)?;
    Ok((GeoShape::Circle(radius * unit), unit))
}

/// Two sides and their unit.
fn rectangle(width: &[u8], height: &[u8], word: &[u8]) -> Result<(GeoShape, f64), Error> {
    let width = number::parse_f64(width).ok_or(Error::fixed("ERR need numeric width"))?;
    let height = number::parse_f64(height).ok_or(Error::fixed("ERR need numeric height"))?;
    if width < 0.0 || height < 0.0 {
        return Err(Error::fixed("ERR height or width cannot be negative"));
    }
    let unit = unit(word)?;
    Ok((GeoShape::Box { width: width * unit, height: height * unit }, unit))
}

/// A distance with four digits after the point.
fn distance(meters: f64) -> Reply {
    let scaled = (meters * 10_000.0).round_ties_even() as i64;
    let sign = if scaled < 0 { "-" } else { "" };
    let n = scaled.unsigned_abs();
    Reply::bulk(format!("{sign}{}.{:04}", n / 10_000, n % 10_000))
}

/// Longitude and latitude, with as many digits as there are up to 17.
fn coordinates(place: GeoPoint) -> Reply {
    let number = |n: f64| {
        let text = format!("{n:.17}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        Reply::Decimal(if text == "-0" { b"0".to_vec() } else { text.as_bytes().to_vec() })
    };
    Reply::Array(vec![number(place.longitude), number(place.latitude)])
}

/// GEOADD is ZADD with places for scores.
fn geoadd(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (mut at, mut nx, mut xx) = (2, false, false);
    while let Some(word) = ctx.argv.get(at) {
        nx |= args::is(word, "NX");
        xx |= args::is(word, "XX");
        if !["NX", "XX", "CH"].iter().any(|option| args::is(word, option)) {
            break;
        }
        at += 1;
    }
    let (options, members) = ctx.argv.split_at_checked(at).unwrap_or((ctx.argv, &[]));
    let (members, rest) = members.as_chunks::<3>();
    if !rest.is_empty() || (nx && xx) {
        return Err(SYNTAX);
    }
    let mut scores = Vec::with_capacity(members.len());
    for [longitude, latitude, _] in members {
        scores.push(place(longitude, latitude)?.to_score().to_string());
    }
    let mut argv = options.to_vec();
    for ([.., member], score) in members.iter().zip(&scores) {
        argv.extend([score.as_bytes(), *member]);
    }
    zadd(&mut Ctx { core: ctx.core, session: ctx.session, now: ctx.now, argv: &argv })
}

fn geodist(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let unit = match ctx.argv.get(4..) {
        None | Some([]) => 1.0,
        Some([word]) => unit(word)?,
        Some(_) => return Err(SYNTAX),
    };
    let (key, a, b) = (ctx.arg(1), ctx.arg(2), ctx.arg(3));
    let Some(zset) = ctx.read::<Zset>(key)? else { return Ok(Reply::Nil) };
    let (Some(a), Some(b)) = (zset.score(a), zset.score(b)) else { return Ok(Reply::Nil) };
    Ok(distance(GeoPoint::of_score(a).distance(GeoPoint::of_score(b)) / unit))
}

/// An answer for each member, `none` for those that are not there.
fn each(
    ctx: &mut Ctx<'_>,
    none: &Reply,
    answer: impl Fn(GeoPoint) -> Reply,
) -> Result<Reply, Error> {
    let (key, members) = (ctx.arg(1), ctx.argv.get(2..).unwrap_or_default());
    let zset = ctx.read::<Zset>(key)?;
    let of = |member: &&[u8]| {
        let score = zset.and_then(|zset| zset.score(member));
        score.map_or_else(|| none.clone(), |score| answer(GeoPoint::of_score(score)))
    };
    Ok(Reply::Array(members.iter().map(of).collect()))
}

fn geohash(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    each(ctx, &Reply::Nil, |place| Reply::Bulk(place.to_letters()))
}

fn geopos(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    each(ctx, &Reply::NilArray, coordinates)
}

/// The syntax of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GeoForm {
    /// `GEORADIUS key longitude latitude radius unit …`
    Around { store: bool },
    /// `GEORADIUSBYMEMBER key member radius unit …`
    AroundMember { store: bool },
    /// `GEOSEARCH key …`
    Search,
    /// `GEOSEARCHSTORE destination key …`
    SearchStore,
}

fn georadius(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    search(ctx, GeoForm::Around { store: true })
}

fn georadius_ro(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    search(ctx, GeoForm::Around { store: false })
}

fn georadiusbymember(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    search(ctx, GeoForm::AroundMember { store: true })
}

fn georadiusbymember_ro(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    search(ctx, GeoForm::AroundMember { store: false })
}

fn geosearch(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    search(ctx, GeoForm::Search)
}

fn geosearchstore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    search(ctx, GeoForm::SearchStore)
}

/// The options of a search.
#[derive(Debug, Default)]
struct GeoQuery<'a> {
    /// A member that is not there leaves it open: then nothing is.
    middle: Option<GeoPoint>,
    from_member: bool,
    from_place: bool,
    shape: Option<(GeoShape, f64)>,
    by_box: bool,
    with_distance: bool,
    with_score: bool,
    with_place: bool,
    /// Nearest first, farthest first.
    sort: Option<bool>,
    count: Option<usize>,
    any: bool,
    store: Option<&'a [u8]>,
    store_distance: bool,
}

impl<'a> GeoQuery<'a> {
    /// Reads the words after the key, in the order in which Redis looks at them. `zset` is the
    /// source, for members are looked up on the way.
    fn parse(
        argv: &'a [&'a [u8]],
        form: GeoForm,
        zset: Option<&Zset>,
    ) -> Result<GeoQuery<'a>, Error> {
        let mut query = GeoQuery::default();
        let from_member = |member: &[u8]| match zset {
            None => Ok(None),
            Some(zset) => {
                zset.score(member).map(GeoPoint::of_score).map(Some).ok_or(NO_SUCH_MEMBER)
            }
        };
        let arg = |n: usize| argv.get(n).copied().unwrap_or_default();
        let at = match form {
            GeoForm::Around { .. } => {
                query.middle = Some(place(arg(2), arg(3))?);
                query.shape = Some(circle(arg(4), arg(5))?);
                6
            }
            GeoForm::AroundMember { .. } => {
                query.middle = from_member(arg(2))?;
                if zset.is_some() {
                    query.shape = Some(circle(arg(3), arg(4))?);
                }
                5
            }
            GeoForm::Search => 2,
            GeoForm::SearchStore => {
                query.store = Some(arg(1));
                3
            }
        };
        let searches = matches!(form, GeoForm::Search | GeoForm::SearchStore);
        let may_store =
            matches!(form, GeoForm::Around { store: true } | GeoForm::AroundMember { store: true });
        let mut words = Args::from(argv, at);
        while let Some(word) = words.next() {
            let left = words.left();
            match () {
                () if args::is(word, "WITHDIST") => query.with_distance = true,
                () if args::is(word, "WITHHASH") => query.with_score = true,
                () if args::is(word, "WITHCOORD") => query.with_place = true,
                () if args::is(word, "ANY") => query.any = true,
                () if args::is(word, "ASC") => query.sort = Some(true),
                () if args::is(word, "DESC") => query.sort = Some(false),
                () if args::is(word, "COUNT") && left >= 1 => {
                    let count = words.int()?;
                    let count = usize::try_from(count).ok().filter(|count| *count > 0);
                    query.count = Some(count.ok_or(Error::fixed("ERR COUNT must be > 0"))?);
                }
                () if args::is(word, "STORE") && left >= 1 && may_store => {
                    query.store = words.next();
                    query.store_distance = false;
                }
                () if args::is(word, "STOREDIST") && left >= 1 && may_store => {
                    query.store = words.next();
                    query.store_distance = true;
                }
                () if args::is(word, "STOREDIST") && form == GeoForm::SearchStore => {
                    query.store_distance = true;
                }
                () if !searches => return Err(SYNTAX),
                () if args::is(word, "FROMMEMBER") && left >= 1 && !query.from_place => {
                    query.middle = from_member(words.need()?)?;
                    query.from_member = true;
                }
                () if args::is(word, "FROMLONLAT") && left >= 2 && !query.from_member => {
                    query.middle = Some(place(words.need()?, words.need()?)?);
                    query.from_place = true;
                }
                () if args::is(word, "BYRADIUS") && left >= 2 && !query.by_box => {
                    query.shape = Some(circle(words.need()?, words.need()?)?);
                }
                () if args::is(word, "BYBOX")
                    && left >= 3
                    && (query.shape.is_none() || query.by_box) =>
                {
                    query.shape = Some(rectangle(words.need()?, words.need()?, words.need()?)?);
                    query.by_box = true;
                }
                () => return Err(SYNTAX),
            }
        }
        query.check(argv, form, searches)?;
        Ok(query)
    }

    fn check(&self, argv: &[&[u8]], form: GeoForm, searches: bool) -> Result<(), Error> {
        if self.store.is_some() && (self.with_distance || self.with_score || self.with_place) {
            let what = match form {
                GeoForm::SearchStore => "GEOSEARCHSTORE",
                _ => "STORE option in GEORADIUS",
            };
            return Err(Error::new(format!(
                "ERR {what} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            )));
        }
        let name = argv.first().copied().unwrap_or_default();
        if searches && !(self.from_member || self.from_place) {
            return Err(Error::about(
                "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for ",
                name,
                "",
            ));
        }
        if searches && self.shape.is_none() {
            return Err(Error::about(
                "ERR exactly one of BYRADIUS and BYBOX can be specified for ",
                name,
                "",
            ));
        }
        if self.any && self.count.is_none() {
            return Err(Error::fixed("ERR the ANY argument requires COUNT argument"));
        }
        Ok(())
    }

    /// Members inside the shape, in the order asked for.
    fn find(&self, zset: &Zset) -> Vec<GeoMatch> {
        let (Some(middle), Some((shape, unit))) = (self.middle, self.shape) else {
            return Vec::new();
        };
        let enough = self.count.filter(|_| self.any).unwrap_or(usize::MAX);
        let mut found: Vec<GeoMatch> = Vec::new();
        for cell in shape.cells(middle) {
            let (from, end) = cell.scores();
            let (first, count) = zset.score_range(&ScoreRange::until(from, end));
            for (elem, score) in zset.slice(first, count, false) {
                if found.len() >= enough {
                    break;
                }
                let place = GeoPoint::of_score(score);
                if let Some(meters) = shape.reach(middle, place) {
                    found.push(GeoMatch { member: elem.to_vec(), place, meters, score });
                }
            }
        }
        // The nearest are wanted unless any will do.
        let sort = self.sort.or_else(|| (self.count.is_some() && !self.any).then_some(true));
        if let Some(nearest_first) = sort {
            found.sort_by(|a, b| {
                let order = a.meters.total_cmp(&b.meters);
                if nearest_first { order } else { order.reverse() }
            });
        }
        found.truncate(self.count.unwrap_or(usize::MAX));
        found.iter_mut().for_each(|found| found.meters /= unit);
        found
    }

    fn reply(&self, found: GeoMatch) -> Reply {
        let mut parts = vec![Reply::Bulk(found.member)];
        if self.with_distance {
            parts.push(distance(found.meters));
        }
        if self.with_score {
            parts.push(Reply::Int(found.score as i64));
        }
        if self.with_place {
            parts.push(coordinates(found.place));
        }
        if self.with_distance || self.with_score || self.with_place {
            return Reply::Array(parts);
        }
        parts.pop().unwrap_or(Reply::Nil)
    }
}

/// A member inside the shape.
#[derive(Debug)]
struct GeoMatch {
    member: Vec<u8>,
    place: GeoPoint,
    /// Distance from the centre; in the unit of the reply at the end.
    meters: f64,
    score: f64,
}

fn search(ctx: &mut Ctx<'_>, form: GeoForm) -> Result<Reply, Error> {
    let argv = ctx.argv;
    let source = ctx.arg(if form == GeoForm::SearchStore { 2 } else { 1 });
    let zset = ctx.read::<Zset>(source)?;
    let query = GeoQuery::parse(argv, form, zset)?;
    let found = zset.map(|zset| query.find(zset)).unwrap_or_default();
    let Some(key) = query.store else {
        return Ok(Reply::Array(found.into_iter().map(|found| query.reply(found)).collect()));
    };
    let scores: HashMap<Vec<u8>, f64> = found
        .into_iter()
        .map(|f| (f.member, if query.store_distance { f.meters } else { f.score }))
        .collect();
    let members: Vec<(Vec<u8>, f64)> = scores.into_iter().collect();
    let event = if form == GeoForm::SearchStore { "geosearchstore" } else { "georadiusstore" };
    let limits = ZsetLimits::of(&ctx.core.config);
    let value = (!members.is_empty()).then(|| Value::Zset(Zset::of(&members, limits)));
    store_result(ctx, key, value, Class::Zset, event);
    Ok(members.len().into())
}
