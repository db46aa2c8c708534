//! Conversations, messages and what is published of them. The codes in brackets are those of the list
//! of traps.

use std::{collections::HashSet, sync::Arc, time::Duration};

use desk::{
    AgentId, ConversationId, Error, InstanceId, Prefix, UserId,
    archive::{Archive, ArchivePlace, ArchiveSync},
    chat::{
        AgentRole, AssignRequest, CONNECTION_LEASE, Chat, ChatOptions, ChatParts, ChatPriority,
        Conversation, ConversationChange, ConversationChannel, ConversationList,
        ConversationStatus, Listener, MessageDraft, NewAgent, NewConversation, PresenceStatus,
        Sender, SentMessage, urgency_score,
    },
    users::{UserOptions, Users},
};
use serde_json::Value;
use store::{Layout, Store, redis::AsyncCommands};
use testkit::{TestArchive, TestStore, each_archive};

use crate::support::{MINUTE, SECOND};

pub(crate) async fn open_on(store: &Store, archive: &TestArchive, name: &str) -> Chat {
    let place = ArchivePlace::parse(archive.place()).unwrap();
    let archive_open = Archive::open(&place, ArchiveSync::default()).await.unwrap();
    open_with(store, archive_open, archive, name).await.unwrap()
}

async fn open_with(
    store: &Store,
    open: Archive,
    archive: &TestArchive,
    name: &str,
) -> Result<Chat, Error> {
    let prefix = Prefix::default();
    Chat::open(ChatParts {
        store: store.clone(),
        users: Users::new(store, &prefix, UserOptions::default()).unwrap(),
        prefix,
        archive: open,
        instance: InstanceId::parse(name).unwrap(),
        files: archive.folder().join("files"),
        options: ChatOptions { first_reply: Duration::ZERO, ..ChatOptions::default() },
    })
    .await
}

pub(crate) fn visitor(name: &str) -> UserId {
    UserId::parse(name).unwrap()
}

pub(crate) fn says(name: &str, text: &str) -> MessageDraft {
    MessageDraft::text(Sender::Visitor(visitor(name)), text)
}

pub(crate) fn replies(agent: &AgentId, text: &str) -> MessageDraft {
    MessageDraft::text(Sender::Agent(agent.clone()), text)
}

pub(crate) async fn start(chat: &Chat, name: &str, priority: ChatPriority) -> SentMessage {
    chat.start_conversation(NewConversation {
        visitor: visitor(name),
        message: says(name, "hello"),
        priority,
        subject: None,
        team: None,
        skills: Vec::new(),
        channel: ConversationChannel::Widget,
        bot: false,
        is_offline: false,
    })
    .await
    .unwrap()
}

pub(crate) async fn agent(chat: &Chat, name: &str, capacity: u32) -> AgentId {
    let new = NewAgent {
        email: format!("{name}@example.org"),
        name: name.to_owned(),
        role: AgentRole::Agent,
        capacity: Some(capacity),
        skills: Vec::new(),
        teams: Vec::new(),
    };
    chat.add_agent(new).await.unwrap().0.id
}

pub(crate) async fn come_online(chat: &Chat, agent: &AgentId) {
    let status = chat.renew_connection(agent, "c1", CONNECTION_LEASE, true).await.unwrap();
    assert_eq!(status, PresenceStatus::Online);
}

/// A key of the chat as the store at hand spells it.
pub(crate) fn key(store: &Store, name: &str) -> String {
    match store.layout() {
        Layout::Standalone => format!("ha:{name}"),
        Layout::Cluster => format!("ha:{{chat}}:{name}"),
    }
}

async fn published(store: &Store, id: &ConversationId) -> Vec<Value> {
    let key = key(store, &format!("chat:conversation:{id}:messages"));
    let items: Vec<String> = store.clone().lrange(key, 0, -1).await.unwrap();
    items.iter().map(|item| serde_json::from_str(item).unwrap()).collect()
}

async fn scores(store: &Store, name: &str) -> Vec<(String, i64)> {
    let found: Vec<(String, f64)> =
        store.clone().zrevrange_withscores(key(store, name), 0, -1).await.unwrap();
    found.into_iter().map(|(id, score)| (id, score as i64)).collect()
}

