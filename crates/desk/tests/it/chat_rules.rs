//! Rules of the chat that no trap of the schema is about: messages left at night, sleep, promises, transfers,
//! teams, mentions, search by name, reports.

use std::time::Duration;

use desk::{
    AgentId, ConversationId, Error, TeamId,
    chat::{
        AgentChange, AgentRole, BusinessHours, CONNECTION_LEASE, Chat, ChatOptions, ChatPriority,
        Conversation, ConversationChange, ConversationChannel, ConversationList,
        ConversationStatus, MessageDraft, NewAgent, NewConversation, PresenceStatus, ReportGroup,
        Sender, VisitorChange, urgency_score,
    },
};
use serde_json::json;
use store::{
    Millis,
    redis::{self, AsyncCommands},
};
use testkit::each_archive;

use crate::{
    chat::{agent, come_online, key, open_on, replies, says, start, visitor},
    support::{MINUTE, SECOND},
};

async fn leave(chat: &Chat, name: &str, team: Option<TeamId>) -> ConversationId {
    let new = NewConversation {
        visitor: visitor(name),
        message: says(name, "please call back"),
        priority: ChatPriority::Normal,
        subject: None,
        team,
        skills: Vec::new(),
        channel: ConversationChannel::Offline,
        bot: false,
        is_offline: true,
    };
    chat.start_conversation(new).await.unwrap().conversation.id
}

async fn change(chat: &Chat, id: &ConversationId, change: ConversationChange) -> Conversation {
    let done = chat.change_conversation(id, change, None, None).await.unwrap();
    chat.settle().await;
    done
}

fn code<T: std::fmt::Debug>(outcome: Result<T, Error>) -> &'static str {
    match outcome {
        Err(Error::Conflict { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}

fn team_agent(name: &str, team: &TeamId) -> NewAgent {
    NewAgent {
        email: format!("{name}@example.org"),
        name: name.to_owned(),
        role: AgentRole::Agent,
        capacity: Some(5),
        skills: Vec::new(),
        teams: vec![team.clone()],
    }
}

/// [Q1] Of any two, the one of higher priority is first, and of one priority the one that waits longer.
#[test]
fn a_higher_priority_is_first_then_the_longer_wait() {
    let times = [1_672_531_800_000, 1_672_531_800_001, 1_790_000_000_000, 9_999_999_999_999];
    let all: Vec<(i64, i64)> = (1..=4).flat_map(|rank| times.map(|at| (rank, at))).collect();
    for (rank, at) in &all {
        for (other_rank, other_at) in &all {
            let goes_first =
                (rank, std::cmp::Reverse(at)) > (other_rank, std::cmp::Reverse(other_at));
            let (one, other) =
                (urgency_score(*rank, Millis(*at)), urgency_score(*other_rank, Millis(*other_at)));
            assert_eq!(one > other, goes_first, "{rank} {at}, {other_rank} {other_at}");
            assert!(one < 1 << 53, "a score is a number that doubles tell apart");
        }
    }
}

/// [P5] Agents are found by an index, on a server that would show a scan.
#[test]
fn presence_and_assignment_scan_no_keys() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = testkit::RedisServer::start();
        let store = store::Store::open(&server.url()).await.unwrap();
        let archive = testkit::TestArchive::sqlite();
        let chat = open_on(&store, &archive, "i1").await;
        let anna = agent(&chat, "anna", 5).await;
        come_online(&chat, &anna).await;
        start(&chat, "v1", ChatPriority::Normal).await;
        chat.settle().await;
        assert_eq!(chat.dispatch().await.unwrap(), 1);
        for round in 0..6 {
            chat.maintain(round).await.unwrap();
        }
        let used: String = server.query(&["INFO", "commandstats"]).unwrap();
        assert!(used.contains("cmdstat_zadd:"), "{used}");
        for scan in ["cmdstat_keys:", "cmdstat_scan:"] {
            assert!(!used.contains(scan), "{used}");
        }
    });
}

