//! The shop's support: visitors with questions, three agents who answer, one of whom goes away so that the
//! queue of her team fills, and room for a newcomer who answers in the console.

use std::collections::HashMap;
use std::time::Duration;

use desk::chat::{
    AgentRole, AssignRequest, CONNECTION_LEASE, Chat, ChatPriority, Conversation,
    ConversationChange, ConversationChannel, ConversationList, ConversationStatus, MessageDraft,
    NewAgent, NewConversation, PresenceStatus, Sender, SenderRole, VisitorChange,
};
use desk::{AgentId, ConversationId, TeamId, UserId};
use serde_json::json;
use store::Millis;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Who a newcomer is in the console; `/demo/shop` tells.
pub(crate) const NEWCOMER_EMAIL: &str = "you@harbour-coffee.example";
/// Their password, in a demo and nowhere else.
pub(crate) const NEWCOMER_PASSWORD: &str = "fresh harbour coffee";

const BEAT: Duration = Duration::from_secs(1);
/// Beats between two visitors, in the mean.
const ARRIVAL_BEATS: u32 = 9;
/// Beats for which Carla is there, and then away.
const CARLA_BEATS: u64 = 90;
/// Conversations that are open at most, so that a demo that runs for days does not drown.
const OPEN_MOST: usize = 40;

/// A conversation as it goes: what the visitor says and what an agent answers, in turn.
struct Story {
    visitor: &'static str,
    email: &'static str,
    page: &'static str,
    locale: &'static str,
    /// Of the team that Carla is alone in.
    is_return: bool,
    priority: ChatPriority,
    lines: &'static [&'static str],
    rating: Option<i64>,
}

const STORIES: &[Story] = &[
    Story {
        visitor: "Eva Brandt",
        email: "eva.brandt@example.com",
        page: "https://harbour-coffee.example/orders/8812",
        locale: "de",
        is_return: false,
        priority: ChatPriority::Normal,
        lines: &[
            "Hi! My order 8812 was due on Tuesday and the tracking page has not changed since. Do you know where it is?",
            "Let me look, one moment.\n\nIt left our roastery on Monday, and the carrier lists it as *held at the depot*. I have asked them to send it out again; it should be with you tomorrow.",
            "Perfect, thank you for being so quick!",
            "My pleasure. Enjoy the coffee!",
        ],
        rating: Some(5),
    },
    Story {
        visitor: "Tomás Rey",
        email: "tomas.rey@example.com",
        page: "https://harbour-coffee.example/products/deep-water",
        locale: "es",
        is_return: false,
        priority: ChatPriority::Low,
        lines: &[
            "Is Deep Water suitable for a moka pot, or is it too dark for that?",
            "It works very well. Grind it a little coarser than for espresso, and take it off the heat as soon as it gurgles.",
            "Great, then I'll try a bag.",
        ],
        rating: None,
    },
    Story {
        visitor: "Priya Nair",
        email: "priya.nair@example.com",
        page: "https://harbour-coffee.example/checkout",
        locale: "en",
        is_return: false,
        priority: ChatPriority::Urgent,
        lines: &[
            "I was charged twice for the same order!!",
            "Two payments of € 38.20, four minutes apart. Order 8840.",
            "I am sorry about that. I see both: the second one is a reservation that our bank drops automatically. I have released it now, so it disappears from your statement within a day.",
            "OK, that is a relief. Thanks.",
        ],
        rating: Some(4),
    },
    Story {
        visitor: "Jonas Weber",
        email: "jonas.weber@example.com",
        page: "https://harbour-coffee.example/returns",
        locale: "de",
        is_return: true,
        priority: ChatPriority::High,
        lines: &[
            "The grinder arrived with a cracked hopper. How do I send it back?",
            "That should not happen. I have sent a return label to your e-mail address; a new one leaves today, you need not wait for us to get yours.",
            "Wow, okay. Thank you!",
        ],
        rating: Some(5),
    },
    Story {
        visitor: "Mia Larsen",
        email: "mia.larsen@example.com",
        page: "https://harbour-coffee.example/returns",
        locale: "en",
        is_return: true,
        priority: ChatPriority::Normal,
        lines: &[
            "Can I return an opened bag if it's not my taste?",
            "Yes, one bag per order. Tell me what you missed in it and I'll suggest another one instead.",
            "More fruit, less chocolate.",
            "Then *Morning Tide* is yours. I have added it to a new order, free of charge.",
        ],
        rating: None,
    },
    Story {
        visitor: "Ahmed Kaya",
        email: "ahmed.kaya@example.com",
        page: "https://harbour-coffee.example/subscription",
        locale: "en",
        is_return: false,
        priority: ChatPriority::Normal,
        lines: &[
            "How do I pause my subscription while I'm on holiday?",
            "In your account under *Subscription*, there is **Pause**. Shall I do it for you?",
            "Yes please, from the 1st to the 21st.",
            "Done. The next delivery is on the 22nd.",
        ],
        rating: Some(5),
    },
];

