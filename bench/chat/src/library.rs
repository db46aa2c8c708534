//! The chat in process, on the built-in store and a SQLite archive.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use desk::archive::{Archive, ArchivePlace, ArchiveSync};
use desk::chat::{
    AgentRole, CONNECTION_LEASE, Chat, ChatOptions, ChatParts, ChatPriority, MessageDraft,
    NewAgent, NewConversation, Sender,
};
use desk::users::{UserOptions, Users};
use desk::{AgentId, ConversationId, InstanceId, Prefix, UserId};
use serde_json::{Value, json};
use store::Store;

use crate::{number, text};

async fn open(configuration: &Value, name: &str) -> Result<Chat> {
    let folder = PathBuf::from(text(&configuration["folder"])?).join(name);
    std::fs::create_dir_all(&folder)?;
    let place = ArchivePlace::parse(&folder.join("desk.sqlite3").display().to_string())?;
    let store = Store::open("embedded:").await?;
    let prefix = Prefix::default();
    Ok(Chat::open(ChatParts {
        users: Users::new(&store, &prefix, UserOptions::default())?,
        store,
        prefix,
        archive: Archive::open(&place, ArchiveSync::default()).await?,
        instance: InstanceId::parse("bench")?,
        files: folder.join("files"),
        options: ChatOptions { first_reply: Duration::ZERO, ..ChatOptions::default() },
    })
    .await?)
}

async fn start(chat: &Chat, name: String) -> Result<ConversationId> {
    let visitor = UserId::parse(&name)?;
    let new = NewConversation {
        message: MessageDraft::text(Sender::Visitor(visitor.clone()), "hello"),
        visitor,
        priority: ChatPriority::Normal,
        subject: None,
        team: None,
        skills: Vec::new(),
        channel: desk::chat::ConversationChannel::Widget,
        bot: false,
        is_offline: false,
    };
    Ok(chat.start_conversation(new).await?.conversation.id)
}

/// Starts conversations, many at a time.
async fn start_all(chat: &Chat, count: usize) -> Result<Vec<ConversationId>> {
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..64 {
        let chat = chat.clone();
        tasks.spawn(async move {
            let mut own = Vec::new();
            for at in (worker..count).step_by(64) {
                own.push(start(&chat, format!("v{at}")).await?);
            }
            Ok::<_, anyhow::Error>(own)
        });
    }
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.extend(done??);
    }
    chat.settle().await;
    Ok(all)
}

/// Acknowledged messages of visitors, in process.
pub(crate) async fn send(configuration: &Value) -> Result<Value> {
    let chat = open(configuration, "send").await?;
    let time = Duration::from_secs_f64(configuration["seconds"].as_f64().context("seconds")?);
    let conversations = start_all(&chat, 500).await?;
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (worker, id) in conversations.into_iter().enumerate().take(256) {
        let chat = chat.clone();
        tasks.spawn(async move {
            let owner = chat.conversation(&id).await?.visitor.id;
            let mut count = 0_usize;
            while begin.elapsed() < time {
                count += 1;
                let mut draft =
                    MessageDraft::text(Sender::Visitor(owner.clone()), "Where is my parcel?");
                draft.client_id = Some(format!("c{worker}-{count}"));
                chat.send(&id, draft).await?;
            }
            Ok::<_, anyhow::Error>(count)
        });
    }
    let mut count = 0;
    while let Some(done) = tasks.join_next().await {
        count += done??;
    }
    Ok(json!({ "count": count, "seconds": begin.elapsed().as_secs_f64() }))
}

/// Assignments to 50 agents who come online while conversations wait.
pub(crate) async fn assign(configuration: &Value) -> Result<Value> {
    let (agents, capacity) = (50, 100_u32);
    let chat = open(configuration, text(&configuration["name"])?).await?;
    let mut ids: Vec<AgentId> = Vec::new();
    for at in 0..agents {
        let new = NewAgent {
            email: format!("a{at}@example.org"),
            name: format!("agent {at}"),
            role: AgentRole::Agent,
            capacity: Some(capacity),
            skills: Vec::new(),
            teams: Vec::new(),
        };
        ids.push(chat.add_agent(new).await?.0.id);
    }
    let waiting = number(&configuration["conversations"])?;
    start_all(&chat, waiting).await?;
    for id in &ids {
        chat.renew_connection(id, "c1", CONNECTION_LEASE, true).await?;
    }
    let begin = Instant::now();
    let count = chat.dispatch().await?;
    let decided = begin.elapsed().as_secs_f64();
    chat.settle().await;
    Ok(
        json!({ "count": count, "decided_seconds": decided, "settled_seconds": begin.elapsed().as_secs_f64() }),
    )
}