each_archive! {
    async fn ten_more_messages_change_no_place(t: TestStore, a: TestArchive) {
        // [Q4]
        let chat = open_on(&t.store, &a, "i1").await;
        let first = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        t.clock.advance(SECOND);
        let second = start(&chat, "v2", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        for (name, id) in [("v1", &first), ("v2", &second)] {
            let before = chat.waiting_place(id).await.unwrap();
            for _ in 0..10 {
                t.clock.advance(SECOND);
                chat.send(id, says(name, "hello?")).await.unwrap();
            }
            chat.settle().await;
            assert_eq!(chat.waiting_place(id).await.unwrap(), before);
        }
    }

    async fn what_was_read_of_agents_does_not_undo_a_change(t: TestStore, a: TestArchive) {
        let one = open_on(&t.store, &a, "i1").await;
        let other = open_on(&t.another().await, &a, "i2").await;
        let anna = agent(&one, "anna", 5).await;
        start(&one, "v1", ChatPriority::Normal).await;
        one.settle().await;
        for round in 0..15_u32 {
            let capacity = round % 9 + 1;
            // While it changes, both read agents anew, and one of them rebuilds what is published.
            let () = t.store.clone().del(key(&t.store, "chat:ready")).await.unwrap();
            let change = AgentChange { capacity: Some(capacity), ..AgentChange::default() };
            let reading = async || {
                for _ in 0..4 {
                    one.load_roster().await.unwrap();
                }
            };
            let (changed, rebuilt, (), ()) =
                tokio::join!(one.change_agent(&anna, change), other.maintain(30), reading(), reading());
            changed.unwrap();
            rebuilt.unwrap();
            assert_eq!(one.agent(&anna).unwrap().capacity, capacity);
            let field = format!("{anna}:capacity");
            let published: u32 = t.store.clone().hget(key(&t.store, "chat:agents"), field).await.unwrap();
            assert_eq!(published, capacity, "round {round}");
        }
    }

    async fn a_place_is_told_when_it_is_news(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 1).await;
        for n in 0..3 {
            start(&chat, &format!("v{n}"), ChatPriority::Normal).await;
            t.clock.advance(SECOND);
        }
        chat.settle().await;
        assert_eq!(chat.announce_positions().await.unwrap(), 3);
        assert_eq!(chat.announce_positions().await.unwrap(), 0, "nothing has changed");
        come_online(&chat, &anna).await;
        assert_eq!(chat.dispatch().await.unwrap(), 1);
        chat.settle().await;
        assert_eq!(chat.announce_positions().await.unwrap(), 2, "both moved up");
        assert_eq!(chat.announce_positions().await.unwrap(), 0);
    }

    async fn what_was_left_at_night_waits_in_the_morning_oldest_first(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 1).await;
        let first = leave(&chat, "v1", None).await;
        t.clock.advance(MINUTE);
        let second = leave(&chat, "v2", None).await;
        chat.settle().await;
        assert_eq!(chat.sweep_left().await.unwrap(), 0, "nobody is there");
        assert_eq!(chat.conversation(&first).await.unwrap().status, ConversationStatus::Pending);
        t.clock.advance(8 * 60 * MINUTE);
        come_online(&chat, &anna).await;
        let fresh = start(&chat, "v3", ChatPriority::Normal).await.conversation.id;
        assert_eq!(chat.sweep_left().await.unwrap(), 2);
        assert_eq!(chat.sweep_left().await.unwrap(), 0);
        chat.settle().await;
        let mut places = Vec::new();
        for id in [&first, &second, &fresh] {
            places.push(chat.waiting_place(id).await.unwrap().unwrap().position);
        }
        assert_eq!(places, [1, 2, 3], "who wrote at night has waited since then");
        assert_eq!(chat.dispatch().await.unwrap(), 1);
        chat.settle().await;
        let taken = chat.conversation(&first).await.unwrap();
        assert_eq!((taken.assignee.as_ref(), taken.status), (Some(&anna), ConversationStatus::Open));
        // The promise counts from the morning on.
        assert!(taken.sla_due_at.is_some_and(|due| due > t.store.now()));
    }

    async fn who_is_there_counts_by_team_and_by_its_hours(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        // Never open within the next days: the day after tomorrow's holiday and no other day.
        let closed = json!({ "time_zone": "UTC", "week": { "mon": [["00:00", "00:01"]] } });
        let nights = chat.put_team(None, "Nights", BusinessHours::parse(&closed).unwrap()).await.unwrap().id;
        let orders = chat.put_team(None, "Orders", BusinessHours::default()).await.unwrap().id;
        let anna = chat.add_agent(team_agent("anna", &orders)).await.unwrap().0.id;
        let ben = chat.add_agent(team_agent("ben", &nights)).await.unwrap().0.id;
        let state = async |team: Option<&TeamId>| {
            let found = chat.availability(team).await.unwrap();
            (found["state"].as_str().unwrap().to_owned(), found["agents_online"].as_i64().unwrap())
        };
        // Away from the one minute in which it is open.
        while BusinessHours::parse(&closed).unwrap().is_open(t.store.now()) {
            t.clock.advance(MINUTE);
        }
        assert_eq!(state(Some(&orders)).await, ("offline".to_owned(), 0));
        come_online(&chat, &ben).await;
        assert_eq!(state(Some(&orders)).await, ("offline".to_owned(), 0), "nobody of this team");
        assert_eq!(state(Some(&nights)).await, ("offline".to_owned(), 0), "outside its hours");
        come_online(&chat, &anna).await;
        assert_eq!(state(Some(&orders)).await, ("online".to_owned(), 1));
        assert_eq!(state(None).await, ("online".to_owned(), 2));
        let opens = chat.availability(Some(&nights)).await.unwrap();
        assert!(opens["opens_at"].is_string(), "{opens}");
        assert!(chat.availability(Some(&TeamId::parse("team_none").unwrap())).await.is_err());
        // What is left for a team waits for that team.
        let left = leave(&chat, "v1", Some(nights.clone())).await;
        let other = leave(&chat, "v2", Some(orders.clone())).await;
        assert_eq!(chat.sweep_left().await.unwrap(), 1);
        assert_eq!(chat.conversation(&left).await.unwrap().status, ConversationStatus::Pending);
        assert_eq!(chat.conversation(&other).await.unwrap().status, ConversationStatus::Open);
        // Everybody who is there has as much as they may have.
        chat.change_agent(&anna, AgentChange { capacity: Some(1), ..AgentChange::default() }).await.unwrap();
        chat.settle().await;
        assert_eq!(chat.dispatch().await.unwrap(), 1);
        assert_eq!(state(Some(&orders)).await, ("busy".to_owned(), 1));
        chat.choose_status(&anna, PresenceStatus::Away, None).await.unwrap();
        assert_eq!(state(Some(&orders)).await, ("busy".to_owned(), 0));
    }

    async fn a_conversation_that_sleeps_stays_with_its_agent_and_wakes_with_a_promise(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        chat.configure(ChatOptions { first_reply: MINUTE, away_after: Duration::ZERO, ..ChatOptions::default() });
        let anna = agent(&chat, "anna", 5).await;
        let stay = async || {
            chat.renew_connection(&anna, "c", CONNECTION_LEASE, true).await.unwrap();
        };
        stay().await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        assert_eq!(chat.dispatch().await.unwrap(), 1);
        chat.settle().await;
        let until = Millis(t.store.now().0 + 600_000);
        let sleep = ConversationChange {
            status: Some(ConversationStatus::Pending), wakes_at: Some(until), ..Default::default()
        };
        let asleep = change(&chat, &id, sleep).await;
        assert!(asleep.sla_due_at.is_none());
        t.clock.advance(2 * MINUTE);
        stay().await;
        assert_eq!(chat.sweep_replies().await.unwrap(), 0, "nobody waits for a reply");
        // The same after the store has lost everything.
        let () = t.store.clone().del(key(&t.store, "chat:ready")).await.unwrap();
        chat.maintain(30).await.unwrap();
        stay().await;
        assert_eq!(chat.sweep_replies().await.unwrap(), 0);
        t.clock.advance(20 * MINUTE);
        assert_eq!(chat.sweep_presence().await.unwrap(), 0, "an agent who is gone keeps what sleeps");
        stay().await;
        assert_eq!(chat.sweep_snoozed().await.unwrap(), 1);
        let awake = chat.conversation(&id).await.unwrap();
        assert_eq!(awake.assignee.as_ref(), Some(&anna));
        assert!(awake.sla_due_at.is_some_and(|due| due > t.store.now()), "promised anew: {awake:?}");
        assert_eq!(awake.sla_state, "running");
    }

    async fn a_program_that_hands_over_starts_the_promise_and_its_reason_is_for_agents(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let new = NewConversation {
            visitor: visitor("v1"), message: says("v1", "hello"), priority: ChatPriority::Urgent, subject: None,
            team: None, skills: Vec::new(), channel: ConversationChannel::Widget, bot: true, is_offline: false,
        };
        let id = chat.start_conversation(new).await.unwrap().conversation.id;
        chat.settle().await;
        let unread = key(&t.store, "chat:conversations:unread");
        assert_eq!(t.store.clone().zcard::<_, i64>(&unread).await.unwrap(), 0, "a program answers");
        assert!(chat.conversation(&id).await.unwrap().sla_due_at.is_none());
        let hand_over = ConversationChange {
            bot: Some(false), reason: Some("the customer is angry".to_owned()), ..Default::default()
        };
        let handed = change(&chat, &id, hand_over).await;
        assert!(handed.sla_due_at.is_some());
        assert_eq!(t.store.clone().zcard::<_, i64>(&unread).await.unwrap(), 1);
        let events = key(&t.store, "chat:events");
        let mut last = redis::cmd("XREVRANGE");
        last.arg(&events).arg("+").arg("-").arg("COUNT").arg(1);
        let last: Vec<(String, Vec<String>)> = last.query_async(&mut t.store.clone()).await.unwrap();
        let field = |name: &str| {
            let fields = &last[0].1;
            let at = fields.chunks(2).find(|pair| pair[0] == name).unwrap();
            at[1].clone()
        };
        assert_eq!(field("kind"), "conversation.updated");
        assert!(field("data").contains("angry"));
        assert!(!field("visitor_data").is_empty() && !field("visitor_data").contains("angry"));
    }

    async fn a_transfer_that_is_refused_changes_nothing(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let (anna, ben) = (agent(&chat, "anna", 5).await, agent(&chat, "ben", 1).await);
        let team = chat.put_team(None, "Returns", BusinessHours::default()).await.unwrap().id;
        let busy = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        let id = start(&chat, "v2", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        let before = chat.conversation(&id).await.unwrap();
        let moved = chat.transfer(&id, Ok(ben.clone()), Some("yours"), &anna).await;
        assert_eq!(code(moved), "AGENT_OFFLINE");
        come_online(&chat, &ben).await;
        chat.transfer(&busy, Ok(ben.clone()), None, &anna).await.unwrap();
        let moved = chat.transfer(&id, Ok(ben.clone()), Some("yours"), &anna).await;
        assert_eq!(code(moved), "AGENT_AT_CAPACITY");
        let too_long = "x".repeat(4_001);
        assert!(chat.transfer(&id, Err(team.clone()), Some(&too_long), &anna).await.is_err());
        assert_eq!(chat.conversation(&id).await.unwrap(), before);
        let resolve = ConversationChange { status: Some(ConversationStatus::Resolved), ..Default::default() };
        change(&chat, &id, resolve).await;
        let moved = chat.transfer(&id, Err(team.clone()), Some("yours"), &anna).await;
        assert_eq!(code(moved), "CONVERSATION_RESOLVED");
        let after = chat.conversation(&id).await.unwrap();
        assert_eq!((after.team, after.last_seq), (None, before.last_seq));
        let moved = chat.transfer(&busy, Err(team.clone()), Some("theirs"), &anna).await.unwrap();
        assert_eq!((moved.team, moved.assignee), (Some(team), None));
        let notes = chat.messages(&busy, None, None, 10, true).await.unwrap().messages;
        assert_eq!(notes.last().unwrap().content, "theirs");
    }

    async fn a_mention_is_a_whole_name(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let add = async |name: &str, email: &str| {
            let new = NewAgent { name: name.to_owned(), email: email.to_owned(), ..team_agent("x", &TeamId::parse("t").unwrap()) };
            chat.add_agent(NewAgent { teams: Vec::new(), ..new }).await.unwrap().0.id.to_string()
        };
        let ann = add("Ann", "a@example.org").await;
        let anna = add("Anna Berg", "anna@example.org").await;
        let other = add("Anna Holm", "holm@example.org").await;
        let writer = AgentId::parse(&ann).unwrap();
        for (text, expected) in [
            ("ask @anna berg, please", vec![&anna]),
            ("ask @Anna Holm.", vec![&other]),
            ("ask @Ann", vec![&ann]),
            ("ask @annabel", vec![]),
            ("@anna?", vec![&anna, &other]),
            ("write to @holm@example.org", vec![&other]),
            ("an e-mail to x@annas.example", vec![]),
        ] {
            let id = start(&chat, &format!("v{}", fastrand::u64(..)), ChatPriority::Normal).await.conversation.id;
            let mut note = replies(&writer, text);
            note.is_note = true;
            let mut found = chat.send(&id, note).await.unwrap().conversation.mentions;
            let mut expected: Vec<String> = expected.into_iter().cloned().collect();
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{text}");
        }
    }

    async fn people_are_found_by_the_beginning_of_a_name_or_an_address(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        for (id, name, email) in [
            ("v1", "Eva Brandt", "eva.brandt@example.com"),
            ("v2", "Evan 100%", "evan@example.net"),
            ("v3", "Jo", "brandy@example.org"),
        ] {
            start(&chat, id, ChatPriority::Normal).await;
            let change = VisitorChange {
                name: Some(name.to_owned()), email: Some(email.to_owned()), ..VisitorChange::default()
            };
            chat.put_visitor(&visitor(id), change).await.unwrap();
        }
        let find = async |text: &str| {
            let list = ConversationList { text: Some(text.to_owned()), ..ConversationList::default() };
            let mut found: Vec<String> =
                chat.list(&list).await.unwrap().0.iter().map(|one| one.visitor.id.to_string()).collect();
            found.sort();
            found
        };
        assert_eq!(find("eva").await, ["v1", "v2"]);
        assert_eq!(find("BRAND").await, ["v1", "v3"]);
        assert_eq!(find("eva.brandt@example").await, ["v1"]);
        assert_eq!(find("100%").await, ["v2"]);
        assert_eq!(find("%").await, Vec::<String>::new());
        assert_eq!(find("hello").await, ["v1", "v2", "v3"], "words of messages as before");
    }

    async fn a_deleted_message_is_not_previewed(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 5).await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        let sent = chat.send(&id, says("v1", "my card number is 1234")).await.unwrap().message;
        let mut note = replies(&anna, "look");
        note.is_note = true;
        chat.send(&id, note).await.unwrap();
        chat.delete_message(&id, &sent.id, Sender::Visitor(visitor("v1"))).await.unwrap();
        assert_eq!(chat.conversation(&id).await.unwrap().last_preview, "");
    }

    async fn reports_count_by_day_agent_and_tag_and_list_every_conversation_once(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 50).await;
        let from = t.store.now();
        let mut ids = Vec::new();
        for n in 0..7 {
            let id = start(&chat, &format!("v{n}"), ChatPriority::Normal).await.conversation.id;
            let tags = if n < 3 { vec!["refund".to_owned(), "late x".to_owned()] } else { vec![] };
            change(&chat, &id, ConversationChange { tags: Some(tags), ..Default::default() }).await;
            ids.push(id);
        }
        t.clock.advance(10 * SECOND);
        for id in &ids[..2] {
            chat.send(id, MessageDraft::text(Sender::Agent(anna.clone()), "hi")).await.unwrap();
            chat.settle().await;
        }
        t.clock.advance(50 * SECOND);
        let resolve = ConversationChange { status: Some(ConversationStatus::Resolved), ..Default::default() };
        change(&chat, &ids[0], resolve).await;
        chat.rate(&ids[0], &visitor("v0"), 4, None).await.unwrap();
        t.clock.advance(SECOND);
        let to = t.store.now();
        let report = async |group| chat.report(from, to, group).await.unwrap();
        let tags = report(ReportGroup::Tag).await;
        let keys: Vec<&str> = tags.iter().map(|row| row.key.as_str()).collect();
        assert_eq!(keys, ["late x", "refund"]);
        for row in &tags {
            assert_eq!((row.created, row.resolved, row.replies, row.ratings), (3, 1, 2, 1));
            assert_eq!((row.first_reply_ms, row.resolution_ms), (Some(10_000), Some(60_000)));
            assert_eq!((row.rating, row.in_time_percent), (Some(4.0), Some(100.0)));
        }
        let day: i64 = report(ReportGroup::Day).await.iter().map(|row| row.created).sum();
        assert_eq!(day, 7);
        let agents = report(ReportGroup::Agent).await;
        let own = agents.iter().find(|row| row.key == anna.as_str()).unwrap();
        assert_eq!((own.replies, own.resolved, own.name.as_deref()), (2, 1, Some("anna")));
        let mut seen: Vec<ConversationId> = Vec::new();
        let mut last: Option<Conversation> = None;
        loop {
            let page = chat.report_conversations(from, to, last.as_ref(), 3).await.unwrap();
            let Some(end) = page.last().cloned() else { break };
            seen.extend(page.into_iter().map(|one| one.id));
            last = Some(end);
        }
        seen.sort();
        ids.sort();
        assert_eq!(seen, ids);
        assert!(chat.report(to, from, ReportGroup::Day).await.is_err());
        let contents = chat.archive().contents().await.unwrap();
        assert_eq!((contents.open_conversations, contents.resolved_conversations), (6, 1));
        assert!(contents.bytes > 0 && contents.messages == 9 && contents.visitors == 7);
        assert_eq!(contents.files, 0);
    }
}
