//! Publish and subscribe: channels, patterns, shard channels, and what to deliver to whom.

use hashbrown::HashMap;

use crate::command::{CommandRow, Ctx, FAST, LOADING, MAY_REPLICATE, NOSCRIPT, PUBSUB, STALE};
use crate::engine::Core;
use crate::error::Error;
use crate::session::ClientSession;
use crate::{Reply, SessionId, scan};

/// Subscriptions by channel and pattern, in the order of subscribing.
#[derive(Debug, Default)]
pub(crate) struct Pubsub {
    channels: HashMap<Box<[u8]>, Vec<SessionId>>,
    patterns: HashMap<Box<[u8]>, Vec<SessionId>>,
    shards: HashMap<Box<[u8]>, Vec<SessionId>>,
}

impl Pubsub {
    /// Numbers of channels, patterns and shard channels with subscribers.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.channels.len(), self.patterns.len(), self.shards.len())
    }
}

/// The three kinds of subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubscriptionKind {
    Channel,
    Pattern,
    Shard,
}

impl SubscriptionKind {
    fn subscribed(self) -> &'static str {
        match self {
            SubscriptionKind::Channel => "subscribe",
            SubscriptionKind::Pattern => "psubscribe",
            SubscriptionKind::Shard => "ssubscribe",
        }
    }

    fn unsubscribed(self) -> &'static str {
        match self {
            SubscriptionKind::Channel => "unsubscribe",
            SubscriptionKind::Pattern => "punsubscribe",
            SubscriptionKind::Shard => "sunsubscribe",
        }
    }

    fn listeners(self, pubsub: &mut Pubsub) -> &mut HashMap<Box<[u8]>, Vec<SessionId>> {
        match self {
            SubscriptionKind::Channel => &mut pubsub.channels,
            SubscriptionKind::Pattern => &mut pubsub.patterns,
            SubscriptionKind::Shard => &mut pubsub.shards,
        }
    }

    fn of(self, session: &mut ClientSession) -> &mut hashbrown::HashSet<Box<[u8]>> {
        match self {
            SubscriptionKind::Channel => &mut session.subscriptions.channels,
            SubscriptionKind::Pattern => &mut session.subscriptions.patterns,
            SubscriptionKind::Shard => &mut session.subscriptions.shards,
        }
    }

    /// The number told with each (un)subscription.
    fn count(self, session: &ClientSession) -> usize {
        let s = &session.subscriptions;
        match self {
            SubscriptionKind::Channel | SubscriptionKind::Pattern => {
                s.channels.len() + s.patterns.len()
            }
            SubscriptionKind::Shard => s.shards.len(),
        }
    }
}

impl Core {
    /// Sends a message to the subscribers of a channel; answers how many there are.
    pub(crate) fn publish(&mut self, channel: &[u8], message: &[u8]) -> usize {
        let mut count = 0;
        let deliveries = &mut self.output.deliveries;
        if let Some(listeners) = self.pubsub.channels.get(channel) {
            for id in listeners {
                let parts = [Reply::bulk("message"), Reply::bulk(channel), Reply::bulk(message)];
                deliveries.push((*id, Reply::Push(parts.into())));
                count += 1;
            }
        }
        for (pattern, listeners) in &self.pubsub.patterns {
            if !scan::matches(pattern, channel, false) {
                continue;
            }
            for id in listeners {
                let parts = [
                    Reply::bulk("pmessage"),
                    Reply::bulk(pattern),
                    Reply::bulk(channel),
                    Reply::bulk(message),
                ];
                deliveries.push((*id, Reply::Push(parts.into())));
                count += 1;
            }
        }
        count
    }

    /// Sends a message to the subscribers of a shard channel; answers how many there are.
    pub(crate) fn publish_shard(&mut self, channel: &[u8], message: &[u8]) -> usize {
        let Some(listeners) = self.pubsub.shards.get(channel) else { return 0 };
        for id in listeners {
            let parts = [Reply::bulk("smessage"), Reply::bulk(channel), Reply::bulk(message)];
            self.output.deliveries.push((*id, Reply::Push(parts.into())));
        }
        listeners.len()
    }

    /// The session hears nothing any more, and is not told so.
    pub(crate) fn unsubscribe_all(&mut self, session: &mut ClientSession) {
        for kind in [SubscriptionKind::Channel, SubscriptionKind::Pattern, SubscriptionKind::Shard]
        {
            for name in std::mem::take(kind.of(session)) {
                self.stop_listening(kind, session.id, &name);
            }
        }
    }

    fn stop_listening(&mut self, kind: SubscriptionKind, id: SessionId, name: &[u8]) {
        let all = kind.listeners(&mut self.pubsub);
        if let Some(listeners) = all.get_mut(name) {
            listeners.retain(|listener| *listener != id);
            if listeners.is_empty() {
                all.remove(name);
            }
        }
    }
}