/// An agent who answers by the script.
struct DemoAgent {
    id: AgentId,
}

/// The state of a conversation that a made-up visitor has.
struct Scene {
    story: &'static Story,
    visitor: UserId,
    /// The next line.
    next: usize,
    /// The beat at which it is said.
    at: u64,
}

/// Runs the support until told to stop.
pub(super) async fn run(chat: Chat, stop: CancellationToken) -> anyhow::Result<()> {
    let mut cast = Cast::hire(&chat).await?;
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = stop.cancelled() => return Ok(()),
        }
        if let Err(error) = cast.play().await {
            // The store may have been away for a moment.
            tracing::debug!(%error, "the shop's support missed a beat");
        }
    }
}

struct Cast {
    chat: Chat,
    agents: Vec<DemoAgent>,
    carla: AgentId,
    newcomer: AgentId,
    returns: TeamId,
    orders: TeamId,
    scenes: HashMap<ConversationId, Scene>,
    chance: fastrand::Rng,
    beats: u64,
    started: usize,
}

impl Cast {
    /// Adds agents and teams, unless an earlier demo in the same folder did.
    async fn hire(chat: &Chat) -> anyhow::Result<Cast> {
        let team = async |name: &str| -> anyhow::Result<TeamId> {
            match chat.teams().into_iter().find(|team| team.name == name) {
                Some(team) => Ok(team.id),
                None => Ok(chat.put_team(None, name, Default::default()).await?.id),
            }
        };
        let (orders, returns) = (team("Orders").await?, team("Returns").await?);
        let hire = async |name: &str,
                          email: &str,
                          role,
                          capacity,
                          teams: Vec<TeamId>,
                          password: Option<&str>| {
            if let Some(known) = chat.agents().into_iter().find(|agent| agent.email == email) {
                return anyhow::Ok(known.id);
            }
            let new = NewAgent {
                email: email.to_owned(),
                name: name.to_owned(),
                role,
                capacity: Some(capacity),
                skills: Vec::new(),
                teams,
            };
            let (agent, invitation) = chat.add_agent(new).await?;
            if let Some(password) = password {
                chat.accept_invitation(&invitation, password).await?;
            }
            Ok(agent.id)
        };
        let sarah = hire(
            "Sarah Holm",
            "sarah@harbour-coffee.example",
            AgentRole::Supervisor,
            6,
            vec![orders.clone()],
            None,
        )
        .await?;
        let ben = hire(
            "Ben Okafor",
            "ben@harbour-coffee.example",
            AgentRole::Agent,
            4,
            vec![orders.clone()],
            None,
        )
        .await?;
        let carla = hire(
            "Carla Ruiz",
            "carla@harbour-coffee.example",
            AgentRole::Agent,
            3,
            vec![returns.clone()],
            None,
        )
        .await?;
        let newcomer = hire(
            "Robin Vale",
            NEWCOMER_EMAIL,
            AgentRole::Supervisor,
            5,
            vec![orders.clone(), returns.clone()],
            Some(NEWCOMER_PASSWORD),
        )
        .await?;
        for (code, text) in [
            ("hello", "Hello {{visitor.name|there}}, this is {{agent.name}}. How can I help?"),
            (
                "tracking",
                "You find your parcel under *Orders* in your account, with a link to the carrier.",
            ),
            ("thanks", "Thank you for your patience, {{visitor.name|and sorry for the wait}}."),
        ] {
            if chat.canned(code).await?.is_empty() {
                chat.put_canned(None, code, text).await?;
            }
        }
        Ok(Cast {
            chat: chat.clone(),
            agents: [&sarah, &ben, &carla].map(|id| DemoAgent { id: id.clone() }).into(),
            carla,
            newcomer,
            returns,
            orders,
            scenes: HashMap::new(),
            chance: fastrand::Rng::new(),
            beats: 0,
            started: 0,
        })
    }

