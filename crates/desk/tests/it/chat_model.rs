//! Random arrivals, messages, resolves, sleep, transfers, presence, capacity changes, kills and losses, and what
//! must hold after every one of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use desk::{
    AgentId, ConversationId, Error,
    chat::{
        AgentChange, AssignRequest, CONNECTION_LEASE, Chat, ChatPriority, Conversation,
        ConversationChange, ConversationList, ConversationStatus, MessageDraft, PresenceStatus,
        Sender,
    },
};
use store::{
    Millis,
    redis::{self, AsyncCommands},
};
use testkit::{TestStore, each_archive};

use crate::{
    chat::{agent, key, open_on, says, start},
    support::SECOND,
};

/// Checks what must hold at any moment, after everything was handed out.
async fn check(t: &TestStore, chat: &Chat, agents: &[AgentId], step: &str) {
    let mut store = t.store.clone();
    let of = |status| ConversationList {
        status: Some(status),
        limit: 1_000,
        ..ConversationList::default()
    };
    let open = chat.list(&of(ConversationStatus::Open)).await.unwrap().0;
    let asleep = chat.list(&of(ConversationStatus::Pending)).await.unwrap().0;
    let known: HashMap<String, Option<AgentId>> =
        open.iter().chain(&asleep).map(|one| (one.id.to_string(), one.assignee.clone())).collect();
    // The archive and the published keys agree.
    let active: HashSet<String> =
        store.zrange(key(&t.store, "chat:conversations:active"), 0, -1).await.unwrap();
    assert_eq!(active, known.keys().cloned().collect(), "{step}: active");
    // The order: the higher priority first, then the longer wait.
    let unread: Vec<String> =
        store.zrevrange(key(&t.store, "chat:conversations:unread"), 0, -1).await.unwrap();
    let since = |one: &Conversation| one.waiting_since.unwrap_or(one.last_message_at);
    let mut expected: Vec<&Conversation> = open.iter().filter(|one| one.unread_agent > 0).collect();
    expected.sort_by_key(|one| {
        // Of those of one moment and one priority, the store has the greater id first.
        (std::cmp::Reverse(one.priority.rank()), since(one), std::cmp::Reverse(one.id.to_string()))
    });
    let expected: Vec<String> = expected.iter().map(|one| one.id.to_string()).collect();
    assert_eq!(unread, expected, "{step}: unread");
    let mut owners: BTreeMap<String, AgentId> = BTreeMap::new();
    let presence = chat.presence().await.unwrap();
    for agent in agents {
        let set = key(&t.store, &format!("admin:{agent}:assignments"));
        let mine: Vec<String> = store.smembers(set).await.unwrap();
        for id in mine {
            let before = owners.insert(id.clone(), agent.clone());
            assert!(before.is_none(), "{step}: {id} has two owners");
            assert_eq!(known.get(&id), Some(&Some(agent.clone())), "{step}: owner of {id}");
        }
    }
    for (id, owner) in &known {
        assert_eq!(owners.get(id), owner.as_ref(), "{step}: set of the owner of {id}");
    }
    let waiting: HashSet<String> =
        store.zrange(key(&t.store, "chat:conversations:waiting"), 0, -1).await.unwrap();
    let expected: HashSet<String> = open
        .iter()
        .filter(|one| one.assignee.is_none() && one.needs_agent())
        .map(|one| one.id.to_string())
        .collect();
    assert_eq!(waiting, expected, "{step}: waiting");
    if !waiting.is_empty() {
        let has_room = presence
            .iter()
            .any(|one| one.status == PresenceStatus::Online && one.load < i64::from(one.capacity));
        assert!(!has_room, "{step}: somebody waits although an agent has room");
    }
    // The dashboards say the same.
    chat.publish_dashboards().await.unwrap();
    for one in presence.iter().filter(|one| one.status != PresenceStatus::Offline) {
        let name = key(&t.store, &format!("chat:admin:dashboard:{}", one.agent));
        let numbers: HashMap<String, String> = store.hgetall(name).await.unwrap();
        let number = |name: &str| numbers[name].parse::<usize>().unwrap();
        let mine = |other: &&Conversation| other.assignee.as_ref() == Some(&one.agent);
        assert_eq!(number("total_active"), open.len(), "{step}: total_active");
        assert_eq!(
            number("assigned_to_me"),
            open.iter().filter(mine).count(),
            "{step}: assigned_to_me"
        );
        let unread = open.iter().filter(mine).filter(|other| other.unread_agent > 0).count();
        assert_eq!(number("unread_count"), unread, "{step}: unread_count");
    }
}