async fn conflict(outcome: Result<Conversation, Error>) -> &'static str {
    match outcome {
        Err(Error::Conflict { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}

each_archive! {
    async fn messages_are_numbered_kept_and_published(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let started = start(&chat, "v1", ChatPriority::High).await;
        let id = started.conversation.id.clone();
        assert_eq!(started.message.seq, 1);
        t.clock.advance(SECOND);
        for n in 2..=4 {
            let sent = chat.send(&id, says("v1", &format!("message {n}"))).await.unwrap();
            assert_eq!(sent.message.seq, n);
        }
        chat.settle().await;
        let page = chat.messages(&id, None, None, 100, true).await.unwrap();
        assert_eq!(page.messages.iter().map(|m| m.seq).collect::<Vec<_>>(), [1, 2, 3, 4]);
        let list = published(&t.store, &id).await;
        assert_eq!(list.len(), 4);
        assert_eq!(list[0]["content"], "message 4", "newest first");
        assert_eq!(list[3]["sender_role"], "user");
        assert_eq!(list[3]["timestamp"], "2026-01-01T00:00:00.000Z");
        assert!(list[3]["id"].as_str().is_some_and(|id| id.starts_with("msg_")));
        // [Q4] The place in the queue is that of the first unanswered message.
        let since = testkit::each_store::START;
        assert_eq!(scores(&t.store, "chat:conversations:unread").await, [(id.to_string(), urgency_score(3, since))]);
        assert_eq!(scores(&t.store, "chat:conversations:active").await[0].1, since.0 + 1_000);
        // Every published key has a TTL. [P2]
        for name in ["chat:conversations:active", "chat:conversations:unread", "chat:ready"] {
            let ttl: i64 = t.store.clone().ttl(key(&t.store, name)).await.unwrap();
            assert!((1..=3_600).contains(&ttl), "{name}: {ttl}");
        }
    }

    async fn a_repeated_send_is_one_message(t: TestStore, a: TestArchive) {
        // [Q13]
        let chat = open_on(&t.store, &a, "i1").await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        let mut draft = says("v1", "once");
        draft.client_id = Some("c-1".to_owned());
        let sends = (0..10).map(|_| chat.send(&id, draft.clone()));
        let sent = futures_util::future::join_all(sends).await;
        let numbers: HashSet<i64> = sent.iter().map(|sent| sent.as_ref().unwrap().message.seq).collect();
        assert_eq!(numbers, HashSet::from([2]));
        assert_eq!(sent.iter().filter(|sent| !sent.as_ref().unwrap().is_repeated).count(), 1);
        assert_eq!(chat.messages(&id, None, None, 100, true).await.unwrap().messages.len(), 2);
    }

    async fn two_instances_number_one_conversation_without_gaps_and_publish_in_order(t: TestStore, a: TestArchive) {
        // [Q12]
        let one = open_on(&t.store, &a, "i1").await;
        let other = open_on(&t.another().await, &a, "i2").await;
        let id = start(&one, "v1", ChatPriority::Normal).await.conversation.id;
        let mut sends = Vec::new();
        for n in 0..60 {
            let (chat, id) = (if n % 2 == 0 { one.clone() } else { other.clone() }, id.clone());
            sends.push(tokio::spawn(async move { chat.send(&id, says("v1", "x")).await.unwrap().message.seq }));
        }
        let mut numbers = Vec::new();
        for send in sends {
            numbers.push(send.await.unwrap());
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (2..=61).collect::<Vec<_>>());
        one.settle().await;
        other.settle().await;
        let list = published(&t.store, &id).await;
        let published: Vec<i64> = list.iter().map(|m| m["seq"].as_i64().unwrap()).collect();
        assert_eq!(published, (1..=61).rev().collect::<Vec<_>>());
        assert_eq!(one.archive().verify().await.unwrap(), Vec::<String>::new());
    }

    async fn what_a_killed_process_left_behind_is_delivered_once(t: TestStore, a: TestArchive) {
        // [Q14] The store is away while messages are committed, and the process ends.
        let chat = open_on(&t.store, &a, "i1").await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        t.faults.go_away();
        for n in 2..=5 {
            assert_eq!(chat.send(&id, says("v1", "x")).await.unwrap().message.seq, n);
        }
        chat.settle().await;
        drop(chat);
        t.faults.come_back();
        let chat = open_on(&t.another().await, &a, "i2").await;
        t.clock.advance(5 * SECOND);
        assert_eq!(chat.sweep_outbox().await.unwrap(), 4);
        assert_eq!(chat.sweep_outbox().await.unwrap(), 0);
        let list = published(&t.store, &id).await;
        let published: Vec<i64> = list.iter().map(|m| m["seq"].as_i64().unwrap()).collect();
        assert_eq!(published, [5, 4, 3, 2, 1]);
    }

    async fn what_is_published_comes_back_from_the_archive(t: TestStore, a: TestArchive) {
        // [P8, Q6, Q10] An idle hour, a deleted key and an empty store.
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 5).await;
        come_online(&chat, &anna).await;
        let first = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        let second = start(&chat, "v2", ChatPriority::Urgent).await.conversation.id;
        chat.settle().await;
        assert_eq!(chat.dispatch().await.unwrap(), 2);
        chat.settle().await;
        let third = start(&chat, "v3", ChatPriority::Low).await.conversation.id;
        chat.settle().await;
        let names = ["chat:conversations:active", "chat:conversations:unread", "chat:conversations:waiting"];
        let mut before = Vec::new();
        for name in names {
            before.push(scores(&t.store, name).await);
        }
        let set = key(&t.store, &format!("admin:{anna}:assignments"));
        for lost in ["chat:conversations:active", "chat:conversations:unread", "set", "chat:ready", "everything"] {
            let mut store = t.store.clone();
            match lost {
                "everything" => {
                    let () = store::redis::cmd("FLUSHALL").query_async(&mut store).await.unwrap();
                    come_online(&chat, &anna).await;
                }
                "set" => { let () = store.del(&set).await.unwrap(); }
                name => { let () = store.del(key(&t.store, name)).await.unwrap(); }
            }
            // The next use finds out: a message, and an assignment.
            chat.send(&third, says("v3", "still here")).await.unwrap();
            chat.settle().await;
            chat.dispatch().await.unwrap();
            if lost == "set" {
                // Nobody waits, so nothing uses the set; the periodic work finds out.
                chat.maintain(30).await.unwrap();
            }
            chat.settle().await;
            let owned: HashSet<String> = store.smembers(&set).await.unwrap();
            let all = HashSet::from([first.to_string(), second.to_string(), third.to_string()]);
            assert_eq!(owned, all, "after losing {lost}");
            for (name, before) in names.iter().zip(&before).take(2) {
                assert_eq!(scores(&t.store, name).await, *before, "{name} after losing {lost}");
            }
        }
    }

    async fn one_loss_is_one_rebuild_and_an_overtaken_one_is_found_out(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 50).await;
        let mut ids = Vec::new();
        for n in 0..16 {
            ids.push(start(&chat, &format!("v{n}"), ChatPriority::Normal).await.conversation.id);
        }
        chat.settle().await;
        let (mut store, ready) = (t.store.clone(), key(&t.store, "chat:ready"));
        let mut before: i64 = store.hget(&ready, "generation").await.unwrap();
        assert_eq!(before, 1);
        for id in &ids[..5] {
            let () = store.del(&ready).await.unwrap();
            // Everyone who uses it finds out at the same time.
            let sends = ids.iter().zip(0..).map(|(id, n)| chat.send(id, says(&format!("v{n}"), "x")));
            for sent in futures_util::future::join_all(sends).await {
                sent.unwrap();
            }
            chat.settle().await;
            let after: i64 = store.hget(&ready, "generation").await.unwrap();
            assert_eq!(after, before + 1);
            before = after;
            let taken = chat.assign(id, to(Some(&anna), Some(None))).await.unwrap();
            assert_eq!(taken.assignee.as_ref(), Some(&anna));
        }
        // A process that lost its lease marks what it has put together, and assignments go on.
        for id in &ids[5..10] {
            let () = store.hset(&ready, "generation", before - 1).await.unwrap();
            let taken = chat.assign(id, to(Some(&anna), Some(None))).await.unwrap();
            assert_eq!(taken.assignee.as_ref(), Some(&anna));
            before += 1;
            assert_eq!(store.hget::<_, _, i64>(&ready, "generation").await.unwrap(), before);
        }
        let () = store.hset(&ready, "generation", before - 1).await.unwrap();
        come_online(&chat, &anna).await;
        assert_eq!(chat.dispatch().await.unwrap(), 6);
        for id in &ids {
            assert_eq!(chat.conversation(id).await.unwrap().assignee.as_ref(), Some(&anna));
        }
    }

    async fn a_list_that_expired_is_filled_before_it_grows(t: TestStore, a: TestArchive) {
        // [Q10, Q11]
        let chat = open_on(&t.store, &a, "i1").await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        let second = chat.send(&id, says("v1", "two")).await.unwrap().message;
        chat.settle().await;
        let list = key(&t.store, &format!("chat:conversation:{id}:messages"));
        let () = t.store.clone().del(&list).await.unwrap();
        chat.send(&id, says("v1", "three")).await.unwrap();
        chat.settle().await;
        assert_eq!(published(&t.store, &id).await.len(), 3);
        chat.edit(&id, &second.id, Sender::Visitor(visitor("v1")), "zwei").await.unwrap();
        chat.settle().await;
        assert_eq!(published(&t.store, &id).await[1]["content"], "zwei");
        chat.delete_message(&id, &second.id, Sender::Visitor(visitor("v1"))).await.unwrap();
        chat.settle().await;
        let list = published(&t.store, &id).await;
        assert_eq!((&list[1]["content"], &list[1]["deleted"]), (&Value::from(""), &Value::from(true)));
    }

    async fn notes_reach_no_visitor(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 5).await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        let begin = chat.listen(Listener::Visitor(visitor("v1")), None).await.unwrap().place;
        let mut note = replies(&anna, "a difficult one, @anna");
        note.is_note = true;
        chat.send(&id, note).await.unwrap();
        chat.send(&id, replies(&anna, "hello")).await.unwrap();
        chat.settle().await;
        let seen = chat.listen(Listener::Visitor(visitor("v1")), Some(begin)).await.unwrap();
        assert!(seen.is_resumed);
        let me = Listener::Visitor(visitor("v1"));
        let text: String = seen.backlog.iter().filter_map(|event| event.data_for(&me)).collect();
        assert!(text.contains("hello") && !text.contains("difficult"), "{text}");
        assert!(published(&t.store, &id).await.iter().all(|m| m["type"] != "note"));
        let page = chat.messages(&id, None, None, 100, false).await.unwrap();
        assert_eq!(page.messages.iter().map(|m| m.seq).collect::<Vec<_>>(), [1, 3]);
        let everything = chat.listen(Listener::Agent(anna.clone()), Some(begin)).await.unwrap();
        let as_agent = Listener::Agent(anna.clone());
        let text: String = everything.backlog.iter().filter_map(|e| e.data_for(&as_agent)).collect();
        assert!(text.contains("difficult"));
        let mentioned = ConversationList {
            view: desk::chat::ConversationView::Mentions, agent: Some(anna), ..ConversationList::default()
        };
        assert_eq!(chat.list(&mentioned).await.unwrap().0.len(), 1);
        // Nobody else's visitor sees anything of it.
        let other = chat.listen(Listener::Visitor(visitor("v2")), Some(begin)).await.unwrap();
        let other_listener = Listener::Visitor(visitor("v2"));
        assert!(other.backlog.iter().all(|event| !event.data_for(&other_listener).unwrap().contains("hello")));
    }

    async fn bad_messages_are_refused_and_change_nothing(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        let long = "x".repeat(4_001);
        for text in ["", "   ", "a\0b", &long] {
            assert!(matches!(chat.send(&id, says("v1", text)).await, Err(Error::Invalid { field: "content", .. })));
        }
        assert_eq!(chat.send(&id, says("v1", &"ü".repeat(4_000))).await.unwrap().message.seq, 2);
        let mut draft = says("v1", "x");
        draft.client_id = Some("no spaces".to_owned());
        assert!(matches!(chat.send(&id, draft).await, Err(Error::Invalid { field: "client_id", .. })));
        // Another visitor's conversation does not exist.
        let not_there = |outcome: &Error| matches!(outcome, Error::NotFound { what: "conversation" });
        assert!(not_there(&chat.send(&id, says("v2", "x")).await.unwrap_err()));
        let other = Sender::Visitor(visitor("v2"));
        assert!(not_there(&chat.mark_read(&id, other.clone(), 1).await.unwrap_err()));
        assert!(not_there(&chat.show_typing(&id, &other, true, false).await.unwrap_err()));
        assert!(not_there(&chat.rate(&id, &visitor("v2"), 5, None).await.unwrap_err()));
        let own = Sender::Visitor(visitor("v1"));
        assert!(matches!(chat.mark_read(&id, own, 99).await, Err(Error::Invalid { field: "seq", .. })));
        let second = chat.start_conversation(NewConversation {
            visitor: visitor("v1"), message: says("v1", "again"), priority: ChatPriority::Normal, subject: None,
            team: None, skills: Vec::new(), channel: ConversationChannel::Widget, bot: false, is_offline: false,
        }).await;
        assert!(matches!(second, Err(Error::Conflict { code: "OPEN_CONVERSATION_EXISTS", .. })));
        assert_eq!(chat.messages(&id, None, None, 100, true).await.unwrap().messages.len(), 2);
    }

    async fn edits_end_after_five_minutes_and_are_for_the_writer(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 5).await;
        let started = start(&chat, "v1", ChatPriority::Normal).await;
        let (id, message) = (started.conversation.id, started.message.id);
        let own = Sender::Visitor(visitor("v1"));
        let by_agent = chat.edit(&id, &message, Sender::Agent(anna), "changed").await;
        assert!(matches!(by_agent, Err(Error::NotFound { what: "message" })));
        t.clock.advance(5 * MINUTE);
        assert!(chat.edit(&id, &message, own.clone(), "changed").await.unwrap().edited_at.is_some());
        t.clock.advance(SECOND);
        let late = chat.edit(&id, &message, own.clone(), "again").await;
        assert!(matches!(late, Err(Error::Conflict { code: "TOO_LATE", .. })));
        assert!(matches!(chat.delete_message(&id, &message, own).await, Err(Error::Conflict { code: "TOO_LATE", .. })));
    }

    async fn read_marks_only_grow_and_only_the_assignee_clears(t: TestStore, a: TestArchive) {
        // [Q7, Q8]
        let chat = open_on(&t.store, &a, "i1").await;
        let (anna, berta) = (agent(&chat, "anna", 5).await, agent(&chat, "berta", 5).await);
        come_online(&chat, &anna).await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        chat.send(&id, says("v1", "two")).await.unwrap();
        chat.settle().await;
        chat.dispatch().await.unwrap();
        let by = |agent: &AgentId| Sender::Agent(agent.clone());
        let seen = chat.mark_read(&id, by(&berta), 2).await.unwrap();
        assert_eq!((seen.unread_agent, seen.agent_read_seq), (2, 0), "an observer clears nothing");
        let seen = chat.mark_read(&id, by(&anna), 1).await.unwrap();
        assert_eq!((seen.unread_agent, seen.agent_read_seq), (1, 1));
        let seen = chat.mark_read(&id, by(&anna), 2).await.unwrap();
        assert_eq!(seen.unread_agent, 0);
        assert!(seen.waiting_since.is_some(), "reading is no reply");
        assert_eq!(chat.mark_read(&id, by(&anna), 1).await.unwrap().agent_read_seq, 2);
        chat.settle().await;
        assert!(scores(&t.store, "chat:conversations:unread").await.is_empty());
    }

    async fn a_message_reopens_or_starts_anew(t: TestStore, a: TestArchive) {
        // [Q17]
        let chat = open_on(&t.store, &a, "i1").await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        let resolve = || ConversationChange { status: Some(ConversationStatus::Resolved), ..Default::default() };
        chat.change_conversation(&id, resolve(), None, None).await.unwrap();
        chat.settle().await;
        assert!(scores(&t.store, "chat:conversations:active").await.is_empty());
        assert!(scores(&t.store, "chat:conversations:waiting").await.is_empty());
        t.clock.advance(7 * 24 * 60 * MINUTE);
        let sent = chat.send(&id, says("v1", "one more thing")).await.unwrap();
        assert_eq!((sent.conversation.id.clone(), sent.conversation.status), (id.clone(), ConversationStatus::Open));
        chat.settle().await;
        assert_eq!(scores(&t.store, "chat:conversations:waiting").await.len(), 1);
        chat.change_conversation(&id, resolve(), None, None).await.unwrap();
        t.clock.advance(7 * 24 * 60 * MINUTE + SECOND);
        let mut draft = says("v1", "years later");
        draft.client_id = Some("late-1".to_owned());
        let sent = chat.send(&id, draft.clone()).await.unwrap();
        assert_ne!(sent.conversation.id, id);
        assert_eq!(sent.message.seq, 1);
        assert_eq!(chat.send(&id, draft).await.unwrap().message.id, sent.message.id);
        let wrong = chat.change_conversation(&id, resolve(), Some(1), None).await;
        assert_eq!(conflict(wrong).await, "VERSION_MISMATCH");
    }

    async fn search_finds_words_and_lists_page_without_gaps(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let mut ids = Vec::new();
        for n in 0..25 {
            t.clock.advance(SECOND);
            let id = start(&chat, &format!("v{n}"), ChatPriority::Normal).await.conversation.id;
            if n % 5 == 0 {
                chat.send(&id, says(&format!("v{n}"), "Where is my Überweisung?")).await.unwrap();
            }
            ids.push(id);
        }
        let find = |text: &str| ConversationList { text: Some(text.to_owned()), ..ConversationList::default() };
        assert_eq!(chat.list(&find("überweis")).await.unwrap().0.len(), 5);
        assert_eq!(chat.list(&find("nothing \" OR 1=1 --")).await.unwrap().0.len(), 0);
        let mut list = ConversationList { limit: 10, ..ConversationList::default() };
        let mut seen = Vec::new();
        loop {
            let (page, next) = chat.list(&list).await.unwrap();
            seen.extend(page.into_iter().map(|one| one.id));
            let Some(next) = next else { break };
            list.cursor = Some(next);
        }
        ids.reverse();
        assert_eq!(seen, ids);
        let counts = chat.counts(None).await.unwrap();
        assert_eq!((counts.all, counts.unassigned, counts.unread), (25, 25, 25));
        list.cursor = Some("nonsense".to_owned());
        assert!(matches!(chat.list(&list).await, Err(Error::Invalid { field: "cursor", .. })));
    }

    async fn a_second_archive_on_one_store_is_refused(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let other = TestArchive::sqlite();
        let place = ArchivePlace::parse(other.place()).unwrap();
        let open = Archive::open(&place, ArchiveSync::default()).await.unwrap();
        let refused = open_with(&t.another().await, open, &other, "i2").await;
        assert!(matches!(refused, Err(Error::Conflict { code: "OTHER_ARCHIVE", .. })));
        chat.archive().check().await.unwrap();
        // The same one opens again, with everything in it.
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        let again = open_on(&t.another().await, &a, "i3").await;
        assert_eq!(again.conversation(&id).await.unwrap().id, id);
    }

    async fn a_person_is_erased_everywhere(t: TestStore, a: TestArchive) {
        // [Q18]
        let chat = open_on(&t.store, &a, "i1").await;
        let id = start(&chat, "erase-me", ChatPriority::Normal).await.conversation.id;
        let file = chat.put_file("erase-me", "secret.txt", b"secret contents".to_vec()).await.unwrap();
        let mut draft = says("erase-me", "with a file");
        draft.attachments = vec![file.id.clone()];
        chat.send(&id, draft).await.unwrap();
        let kept = start(&chat, "other", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        assert_eq!(chat.erase_visitor(&visitor("erase-me")).await.unwrap(), 1);
        chat.settle().await;
        assert!(matches!(chat.conversation(&id).await, Err(Error::NotFound { .. })));
        assert!(chat.conversation(&kept).await.is_ok());
        let everything = format!("{:?}", testkit::content(&t.store).await);
        assert!(!everything.contains("erase-me") && !everything.contains(id.as_str()), "{everything}");
        let find = ConversationList { text: Some("file".to_owned()), ..ConversationList::default() };
        assert!(chat.list(&find).await.unwrap().0.is_empty());
        assert!(matches!(chat.file(&file.id).await, Err(Error::NotFound { .. })));
        let files = walk(&a.folder().join("files"));
        assert!(files.is_empty(), "{files:?}");
        if let Ok(bytes) = std::fs::read(a.place()) {
            let _ = bytes; // SQLite keeps free pages until they are used again; rows are gone
        }
    }
}

