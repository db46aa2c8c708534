//! Pops from the first of several keys that has something, at once or when one comes: what lists
//! and sorted sets do alike (`LMPOP` and `ZMPOP`, `BLPOP` and `BZPOPMIN`, `BLMPOP` and `BZMPOP`).

use crate::blocked::{KeyWait, Serve};
use crate::command::Ctx;
use crate::error::{Error, SYNTAX};
use crate::{Reply, args};

/// An end of a list or of a sorted set.
pub(crate) trait PopEnd: Copy + 'static {
    /// Reads the word for it.
    fn read(word: &[u8]) -> Result<Self, Error>;

    /// Pops from the first of the keys that is there: one element, or with `count` up to so many
    /// as a list of their own. Leaves the plain pop as its effect.
    fn pop_first(
        self,
        ctx: &mut Ctx<'_>,
        keys: &[&[u8]],
        count: Option<usize>,
    ) -> Result<Option<Reply>, Error>;

    /// Pops one for a session that waited; see [`serve`].
    fn serve_one(self) -> Serve;
}

/// `numkeys key … end [COUNT count]`
pub(crate) fn many<E: PopEnd>(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (keys, end, count) = read::<E>(ctx.argv, 1)?;
    Ok(end.pop_first(ctx, keys, Some(count))?.unwrap_or(Reply::NilArray))
}

/// `key … timeout`
pub(crate) fn blocking_one<E: PopEnd>(ctx: &mut Ctx<'_>, end: E) -> Result<Reply, Error> {
    let Some(([_, keys @ ..], [timeout])) = ctx.argv.split_last_chunk() else { return Err(SYNTAX) };
    let deadline_ms = args::timeout(ctx.now, timeout)?;
    if let Some(reply) = end.pop_first(ctx, keys, None)? {
        return Ok(reply);
    }
    let (serve, on_timeout) = (end.serve_one(), Reply::NilArray);
    Ok(ctx.block(KeyWait { keys, deadline_ms, serve, on_timeout, argv: None }))
}

/// `timeout numkeys key … end [COUNT count]`
pub(crate) fn blocking_many<E: PopEnd>(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (keys, end, count) = read::<E>(ctx.argv, 2)?;
    let deadline_ms = args::timeout(ctx.now, ctx.arg(1))?;
    if let Some(reply) = end.pop_first(ctx, keys, Some(count))? {
        return Ok(reply);
    }
    let serve_many: Serve = |ctx, key| {
        let (_, end, count) = read::<E>(ctx.argv, 2).ok()?;
        serve(ctx, key, end, Some(count))
    };
    let on_timeout = Reply::NilArray;
    Ok(ctx.block(KeyWait { keys, deadline_ms, serve: serve_many, on_timeout, argv: None }))
}

/// Pops for a session that waited for this key; nothing if it holds another type.
pub(crate) fn serve<E: PopEnd>(
    ctx: &mut Ctx<'_>,
    key: &[u8],
    end: E,
    count: Option<usize>,
) -> Option<Reply> {
    end.pop_first(ctx, &[key], count).ok().flatten()
}

/// The keys, the end and how many, from position `at` on.
fn read<'a, E: PopEnd>(
    argv: &'a [&'a [u8]],
    at: usize,
) -> Result<(&'a [&'a [u8]], E, usize), Error> {
    let positive = |bytes: Option<&&[u8]>, error| {
        let n = bytes.and_then(|bytes| args::int(bytes).ok()).filter(|n| *n > 0);
        n.and_then(|n| usize::try_from(n).ok()).ok_or(error)
    };
    let count = positive(argv.get(at), Error::fixed("ERR numkeys should be greater than 0"))?;
    let rest = argv.get(at + 1..).unwrap_or_default();
    let (keys, rest) = rest.split_at_checked(count).ok_or(SYNTAX)?;
    let (end, rest) = rest.split_first().ok_or(SYNTAX)?;
    let end = E::read(end)?;
    let count = match rest {
        [] => 1,
        [word, rest @ ..] if args::is(word, "COUNT") && !rest.is_empty() => {
            let count = positive(rest.first(), Error::fixed("ERR count should be greater than 0"))?;
            if rest.len() > 1 {
                return Err(SYNTAX);
            }
            count
        }
        _ => return Err(SYNTAX),
    };
    Ok((keys, end, count))
}