    async fn play(&mut self) -> Result<(), desk::Error> {
        // At once, so that the first look at the console sees people.
        if self.beats.is_multiple_of(15) {
            for agent in &self.agents {
                self.chat.renew_connection(&agent.id, "demo", CONNECTION_LEASE, true).await?;
            }
        }
        if self.beats.is_multiple_of(CARLA_BEATS) {
            let is_away = (self.beats / CARLA_BEATS) % 2 == 1;
            let status = if is_away { PresenceStatus::Away } else { PresenceStatus::Online };
            self.chat.choose_status(&self.carla, status, None).await?;
        }
        let is_first = self.beats < 4;
        if is_first || (self.chance.u32(0..ARRIVAL_BEATS) == 0 && self.scenes.len() < OPEN_MOST) {
            self.arrive().await?;
        }
        self.beats += 1;
        let due: Vec<ConversationId> = self
            .scenes
            .iter()
            .filter(|(_, scene)| scene.at <= self.beats)
            .map(|(id, _)| id.clone())
            .collect();
        for id in due {
            self.go_on(&id).await?;
        }
        if self.beats.is_multiple_of(3) {
            self.meet_strangers().await?;
        }
        Ok(())
    }

    /// A visitor comes with a question.
    async fn arrive(&mut self) -> Result<(), desk::Error> {
        let Some(story) = STORIES.get(self.started % STORIES.len()) else { return Ok(()) };
        self.started += 1;
        let visitor = self.chat.fresh_visitor()?;
        let change = VisitorChange {
            name: Some(story.visitor.to_owned()),
            email: Some(story.email.to_owned()),
            page_url: Some(story.page.to_owned()),
            locale: Some(story.locale.to_owned()),
            attributes: Some(json!({ "orders": self.chance.u8(1..12), "customer_since": 2023 })),
            ..VisitorChange::default()
        };
        self.chat.put_visitor(&visitor, change).await?;
        let team = if story.is_return { &self.returns } else { &self.orders };
        let Some(first) = story.lines.first() else { return Ok(()) };
        let new = NewConversation {
            visitor: visitor.clone(),
            message: MessageDraft::text(Sender::Visitor(visitor.clone()), first),
            priority: story.priority,
            subject: None,
            team: Some(team.clone()),
            skills: Vec::new(),
            channel: ConversationChannel::Widget,
            bot: false,
            is_offline: false,
        };
        let id = self.chat.start_conversation(new).await?.conversation.id;
        let at = self.beats + self.chance.u64(4..9);
        self.scenes.insert(id, Scene { story, visitor, next: 1, at });
        Ok(())
    }