const FLAGS: u32 = PUBSUB | NOSCRIPT | LOADING | STALE;

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("subscribe", -2, FLAGS, |ctx| subscribe(ctx, SubscriptionKind::Channel)),
    CommandRow::new("psubscribe", -2, FLAGS, |ctx| subscribe(ctx, SubscriptionKind::Pattern)),
    CommandRow::new("ssubscribe", -2, FLAGS, |ctx| subscribe(ctx, SubscriptionKind::Shard))
        .keys(1, -1, 1),
    CommandRow::new("unsubscribe", -1, FLAGS, |ctx| unsubscribe(ctx, SubscriptionKind::Channel)),
    CommandRow::new("punsubscribe", -1, FLAGS, |ctx| unsubscribe(ctx, SubscriptionKind::Pattern)),
    CommandRow::new("sunsubscribe", -1, FLAGS, |ctx| unsubscribe(ctx, SubscriptionKind::Shard))
        .keys(1, -1, 1),
    CommandRow::new("publish", 3, PUBSUB | LOADING | STALE | FAST | MAY_REPLICATE, publish),
    CommandRow::new("spublish", 3, PUBSUB | LOADING | STALE | FAST | MAY_REPLICATE, spublish)
        .keys(1, 1, 1),
    CommandRow::new("pubsub", -2, 0, crate::command::container).subcommands(&[
        CommandRow::new("channels", -2, PUBSUB | LOADING | STALE, |ctx| {
            channels(ctx, SubscriptionKind::Channel)
        }),
        CommandRow::new("shardchannels", -2, PUBSUB | LOADING | STALE, |ctx| {
            channels(ctx, SubscriptionKind::Shard)
        }),
        CommandRow::new("numsub", -2, PUBSUB | LOADING | STALE, |ctx| {
            numsub(ctx, SubscriptionKind::Channel)
        }),
        CommandRow::new("shardnumsub", -2, PUBSUB | LOADING | STALE, |ctx| {
            numsub(ctx, SubscriptionKind::Shard)
        }),
        CommandRow::new("numpat", 2, PUBSUB | LOADING | STALE, |ctx| {
            Ok(ctx.core.pubsub.patterns.len().into())
        }),
        CommandRow::new("help", 2, LOADING | STALE, help),
    ]),
];

fn subscribe(ctx: &mut Ctx<'_>, kind: SubscriptionKind) -> Result<Reply, Error> {
    if ctx.session.in_exec && ctx.session.resp == 2 && !ctx.session.in_script {
        return Err(Error::fixed(match kind {
            SubscriptionKind::Channel => "ERR SUBSCRIBE isn't allowed for a DENY BLOCKING client",
            SubscriptionKind::Pattern => "ERR PSUBSCRIBE isn't allowed for a DENY BLOCKING client",
            SubscriptionKind::Shard => "ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client",
        }));
    }
    let id = ctx.session.id;
    let mut replies = Vec::with_capacity(ctx.argv.len());
    for name in ctx.argv.iter().skip(1) {
        if kind.of(ctx.session).insert(Box::from(*name)) {
            let all = kind.listeners(&mut ctx.core.pubsub);
            all.entry(Box::from(*name)).or_default().push(id);
        }
        replies.push(Reply::Push(vec![
            Reply::bulk(kind.subscribed()),
            Reply::bulk(name),
            kind.count(ctx.session).into(),
        ]));
    }
    Ok(Reply::Several(replies))
}

fn unsubscribe(ctx: &mut Ctx<'_>, kind: SubscriptionKind) -> Result<Reply, Error> {
    let names: Vec<Box<[u8]>> = if ctx.argv.len() > 1 {
        ctx.argv.iter().skip(1).map(|name| Box::from(*name)).collect()
    } else {
        let mut names: Vec<_> = kind.of(ctx.session).iter().cloned().collect();
        names.sort_unstable();
        names
    };
    let told = |name: Reply, count: usize| {
        Reply::Push(vec![Reply::bulk(kind.unsubscribed()), name, count.into()])
    };
    let mut replies = Vec::with_capacity(names.len().max(1));
    for name in &names {
        if kind.of(ctx.session).remove(name) {
            ctx.core.stop_listening(kind, ctx.session.id, name);
        }
        replies.push(told(Reply::bulk(name), kind.count(ctx.session)));
    }
    if replies.is_empty() {
        replies.push(told(Reply::Nil, kind.count(ctx.session)));
    }
    Ok(Reply::Several(replies))
}

fn publish(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(ctx.core.publish(ctx.arg(1), ctx.arg(2)).into())
}

fn spublish(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(ctx.core.publish_shard(ctx.arg(1), ctx.arg(2)).into())
}

fn channels(ctx: &mut Ctx<'_>, kind: SubscriptionKind) -> Result<Reply, Error> {
    if ctx.argv.len() > 3 {
        return Err(Error::subcommand(ctx.argv));
    }
    let pattern = ctx.argv.get(2).copied();
    let all = kind.listeners(&mut ctx.core.pubsub);
    let fits = |name: &[u8]| pattern.is_none_or(|pattern| scan::matches(pattern, name, false));
    Ok(Reply::bulks(all.keys().filter(|name| fits(name))))
}

fn numsub(ctx: &mut Ctx<'_>, kind: SubscriptionKind) -> Result<Reply, Error> {
    let all = kind.listeners(&mut ctx.core.pubsub);
    let mut replies = Vec::with_capacity(ctx.argv.len() * 2);
    for name in ctx.argv.iter().skip(2) {
        replies.push(Reply::bulk(name));
        replies.push(all.get(*name).map_or(0, Vec::len).into());
    }
    Ok(Reply::Array(replies))
}

fn help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(crate::command::help(
        "PUBSUB",
        &[
            ("CHANNELS [<pattern>]", "Names of channels that have subscribers."),
            ("NUMPAT", "How many patterns have subscribers."),
            ("NUMSUB [<channel> ...]", "How many sessions subscribe to each channel by name."),
            ("SHARDCHANNELS [<pattern>]", "Names of shard channels that have subscribers."),
            ("SHARDNUMSUB [<shardchannel> ...]", "How many sessions subscribe to each of them."),
        ],
    ))
}
