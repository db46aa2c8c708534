//! Commands on keys of any type: DEL EXISTS TYPE RENAME COPY OBJECT …

use crate::Reply;
use crate::command::{Command, Ctx, FAST, READONLY, WRITE};
use crate::error::Error;
use crate::notify::Class;

/// The commands of this file.
pub(crate) const COMMANDS: &[Command] = &[
    Command::new("del", -2, WRITE, del).keys(1, -1, 1),
    Command::new("exists", -2, READONLY | FAST, exists).keys(1, -1, 1),
];

fn del(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let mut deleted = 0usize;
    for key in ctx.argv.iter().skip(1) {
        if ctx.remove(key) {
            ctx.changed(Class::Generic, "del", key);
            deleted += 1;
        }
    }
    Ok(deleted.into())
}

fn exists(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let argv = ctx.argv;
    let found = argv.iter().skip(1).filter(|key| ctx.entry(key).is_some()).count();
    Ok(found.into())
}