pub(crate) fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}

each_archive! {
    async fn a_client_that_comes_back_misses_nothing_and_gets_nothing_twice(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        let stop = tokio_util::sync::CancellationToken::new();
        let (follower, token) = (chat.clone(), stop.clone());
        let running = tokio::spawn(async move { follower.run(token).await });
        let me = Listener::Visitor(visitor("v1"));
        let mut place = chat.listen(me.clone(), None).await.unwrap().place;
        let writer = chat.clone();
        let wanted = id.clone();
        let writing = tokio::spawn(async move {
            for _ in 0..100 {
                writer.send(&wanted, says("v1", "x")).await.unwrap();
            }
        });
        // Cut after every few events, wherever that is.
        let mut seen: Vec<i64> = Vec::new();
        let mut cut = 0;
        while seen.last() != Some(&101) {
            cut += 1;
            let mut live = chat.listen(me.clone(), Some(place)).await.unwrap();
            assert!(live.is_resumed);
            place = live.place;
            if cut % 5 == 0 {
                // Cut after the greeting, before anything of the backlog.
                continue;
            }
            let mut take = |id, kind: &str, data: &str| {
                place = id;
                if kind == "message.created" {
                    let data: Value = serde_json::from_str(data).unwrap();
                    seen.push(data["message"]["seq"].as_i64().unwrap());
                }
            };
            for event in &live.backlog {
                take(event.id, &event.kind, event.data_for(&me).unwrap());
            }
            for _ in 0..cut % 7 {
                let next = tokio::time::timeout(Duration::from_millis(200), live.subscription.next()).await;
                let Ok(Some(event)) = next else { break };
                take(event.id, &event.kind, event.data_for(&me).unwrap());
            }
        }
        writing.await.unwrap();
        assert_eq!(seen, (2..=101).collect::<Vec<_>>());
        stop.cancel();
        running.await.unwrap();
    }

    async fn a_client_that_listens_before_events_are_followed_misses_nothing(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let mut live = chat.listen(Listener::Visitor(visitor("v1")), None).await.unwrap();
        start(&chat, "v1", ChatPriority::Normal).await;
        chat.settle().await;
        let stop = tokio_util::sync::CancellationToken::new();
        let (follower, token) = (chat.clone(), stop.clone());
        let running = tokio::spawn(async move { follower.run(token).await });
        testkit::until("the message is delivered", async || {
            let event = live.subscription.next_now()?;
            (event.kind == "message.created").then_some(())
        })
        .await;
        stop.cancel();
        running.await.unwrap();
    }

    async fn consoles_are_told_of_canned_responses_and_visitors_are_not(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let (anna, guest) = (Listener::Agent(agent(&chat, "anna", 1).await), Listener::Visitor(visitor("v1")));
        let mut place = chat.listen(anna.clone(), None).await.unwrap().place;
        let told = async |listener: &Listener, place| {
            let start = chat.listen(listener.clone(), Some(place)).await.unwrap();
            start.backlog.iter().map(|event| event.kind.clone()).collect::<Vec<_>>()
        };
        let begin = place;
        let canned = chat.put_canned(None, "hello", "Hello!").await.unwrap();
        assert_eq!(told(&anna, place).await, ["canned.updated"]);
        place = chat.listen(anna.clone(), None).await.unwrap().place;
        chat.put_canned(Some(&canned.id), "hi", "Hi!").await.unwrap();
        assert_eq!(told(&anna, place).await, ["canned.updated"]);
        place = chat.listen(anna.clone(), None).await.unwrap().place;
        assert!(chat.put_canned(Some("none"), "x", "x").await.is_err() && chat.delete_canned("none").await.is_err());
        assert!(told(&anna, place).await.is_empty(), "what was refused is not told");
        chat.delete_canned(&canned.id).await.unwrap();
        assert_eq!(told(&anna, place).await, ["canned.updated"]);
        assert!(told(&guest, begin).await.is_empty());
    }

    async fn a_reader_far_behind_is_cut_off(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        let stop = tokio_util::sync::CancellationToken::new();
        let (follower, token) = (chat.clone(), stop.clone());
        let running = tokio::spawn(async move { follower.run(token).await });
        let anna = agent(&chat, "anna", 1).await;
        let mut slow = chat.listen(Listener::Agent(anna.clone()), None).await.unwrap();
        for _ in 0..300 {
            chat.show_typing(&id, &Sender::Visitor(visitor("v1")), true, false).await.unwrap();
        }
        testkit::until("it is cut off", async || slow.subscription.is_behind().then_some(())).await;
        let mut count = 0;
        while slow.subscription.next().await.is_some() {
            count += 1;
        }
        assert!(count <= desk::chat::SUBSCRIBER_BUFFER, "{count}");
        stop.cancel();
        running.await.unwrap();
    }
}

