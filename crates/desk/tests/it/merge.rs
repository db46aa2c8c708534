//! Two conversations of one visitor become one.

use desk::{
    Error,
    chat::{
        ChatPriority, ConversationChange, ConversationChannel, ConversationStatus, NewConversation,
    },
};
use testkit::each_archive;

use crate::{
    chat::{agent, open_on, replies, says, start, visitor},
    support::{MINUTE, SECOND},
};

async fn code(outcome: Result<desk::chat::Conversation, Error>) -> &'static str {
    match outcome {
        Err(Error::Conflict { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}

each_archive! {
    async fn a_merged_conversation_is_resolved_and_its_messages_follow_in_order(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let anna = agent(&chat, "anna", 5).await;
        let first = start(&chat, "eva", ChatPriority::Urgent).await.conversation.id;
        let file = chat.put_file("eva", "bill.txt", b"the bill".to_vec()).await.unwrap();
        let mut draft = says("eva", "my bill");
        (draft.attachments, draft.client_id) = (vec![file.id.clone()], Some("c-1".to_owned()));
        chat.send(&first, draft.clone()).await.unwrap();
        let mut note = replies(&anna, "known customer");
        note.is_note = true;
        chat.send(&first, note).await.unwrap();
        t.clock.advance(MINUTE);
        // An agent starts a second one; a visitor has at most one of their own.
        let second = chat
            .start_conversation(NewConversation {
                visitor: visitor("eva"),
                message: replies(&anna, "Your parcel has arrived."),
                priority: ChatPriority::Normal,
                subject: None,
                team: None,
                skills: Vec::new(),
                channel: ConversationChannel::Api,
                bot: false,
                is_offline: false,
            })
            .await
            .unwrap()
            .conversation
            .id;
        chat.settle().await;
        let tags = Some(vec!["billing".to_owned()]);
        chat.change_conversation(&first, ConversationChange { tags, ..Default::default() }, None, None).await.unwrap();
        t.clock.advance(SECOND);

        let merged = chat.merge(&first, &second, Some(&anna)).await.unwrap();
        chat.settle().await;
        assert_eq!((merged.id.clone(), merged.last_seq), (second.clone(), 5));
        assert_eq!(merged.priority, ChatPriority::Urgent, "the higher one");
        assert_eq!(merged.tags, ["billing"]);
        let page = chat.messages(&second, None, None, 100, true).await.unwrap().messages;
        let seen: Vec<(i64, &str)> = page.iter().map(|one| (one.seq, one.content.as_str())).collect();
        let told = format!("Merged from conversation {first}. Its messages follow.");
        assert_eq!(seen, [(1, "Your parcel has arrived."), (2, told.as_str()), (3, "hello"), (4, "my bill"), (5, "known customer")]);
        assert!(page[1].is_note() && page[4].is_note(), "notes stay notes");
        assert_eq!(page[2].created_at.0 + 61_000, page[1].created_at.0, "with their own times");
        // The visitor waits since their first question, in the one that is left.
        assert_eq!((merged.unread_agent, merged.waiting_since), (2, Some(page[2].created_at)));
        let waiting = chat.waiting(0, 10).await.unwrap();
        assert!(waiting.iter().all(|(one, _)| one.id != first));
        let old = chat.conversation(&first).await.unwrap();
        assert_eq!((old.status, old.merged_into.clone(), old.last_seq), (ConversationStatus::Resolved, Some(second.clone()), 3));
        // Each has a file of its own, so that one may be deleted.
        let copy = page[3].attachments[0]["id"].as_str().unwrap().to_owned();
        assert_ne!(copy, file.id);
        assert_eq!(chat.file(&copy).await.unwrap().bytes, b"the bill");

        // What is written to the merged one goes to the other; a repeated send stays one message.
        let again = chat.send(&first, draft).await.unwrap();
        assert!(again.is_repeated && again.message.conversation == first);
        let sent = chat.send(&first, says("eva", "hello again")).await.unwrap();
        assert_eq!((sent.conversation.id, sent.message.seq), (second.clone(), 6));
        let status = Some(ConversationStatus::Open);
        let reopen = ConversationChange { status, ..Default::default() };
        assert_eq!(code(chat.change_conversation(&first, reopen, None, None).await).await, "CONVERSATION_MERGED");
        chat.settle().await;
        let check = chat.archive().inspect(&a.folder().join("files")).await.unwrap();
        assert!(check.is_sound(), "{check:?}");

        // The old one may be deleted: the copies stay. So may the new one: nothing points to it.
        chat.delete_conversation(&first).await.unwrap();
        assert_eq!(chat.file(&copy).await.unwrap().bytes, b"the bill");
        chat.delete_conversation(&second).await.unwrap();
        assert!(chat.archive().inspect(&a.folder().join("files")).await.unwrap().is_sound());
    }

    async fn only_what_belongs_together_is_merged(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        let eva = start(&chat, "eva", ChatPriority::Normal).await.conversation.id;
        let otto = start(&chat, "otto", ChatPriority::Normal).await.conversation.id;
        assert_eq!(code(chat.merge(&eva, &otto, None).await).await, "OTHER_VISITOR");
        assert!(matches!(chat.merge(&eva, &eva, None).await, Err(Error::Invalid { field: "into", .. })));
        let resolved = ConversationChange { status: Some(ConversationStatus::Resolved), ..Default::default() };
        chat.change_conversation(&eva, resolved, None, None).await.unwrap();
        let next = start(&chat, "eva", ChatPriority::Normal).await.conversation.id;
        assert_eq!(code(chat.merge(&next, &eva, None).await).await, "CONVERSATION_RESOLVED");
        // The other way round it goes, once.
        assert_eq!(chat.merge(&eva, &next, None).await.unwrap().last_seq, 3);
        assert_eq!(code(chat.merge(&eva, &next, None).await).await, "ALREADY_MERGED");
        chat.settle().await;
        // Two merges at once into one: each message once, without gaps.
        let ben = agent(&chat, "ben", 5).await;
        let mut more = Vec::new();
        for n in 0..4 {
            let new = NewConversation {
                visitor: visitor("eva"),
                message: replies(&ben, &format!("news {n}")),
                priority: ChatPriority::Normal,
                subject: None,
                team: None,
                skills: Vec::new(),
                channel: ConversationChannel::Api,
                bot: false,
                is_offline: false,
            };
            more.push(chat.start_conversation(new).await.unwrap().conversation.id);
        }
        let merges = more.iter().map(|id| chat.merge(id, &next, None));
        for outcome in futures_util::future::join_all(merges).await {
            outcome.unwrap();
        }
        chat.settle().await;
        assert_eq!(chat.conversation(&next).await.unwrap().last_seq, 11);
        assert!(chat.archive().inspect(&a.folder().join("files")).await.unwrap().is_sound());
    }
}