each_archive! {
    async fn whatever_happens_the_invariants_hold(t: TestStore, a: TestArchive) {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut chats = [open_on(&t.store, &a, "i1").await, open_on(&t.another().await, &a, "i2").await];
        let mut agents = Vec::new();
        for n in 0..4 {
            agents.push(agent(&chats[0], &format!("agent{n}"), 3).await);
        }
        chats[1].load_roster().await.unwrap();
        let mut capacity: HashMap<AgentId, u32> = agents.iter().map(|id| (id.clone(), 3)).collect();
        let mut ids: Vec<(ConversationId, String)> = Vec::new();
        for round in 0..150 {
            if random.u32(..25) == 0 {
                // An instance is killed, with what it had under way, and another one starts.
                let at = random.usize(..2);
                chats[at] = open_on(&t.another().await, &a, &format!("i{round}")).await;
            }
            let chat = &chats[random.usize(..2)];
            let one = agents[random.usize(..agents.len())].clone();
            let what = random.u32(..100);
            let step = format!("seed {seed}, round {round}, {what}");
            let pick = (!ids.is_empty()).then(|| ids[random.usize(..ids.len())].clone());
            match (what, pick) {
                (0..20, _) => {
                    let name = format!("v{round}");
                    let priority = ChatPriority::ALL[random.usize(..4)];
                    ids.push((start(chat, &name, priority).await.conversation.id, name));
                }
                (20..24, Some((id, _))) => {
                    let asleep = ConversationChange {
                        status: Some(ConversationStatus::Pending),
                        wakes_at: Some(Millis(t.store.now().0 + random.i64(1_000..60_000))),
                        ..ConversationChange::default()
                    };
                    chat.change_conversation(&id, asleep, None, None).await.unwrap();
                }
                (24..28, Some((id, _))) => {
                    match chat.transfer(&id, Ok(one.clone()), Some("yours"), &agents[0]).await {
                        Ok(_) | Err(Error::Conflict { .. }) => {}
                        Err(error) => panic!("{step}: {error}"),
                    }
                }
                (28..35, Some((id, name))) => {
                    chat.send(&id, says(&name, "more")).await.unwrap();
                }
                (35..50, Some((id, _))) => {
                    chat.send(&id, MessageDraft::text(Sender::Agent(one), "reply")).await.unwrap();
                }
                (50..62, Some((id, _))) => {
                    let change = ConversationChange {
                        status: Some(ConversationStatus::Resolved), ..ConversationChange::default()
                    };
                    chat.change_conversation(&id, change, None, None).await.unwrap();
                }
                (62..70, Some((id, _))) => {
                    let request = AssignRequest {
                        agent: random.bool().then_some(one), expected: None, over_capacity: false, needs_presence: false,
                        by: "test".to_owned(), reason: "assigned",
                    };
                    match chat.assign(&id, request).await {
                        Ok(_) | Err(Error::Conflict { .. }) => {}
                        Err(error) => panic!("{step}: {error}"),
                    }
                }
                (70..80, _) => {
                    chat.renew_connection(&one, "c", CONNECTION_LEASE, true).await.unwrap();
                }
                (80..84, _) => chat.end_connection(&one, "c").await.unwrap(),
                (84..88, _) => {
                    let status = [PresenceStatus::Online, PresenceStatus::Busy][random.usize(..2)];
                    chat.choose_status(&one, status, None).await.unwrap();
                }
                (88..92, _) => {
                    let more = random.u32(1..6);
                    chat.change_agent(&one, AgentChange { capacity: Some(more), ..AgentChange::default() }).await.unwrap();
                    capacity.insert(one, more);
                }
                (92..97, _) => t.clock.advance(SECOND * random.u32(1..40)),
                (97..99, _) => {
                    // A key is lost.
                    let names = ["chat:conversations:active", "chat:conversations:unread", "chat:ready"];
                    let lost = key(&t.store, names[random.usize(..3)]);
                    let () = t.store.clone().del(lost).await.unwrap();
                }
                (99.., _) => {
                    let () = redis::cmd("FLUSHALL").query_async(&mut t.store.clone()).await.unwrap();
                    for agent in &agents {
                        chat.renew_connection(agent, "c", CONNECTION_LEASE, true).await.unwrap();
                    }
                }
                _ => {}
            }
            for chat in &chats {
                chat.settle().await;
            }
            // The capacity is never exceeded by what is handed out; lowered, it holds for what comes.
            let before: HashMap<AgentId, i64> =
                chat.presence().await.unwrap().into_iter().map(|one| (one.agent, one.load)).collect();
            chat.renew_published().await.unwrap();
            chat.maintain(30).await.unwrap();
            chat.dispatch().await.unwrap();
            for chat in &chats {
                chat.settle().await;
            }
            for one in chat.presence().await.unwrap() {
                let most = i64::from(capacity[&one.agent]).max(before[&one.agent]);
                assert!(one.load <= most, "{step}: {} has {} of {most}", one.name, one.load);
            }
            check(&t, chat, &agents, &step).await;
        }
        assert_eq!(chats[0].archive().verify().await.unwrap(), Vec::<String>::new());
    }
}