/// Sees that an assignment by hand is refused by its code.
async fn refusal(chat: &Chat, id: &ConversationId, request: AssignRequest) -> &'static str {
    conflict(chat.assign(id, request).await).await
}

fn to(agent: Option<&AgentId>, expected: Option<Option<&AgentId>>) -> AssignRequest {
    AssignRequest {
        agent: agent.cloned(),
        expected: expected.map(|agent| agent.cloned()),
        over_capacity: false,
        needs_presence: false,
        by: "test".to_owned(),
        reason: "assigned",
    }
}

each_archive! {
    async fn agents_get_exactly_their_capacity_in_the_right_order(t: TestStore, a: TestArchive) {
        // [P6] 1,000 conversations, 10 agents of capacity 10, two instances that hand out at once.
        let one = open_on(&t.store, &a, "i1").await;
        let other = open_on(&t.another().await, &a, "i2").await;
        let mut agents = Vec::new();
        for n in 0..10 {
            agents.push(agent(&one, &format!("agent{n}"), 10).await);
        }
        other.load_roster().await.unwrap();
        let mut ids: Vec<(i64, ConversationId)> = Vec::new();
        for tenth in 0..10 {
            t.clock.advance(SECOND);
            let arrivals = (0..100).map(|n| {
                let chat = if n % 2 == 0 { one.clone() } else { other.clone() };
                let priority = ChatPriority::ALL[n % 4];
                tokio::spawn(async move {
                    let name = format!("v{tenth}-{n}");
                    let started = start(&chat, &name, priority).await.conversation;
                    (urgency_score(priority.rank(), started.created_at), started.id)
                })
            });
            for arrival in arrivals.collect::<Vec<_>>() {
                ids.push(arrival.await.unwrap());
            }
        }
        one.settle().await;
        other.settle().await;
        for agent in &agents {
            come_online(&one, agent).await;
        }
        let mut work = Vec::new();
        for n in 0..8 {
            let chat = if n % 2 == 0 { one.clone() } else { other.clone() };
            work.push(tokio::spawn(async move { chat.dispatch().await.unwrap() }));
        }
        let mut sum = 0;
        for done in work {
            sum += done.await.unwrap();
        }
        assert_eq!(sum, 100);
        one.settle().await;
        other.settle().await;
        ids.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        // The 250 urgent ones are the best; among those that came at the same moment any may be first.
        let last = ids[99].0;
        let best: HashSet<String> =
            ids.iter().filter(|(score, _)| *score > last).map(|(_, id)| id.to_string()).collect();
        let equal: HashSet<String> =
            ids.iter().filter(|(score, _)| *score == last).map(|(_, id)| id.to_string()).collect();
        let mut owned = HashSet::new();
        for agent in &agents {
            let set = key(&t.store, &format!("admin:{agent}:assignments"));
            let mine: HashSet<String> = t.store.clone().smembers(set).await.unwrap();
            assert_eq!(mine.len(), 10);
            for id in &mine {
                // [P7] Owner and set agree, in the archive too.
                let kept = one.conversation(&ConversationId::parse(id).unwrap()).await.unwrap();
                assert_eq!(kept.assignee.as_ref(), Some(agent));
            }
            owned.extend(mine);
        }
        assert!(owned.is_superset(&best), "{:?}", best.difference(&owned));
        assert!(owned.iter().all(|id| best.contains(id) || equal.contains(id)));
        assert_eq!(owned.len(), 100);
        // [P9] Assignment is no activity.
        let active = scores(&t.store, "chat:conversations:active").await;
        assert_eq!(active.len(), 1_000);
        assert!(active.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        let moments: HashSet<i64> = active.iter().map(|(_, score)| *score).collect();
        assert_eq!(moments.len(), 10);
    }

    async fn by_hand_is_compare_and_set_within_capacity(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let (anna, berta) = (agent(&chat, "anna", 1).await, agent(&chat, "berta", 5).await);
        let first = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        let second = start(&chat, "v2", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        let taken = chat.assign(&first, to(Some(&anna), Some(None))).await.unwrap();
        assert_eq!(taken.assignee.as_ref(), Some(&anna));
        assert_eq!(refusal(&chat, &first, to(Some(&berta), Some(None))).await, "ALREADY_ASSIGNED");
        assert_eq!(refusal(&chat, &second, to(Some(&anna), None)).await, "AGENT_AT_CAPACITY");
        let forced = AssignRequest { over_capacity: true, ..to(Some(&anna), None) };
        assert_eq!(chat.assign(&second, forced).await.unwrap().assignee.as_ref(), Some(&anna));
        let moved = chat.assign(&first, to(Some(&berta), Some(Some(&anna)))).await.unwrap();
        assert_eq!(moved.assignee.as_ref(), Some(&berta));
        let back = chat.assign(&first, to(None, None)).await.unwrap();
        assert!(back.assignee.is_none());
        chat.settle().await;
        assert_eq!(scores(&t.store, "chat:conversations:waiting").await.len(), 1);
        let resolve = ConversationChange { status: Some(ConversationStatus::Resolved), ..Default::default() };
        chat.change_conversation(&second, resolve, None, None).await.unwrap();
        chat.settle().await;
        let set = key(&t.store, &format!("admin:{anna}:assignments"));
        assert_eq!(t.store.clone().scard::<_, i64>(set).await.unwrap(), 0);
        assert_eq!(refusal(&chat, &second, to(Some(&berta), None)).await, "CONVERSATION_RESOLVED");
    }

    async fn presence_is_a_lease_per_connection_apart_from_what_was_chosen(t: TestStore, a: TestArchive) {
        // [P1, P3, P4, P12]
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 5).await;
        let presence = key(&t.store, &format!("admin:{anna}:presence"));
        let status = async || chat.presence().await.unwrap()[0].status;
        assert_eq!(status().await, PresenceStatus::Offline);
        for connection in ["laptop", "phone"] {
            chat.renew_connection(&anna, connection, CONNECTION_LEASE, true).await.unwrap();
        }
        chat.choose_status(&anna, PresenceStatus::Busy, None).await.unwrap();
        chat.renew_connection(&anna, "laptop", CONNECTION_LEASE, true).await.unwrap();
        assert_eq!(status().await, PresenceStatus::Busy, "a heartbeat keeps what was chosen");
        assert_eq!(t.store.clone().get::<_, String>(&presence).await.unwrap(), "busy");
        let ttl: i64 = t.store.clone().ttl(&presence).await.unwrap();
        assert!((1..=1_800).contains(&ttl));
        chat.end_connection(&anna, "laptop").await.unwrap();
        assert_eq!(status().await, PresenceStatus::Busy, "the phone is still there");
        // Busy agents get nothing new.
        start(&chat, "v1", ChatPriority::Normal).await;
        chat.settle().await;
        assert_eq!(chat.dispatch().await.unwrap(), 0);
        chat.choose_status(&anna, PresenceStatus::Online, None).await.unwrap();
        assert_eq!(chat.dispatch().await.unwrap(), 1);
        t.clock.advance(CONNECTION_LEASE);
        assert_eq!(status().await, PresenceStatus::Offline);
        start(&chat, "v2", ChatPriority::Normal).await;
        chat.settle().await;
        assert_eq!(chat.dispatch().await.unwrap(), 0, "nobody is assigned to who is gone");
        chat.sweep_presence().await.unwrap();
        assert_eq!(t.store.clone().get::<_, String>(&presence).await.unwrap(), "offline");
        chat.renew_connection(&anna, "laptop", CONNECTION_LEASE, true).await.unwrap();
        assert_eq!(status().await, PresenceStatus::Online);
        // Ten idle minutes, with a tab that stays open.
        for _ in 0..40 {
            t.clock.advance(15 * SECOND);
            chat.renew_connection(&anna, "laptop", CONNECTION_LEASE, false).await.unwrap();
        }
        assert_eq!(status().await, PresenceStatus::Away);
        chat.renew_connection(&anna, "laptop", CONNECTION_LEASE, true).await.unwrap();
        assert_eq!(status().await, PresenceStatus::Online);
        assert!(chat.choose_status(&anna, PresenceStatus::Offline, None).await.is_err());
    }

    async fn a_chosen_status_ends_by_itself_and_survives_the_loss_of_the_store(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 5).await;
        come_online(&chat, &anna).await;
        let own = async || chat.presence().await.unwrap().remove(0);
        let renew = async || chat.renew_connection(&anna, "laptop", CONNECTION_LEASE, true).await.unwrap();
        let until = t.store.now() + 30 * SECOND;
        chat.choose_status(&anna, PresenceStatus::Busy, Some(until)).await.unwrap();
        let seen = own().await;
        assert_eq!((seen.status, seen.chosen, seen.chosen_until), (PresenceStatus::Busy, PresenceStatus::Busy, Some(until)));
        start(&chat, "v1", ChatPriority::Normal).await;
        chat.settle().await;
        // The store loses everything, and a connection is renewed before the agents are published again.
        let () = store::redis::cmd("FLUSHALL").query_async(&mut t.store.clone()).await.unwrap();
        renew().await;
        chat.maintain(30).await.unwrap();
        chat.sweep_presence().await.unwrap();
        let seen = own().await;
        assert_eq!((seen.status, seen.chosen_until), (PresenceStatus::Busy, Some(until)), "the archive knows it");
        assert_eq!(chat.dispatch().await.unwrap(), 0, "busy agents get nothing new");
        t.clock.advance(29 * SECOND);
        renew().await;
        chat.sweep_presence().await.unwrap();
        assert_eq!((own().await.status, chat.dispatch().await.unwrap()), (PresenceStatus::Busy, 0));
        // The end has come: the sweep sees it, and the conversation that waited is assigned.
        t.clock.advance(SECOND);
        assert_eq!(own().await.status, PresenceStatus::Online);
        chat.sweep_presence().await.unwrap();
        let seen = own().await;
        assert_eq!((seen.status, seen.chosen, seen.chosen_until), (PresenceStatus::Online, PresenceStatus::Online, None));
        assert_eq!(chat.dispatch().await.unwrap(), 1);
        // It does not come back with a new start on an empty store.
        let () = store::redis::cmd("FLUSHALL").query_async(&mut t.store.clone()).await.unwrap();
        let again = open_on(&t.another().await, &a, "i2").await;
        again.maintain(30).await.unwrap();
        again.renew_connection(&anna, "laptop", CONNECTION_LEASE, true).await.unwrap();
        assert_eq!(again.presence().await.unwrap()[0].status, PresenceStatus::Online);
        // A status without an end has none of the one before.
        chat.choose_status(&anna, PresenceStatus::Away, Some(t.store.now() + SECOND)).await.unwrap();
        chat.choose_status(&anna, PresenceStatus::Away, None).await.unwrap();
        t.clock.advance(2 * SECOND);
        renew().await;
        assert_eq!(own().await.status, PresenceStatus::Away);
        let now = t.store.now();
        for (status, bad) in [
            (PresenceStatus::Away, now),
            (PresenceStatus::Away, now + 31 * 86_400 * SECOND),
            (PresenceStatus::Online, now + SECOND),
        ] {
            let refused = chat.choose_status(&anna, status, Some(bad)).await;
            assert!(matches!(refused, Err(Error::Invalid { field: "until", .. })), "{refused:?}");
        }
        assert_eq!(own().await.status, PresenceStatus::Away, "what is refused changes nothing");
    }

    async fn unanswered_conversations_of_who_is_gone_return_to_the_head_of_the_queue(t: TestStore, a: TestArchive) {
        // [P10]
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 5).await;
        come_online(&chat, &anna).await;
        let waiting = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        let answered = start(&chat, "v2", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        chat.dispatch().await.unwrap();
        chat.settle().await;
        chat.send(&answered, replies(&anna, "hello")).await.unwrap();
        chat.settle().await;
        t.clock.advance(CONNECTION_LEASE + 59 * SECOND);
        assert_eq!(chat.sweep_presence().await.unwrap(), 0, "within the grace");
        let late = start(&chat, "v3", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        t.clock.advance(2 * SECOND);
        assert_eq!(chat.sweep_presence().await.unwrap(), 1);
        assert_eq!(chat.sweep_presence().await.unwrap(), 0);
        chat.settle().await;
        let queue: Vec<String> =
            scores(&t.store, "chat:conversations:waiting").await.into_iter().map(|(id, _)| id).collect();
        assert_eq!(queue, [waiting.to_string(), late.to_string()], "with its waiting time, before newer ones");
        let kept = chat.conversation(&answered).await.unwrap();
        assert_eq!(kept.assignee.as_ref(), Some(&anna), "what is answered stays");
        let told = chat.messages(&waiting, None, None, 10, false).await.unwrap().messages;
        assert_eq!(told.last().unwrap().content, "requeued", "the visitor is told");
    }

    async fn who_does_not_reply_loses_the_conversation_and_is_away_after_three(t: TestStore, a: TestArchive) {
        // [P16]
        let chat = open_on(&t.store, &a, "i1").await;
        chat.configure(ChatOptions { first_reply: MINUTE, away_after: Duration::ZERO, ..ChatOptions::default() });
        let (anna, berta) = (agent(&chat, "anna", 9).await, agent(&chat, "berta", 9).await);
        let stay = async |agent: &AgentId| {
            chat.renew_connection(agent, "c", CONNECTION_LEASE, true).await.unwrap()
        };
        stay(&anna).await;
        let mut ids = Vec::new();
        for n in 0..3 {
            ids.push(start(&chat, &format!("v{n}"), ChatPriority::Normal).await.conversation.id);
        }
        chat.settle().await;
        assert_eq!(chat.dispatch().await.unwrap(), 3);
        chat.settle().await;
        t.clock.advance(MINUTE);
        stay(&anna).await;
        stay(&berta).await;
        assert_eq!(chat.sweep_replies().await.unwrap(), 3);
        let presence = chat.presence().await.unwrap();
        let of = |agent: &AgentId| presence.iter().find(|one| one.agent == *agent).unwrap().status;
        assert_eq!((of(&anna), of(&berta)), (PresenceStatus::Away, PresenceStatus::Online));
        assert_eq!(chat.dispatch().await.unwrap(), 3);
        chat.settle().await;
        for id in &ids {
            assert_eq!(chat.conversation(id).await.unwrap().assignee.as_ref(), Some(&berta));
        }
        chat.send(&ids[0], replies(&berta, "hello")).await.unwrap();
        chat.settle().await;
        t.clock.advance(MINUTE);
        assert_eq!(chat.sweep_replies().await.unwrap(), 2, "the answered one stays");
    }

    async fn an_assignment_whose_process_was_killed_reaches_the_archive(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 5).await;
        come_online(&chat, &anna).await;
        let id = start(&chat, "v1", ChatPriority::Normal).await.conversation.id;
        chat.settle().await;
        // As if the process was killed after the script: the record is there, the archive has nothing.
        let mut store = t.store.clone();
        let generation: String = store.hget(key(&t.store, "chat:ready"), "generation").await.unwrap();
        let state = key(&t.store, &format!("chat:conversation:{id}"));
        let set = key(&t.store, &format!("admin:{anna}:assignments"));
        let () = store.hset_multiple(&state, &[("assignee", anna.as_str()), ("assign_no", "1")]).await.unwrap();
        let () = store.zrem(key(&t.store, "chat:conversations:waiting"), id.as_str()).await.unwrap();
        let () = store.sadd(&set, id.as_str()).await.unwrap();
        let () = store.hset(key(&t.store, "chat:ready"), format!("load:{anna}"), 1).await.unwrap();
        let now = t.store.now().0;
        let record = format!("{generation}|1|{anna}|automatic|{now}||");
        let () = store.hset(key(&t.store, "chat:assignments:pending"), id.as_str(), record).await.unwrap();
        assert!(chat.conversation(&id).await.unwrap().assignee.is_none());
        t.clock.advance(2 * SECOND);
        assert_eq!(chat.sweep_assignments().await.unwrap(), 1);
        assert_eq!(chat.conversation(&id).await.unwrap().assignee.as_ref(), Some(&anna));
        assert_eq!(chat.sweep_assignments().await.unwrap(), 0);
    }

    async fn teams_skills_and_modes_decide_who_gets_what(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let team = chat.put_team(None, "Billing", Default::default()).await.unwrap();
        let new = |name: &str, teams: Vec<desk::TeamId>, skills: &[&str]| NewAgent {
            email: format!("{name}@example.org"), name: name.to_owned(), role: AgentRole::Agent,
            capacity: Some(5), skills: skills.iter().map(|s| (*s).to_owned()).collect(), teams,
        };
        let general = chat.add_agent(new("general", vec![], &[])).await.unwrap().0.id;
        let billing = chat.add_agent(new("billing", vec![team.id.clone()], &[])).await.unwrap().0.id;
        let speaker = chat.add_agent(new("speaker", vec![], &["french"])).await.unwrap().0.id;
        let ask = async |name: &str, team: Option<desk::TeamId>, skills: &[&str]| {
            let sent = chat.start_conversation(NewConversation {
                visitor: visitor(name), message: says(name, "hi"), priority: ChatPriority::Normal, subject: None,
                team, skills: skills.iter().map(|s| (*s).to_owned()).collect(), channel: ConversationChannel::Widget, bot: false,
                is_offline: false,
            }).await.unwrap();
            chat.settle().await;
            sent.conversation.id
        };
        let owner = async |id: &ConversationId| chat.conversation(id).await.unwrap().assignee;
        come_online(&chat, &general).await;
        let bill = ask("v1", Some(team.id.clone()), &[]).await;
        let french = ask("v2", None, &["french"]).await;
        let any = ask("v3", None, &[]).await;
        assert_eq!(chat.dispatch().await.unwrap(), 1, "those that nobody can take do not block the others");
        assert_eq!(owner(&any).await.as_ref(), Some(&general));
        come_online(&chat, &billing).await;
        come_online(&chat, &speaker).await;
        assert_eq!(chat.dispatch().await.unwrap(), 2);
        assert_eq!((owner(&bill).await, owner(&french).await), (Some(billing.clone()), Some(speaker.clone())));
        // Sticky: the one who had it before, although others have less to do.
        chat.configure(ChatOptions { mode: desk::chat::AssignmentMode::Sticky, ..ChatOptions::default() });
        let resolve = ConversationChange { status: Some(ConversationStatus::Resolved), ..Default::default() };
        chat.change_conversation(&any, resolve, None, None).await.unwrap();
        let more = ask("v4", None, &[]).await;
        chat.assign(&more, to(Some(&general), None)).await.unwrap();
        chat.send(&any, says("v3", "again")).await.unwrap();
        chat.settle().await;
        assert_eq!(chat.dispatch().await.unwrap(), 1);
        assert_eq!(owner(&any).await.as_ref(), Some(&general));
        chat.configure(ChatOptions { mode: desk::chat::AssignmentMode::Manual, ..ChatOptions::default() });
        ask("v5", None, &[]).await;
        assert_eq!(chat.dispatch().await.unwrap(), 0);
    }

    async fn low_priority_is_not_starved_and_places_are_told(t: TestStore, a: TestArchive) {
        // [Q3]
        let chat = open_on(&t.store, &a, "i1").await;
        let low = start(&chat, "v1", ChatPriority::Low).await.conversation.id;
        t.clock.advance(31 * MINUTE);
        let urgent = start(&chat, "v2", ChatPriority::Urgent).await.conversation.id;
        chat.settle().await;
        assert_eq!(chat.waiting_place(&urgent).await.unwrap().unwrap().position, 1);
        assert_eq!(chat.waiting_place(&low).await.unwrap().unwrap().position, 2);
        chat.sweep_waiting().await.unwrap();
        assert_eq!(chat.waiting_place(&low).await.unwrap().unwrap().position, 1, "three steps in 30 minutes");
        // [Q9] A changed priority counts at once.
        let change = ConversationChange { priority: Some(ChatPriority::Low), ..Default::default() };
        chat.change_conversation(&urgent, change, None, None).await.unwrap();
        chat.settle().await;
        let unread = scores(&t.store, "chat:conversations:unread").await;
        assert_eq!(unread[0].0, low.to_string());
    }
}

/// The way of the schema's example: read the load of an agent, compare, then write. The 1,000 come at
/// once and are spread evenly, and every one of them finds room. Kept to show that the test of capacity can
/// fail.
#[test]
fn the_examples_way_gives_every_agent_a_hundred() {
    testkit::each_store::on_redis(|t: TestStore| async move {
        let store = Arc::new(t.another().await);
        let all_read = Arc::new(tokio::sync::Barrier::new(1_000));
        let mut tasks = Vec::new();
        for n in 0..1_000_u32 {
            let (store, all_read) = (Arc::clone(&store), Arc::clone(&all_read));
            tasks.push(tokio::spawn(async move {
                let mut store = (*store).clone();
                let key = format!("ha:admin:{}:assignments", n % 10);
                let load: i64 = store.scard(&key).await.unwrap();
                all_read.wait().await;
                if load < 10 {
                    let () = store.sadd(&key, n).await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        for agent in 0..10 {
            let key = format!("ha:admin:{agent}:assignments");
            assert_eq!(t.store.clone().scard::<_, i64>(key).await.unwrap(), 100);
        }
    });
}