    /// Says the next line of a conversation, or ends it.
    async fn go_on(&mut self, id: &ConversationId) -> Result<(), desk::Error> {
        let Some(scene) = self.scenes.get_mut(id) else { return Ok(()) };
        let conversation = match self.chat.conversation(id).await {
            Ok(conversation) => conversation,
            // Somebody has deleted it.
            Err(desk::Error::NotFound { .. }) => {
                self.scenes.remove(id);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if conversation.status == ConversationStatus::Resolved || conversation.merged_into.is_some()
        {
            self.scenes.remove(id);
            return Ok(());
        }
        let owner = conversation.assignee.clone();
        if owner.as_ref() == Some(&self.newcomer) {
            // Theirs: nobody talks over them.
            scene.at = self.beats + 30;
            return Ok(());
        }
        let Some(line) = scene.story.lines.get(scene.next) else {
            let (visitor, rating) = (scene.visitor.clone(), scene.story.rating);
            self.scenes.remove(id);
            let status = Some(ConversationStatus::Resolved);
            let change = ConversationChange { status, ..ConversationChange::default() };
            self.chat.change_conversation(id, change, None, owner.as_ref()).await?;
            if let Some(score) = rating {
                self.chat.rate(id, &visitor, score, None).await?;
            }
            return Ok(());
        };
        // The first line is the visitor's; from then on they take turns, unless a story has two in a row.
        let is_visitor = is_visitors(scene.story, scene.next);
        let sender = if is_visitor {
            Sender::Visitor(scene.visitor.clone())
        } else {
            match owner.filter(|owner| self.agents.iter().any(|agent| agent.id == *owner)) {
                Some(owner) => Sender::Agent(owner),
                // Nobody is free: the visitor waits.
                None => {
                    scene.at = self.beats + 2;
                    return Ok(());
                }
            }
        };
        scene.next += 1;
        scene.at = self.beats + self.chance.u64(5..14);
        if !is_visitor {
            self.chat.show_typing(id, &sender, true, false).await?;
        }
        self.chat.send(id, MessageDraft::text(sender, line)).await?;
        Ok(())
    }

    /// Conversations of real people, from the shop's page: they go to the newcomer if they are in the console,
    /// else an agent of the demo says hello.
    async fn meet_strangers(&mut self) -> Result<(), desk::Error> {
        let presence = self.chat.presence().await?;
        let is_there = presence
            .iter()
            .any(|one| one.agent == self.newcomer && one.status == PresenceStatus::Online);
        let list = ConversationList {
            status: Some(ConversationStatus::Open),
            limit: 100,
            ..ConversationList::default()
        };
        let (open, _) = self.chat.list(&list).await?;
        for one in open.iter().filter(|one| !self.scenes.contains_key(&one.id)) {
            if one.visitor.email.as_deref().is_some_and(is_made_up) {
                continue;
            }
            self.meet(one, is_there).await?;
        }
        Ok(())
    }

    async fn meet(&self, one: &Conversation, is_there: bool) -> Result<(), desk::Error> {
        let Some(owner) = &one.assignee else { return Ok(()) };
        if !self.agents.iter().any(|agent| agent.id == *owner) {
            return Ok(());
        }
        if is_there {
            let request = AssignRequest {
                agent: Some(self.newcomer.clone()),
                expected: Some(Some(owner.clone())),
                over_capacity: true,
                needs_presence: false,
                by: "demo".to_owned(),
                reason: "transferred",
            };
            return match self.chat.assign(&one.id, request).await {
                // Somebody was quicker.
                Err(desk::Error::Conflict { .. }) => Ok(()),
                outcome => outcome.map(|_| ()),
            };
        }
        let waited = one.waiting_since.map_or(0, |since: Millis| one.last_message_at.0 - since.0);
        let is_unanswered = one.last_role == SenderRole::User.as_str() && waited >= 0;
        if is_unanswered {
            let text = "Hello! I am an agent of this demo, and I know little about coffee. Open the console at `/desk` in \
                        another window and log in: then this conversation is yours to answer.";
            let sender = Sender::Agent(owner.clone());
            self.chat.send(&one.id, MessageDraft::text(sender, text)).await?;
        }
        Ok(())
    }
}

fn is_made_up(email: &str) -> bool {
    STORIES.iter().any(|story| story.email == email)
}

/// Tells whose line it is. Who is charged twice says so in two messages.
fn is_visitors(story: &Story, at: usize) -> bool {
    let shift = usize::from(story.priority == ChatPriority::Urgent && at >= 1);
    (at + shift).is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_story_begins_with_the_visitor_and_has_an_answer() {
        for story in STORIES {
            assert!(is_visitors(story, 0), "{}", story.visitor);
            assert!((1..story.lines.len()).any(|at| !is_visitors(story, at)), "{}", story.visitor);
        }
        let urgent = STORIES.iter().find(|story| story.priority == ChatPriority::Urgent).unwrap();
        let turns: Vec<bool> = (0..4).map(|at| is_visitors(urgent, at)).collect();
        assert_eq!(turns, [true, true, false, true]);
    }
}
