//! What leaves the desk: e-mails to visitors who have left, transcripts, invitations, notifications; retries,
//! dead letters, and links back.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use desk::{
    AgentId, ConversationId, Error,
    chat::{
        AssignRequest, Chat, ChatOptions, ChatPriority, Courier, CourierOutcome, Email, Listener,
        MessageDraft, OutgoingKind, OutgoingState, PushMessage, PushSubscription, Sender,
        VisitorChange,
    },
    users::{OpenOutcome, UserSessionId, VerifiedLogin},
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use testkit::{TestArchive, TestStore, each_archive};

use crate::{
    chat::{agent, come_online, open_on, says, start, visitor},
    support::{MINUTE, SECOND},
};

/// Keeps what it is given, and answers as it is told.
#[derive(Debug, Default)]
struct TestCourier {
    emails: Mutex<Vec<Email>>,
    pushes: Mutex<Vec<PushMessage>>,
    /// Outcomes of the next attempts; sent when there is none.
    outcomes: Mutex<VecDeque<CourierOutcome>>,
    /// An answer that an agent writes while the next e-mail is sent.
    meanwhile: Mutex<Option<(Chat, ConversationId, AgentId)>>,
    /// The next e-mail is taken, and the process that sent it never learns.
    hangs: Mutex<bool>,
}

impl TestCourier {
    fn outcome(&self) -> CourierOutcome {
        self.outcomes.lock().pop_front().unwrap_or(CourierOutcome::Sent)
    }

    fn emails(&self) -> Vec<Email> {
        std::mem::take(&mut *self.emails.lock())
    }

    fn pushes(&self) -> Vec<PushMessage> {
        std::mem::take(&mut *self.pushes.lock())
    }

    fn fail(&self, times: usize) {
        let failure = CourierOutcome::failed("451 try later");
        *self.outcomes.lock() = std::iter::repeat_n(failure, times).collect();
    }
}

impl Courier for TestCourier {
    fn seal(&self, secret: &str) -> Result<String, String> {
        Ok(secret.chars().rev().collect())
    }

    fn unseal(&self, sealed: &str) -> Option<String> {
        Some(sealed.chars().rev().collect())
    }

    fn send_email<'a>(&'a self, email: &'a Email) -> BoxFuture<'a, CourierOutcome> {
        Box::pin(async move {
            self.emails.lock().push(email.clone());
            let meanwhile = self.meanwhile.lock().take();
            if let Some((chat, id, agent)) = meanwhile {
                chat.send(&id, replies(&agent, "one more thing")).await.unwrap();
            }
            let hangs = std::mem::take(&mut *self.hangs.lock());
            if hangs {
                std::future::pending::<()>().await;
            }
            self.outcome()
        })
    }

    fn send_push<'a>(&'a self, push: &'a PushMessage) -> BoxFuture<'a, CourierOutcome> {
        Box::pin(async move {
            self.pushes.lock().push(push.clone());
            self.outcome()
        })
    }
}

fn replies(agent: &AgentId, text: &str) -> MessageDraft {
    MessageDraft::text(Sender::Agent(agent.clone()), text)
}

fn note(agent: &AgentId, text: &str) -> MessageDraft {
    MessageDraft { is_note: true, ..replies(agent, text) }
}

fn options() -> ChatOptions {
    ChatOptions {
        first_reply: Duration::ZERO,
        email: true,
        push: true,
        public_url: "https://desk.example".to_owned(),
        ..ChatOptions::default()
    }
}

/// A chat that sends, with its courier.
async fn open(t: &TestStore, a: &TestArchive, name: &str) -> (Chat, Arc<TestCourier>) {
    let chat = open_on(&t.another().await, a, name).await;
    chat.configure(options());
    let courier = Arc::new(TestCourier::default());
    chat.set_courier(Arc::<TestCourier>::clone(&courier));
    (chat, courier)
}

/// A conversation of a visitor with an address.
async fn with_address(chat: &Chat, name: &str) -> ConversationId {
    let change = VisitorChange {
        name: Some("Eva".to_owned()),
        email: Some(format!("{name}@example.org")),
        ..VisitorChange::default()
    };
    chat.put_visitor(&visitor(name), change).await.unwrap();
    start(chat, name, ChatPriority::Normal).await.conversation.id
}

async fn dead(chat: &Chat) -> Vec<desk::chat::OutgoingItem> {
    chat.outgoing(OutgoingState::Dead, None, 100).await.unwrap()
}

async fn waiting(chat: &Chat) -> usize {
    chat.outgoing(OutgoingState::Waiting, None, 100).await.unwrap().len()
}

fn link_of(email: &Email) -> String {
    let at = email.text.find("https://desk.example/chat#return=").unwrap();
    email.text[at..].split_whitespace().next().unwrap().to_owned()
}

each_archive! {
    async fn answers_follow_a_visitor_who_left_in_one_e_mail(t: TestStore, a: TestArchive) {
        let (chat, courier) = open(&t, &a, "i1").await;
        let anna = agent(&chat, "Anna", 5).await;
        let id = with_address(&chat, "v1").await;
        chat.send(&id, replies(&anna, "It is <b>on</b> its way.")).await.unwrap();
        t.clock.advance(MINUTE);
        chat.send(&id, replies(&anna, "It arrives tomorrow.")).await.unwrap();
        chat.send(&id, note(&anna, "a secret note")).await.unwrap();
        chat.send_due().await.unwrap();
        assert_eq!(courier.emails(), [], "not before two minutes");
        t.clock.advance(MINUTE);
        chat.send_due().await.unwrap();
        let sent = courier.emails();
        assert_eq!(sent.len(), 1, "{sent:?}");
        let mail = &sent[0];
        assert_eq!((mail.to.as_str(), mail.to_name.as_deref()), ("v1@example.org", Some("Eva")));
        for text in [&mail.text, &mail.html] {
            assert!(text.contains("Anna wrote") && text.contains("tomorrow"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(mail.html.contains("&lt;b&gt;on&lt;/b&gt;") && !mail.html.contains("<b>"));
        // Nothing new, nothing sent; a later answer is mailed alone.
        t.clock.advance(10 * MINUTE);
        chat.send_due().await.unwrap();
        assert_eq!(courier.emails(), []);
        chat.send(&id, replies(&anna, "Has it come?")).await.unwrap();
        t.clock.advance(2 * MINUTE);
        chat.send_due().await.unwrap();
        let later = courier.emails();
        assert_eq!(later.len(), 1);
        assert!(later[0].text.contains("Has it come?") && !later[0].text.contains("tomorrow"));
        assert_ne!(later[0].id, mail.id);
        assert_eq!(later[0].thread, mail.thread);
        assert_eq!(waiting(&chat).await, 0);
    }

    async fn nothing_is_mailed_to_who_has_read_it_or_is_there(t: TestStore, a: TestArchive) {
        let (chat, courier) = open(&t, &a, "i1").await;
        let (other, _) = open(&t, &a, "i2").await;
        let anna = agent(&chat, "Anna", 5).await;
        other.load_roster().await.unwrap();
        let id = with_address(&chat, "v1").await;
        chat.send(&id, replies(&anna, "one")).await.unwrap();
        chat.mark_read(&id, Sender::Visitor(visitor("v1")), 2).await.unwrap();
        t.clock.advance(3 * MINUTE);
        chat.send_due().await.unwrap();
        assert_eq!(courier.emails(), [], "read meanwhile");
        assert_eq!(waiting(&chat).await, 0);

        // Connected to the other instance: it waits until they leave.
        let live = other.listen(Listener::Visitor(visitor("v1")), None).await.unwrap();
        chat.send(&id, replies(&anna, "two")).await.unwrap();
        t.clock.advance(2 * MINUTE);
        other.mark_visitors_present().await.unwrap();
        chat.send_due().await.unwrap();
        assert_eq!(courier.emails(), [], "there");
        drop(live);
        t.clock.advance(MINUTE);
        chat.send_due().await.unwrap();
        let sent = courier.emails();
        assert_eq!(sent.len(), 1);
        assert!(sent[0].text.contains("two") && !sent[0].text.contains("one\n"));

        // Without an address, with one that is gone, and blocked: nothing.
        start(&chat, "v2", ChatPriority::Normal).await;
        let nameless = start(&chat, "v3", ChatPriority::Normal).await.conversation.id;
        chat.send(&nameless, replies(&anna, "hello")).await.unwrap();
        let blocked = with_address(&chat, "v4").await;
        chat.send(&blocked, replies(&anna, "hello")).await.unwrap();
        chat.users().block(&visitor("v4"), "spam", None).await.unwrap();
        t.clock.advance(3 * MINUTE);
        chat.send_due().await.unwrap();
        t.clock.advance(30 * MINUTE);
        chat.send_due().await.unwrap();
        assert_eq!(courier.emails(), []);
        assert_eq!(waiting(&chat).await, 0);
    }

    async fn an_answer_that_comes_while_an_e_mail_is_sent_follows(t: TestStore, a: TestArchive) {
        let (chat, courier) = open(&t, &a, "i1").await;
        let anna = agent(&chat, "Anna", 5).await;
        let id = with_address(&chat, "v1").await;
        chat.send(&id, replies(&anna, "first")).await.unwrap();
        *courier.meanwhile.lock() = Some((chat.clone(), id.clone(), anna.clone()));
        t.clock.advance(2 * MINUTE);
        chat.send_due().await.unwrap();
        assert_eq!(courier.emails().len(), 1);
        assert_eq!(waiting(&chat).await, 1);
        t.clock.advance(2 * MINUTE);
        chat.send_due().await.unwrap();
        let sent = courier.emails();
        assert_eq!(sent.len(), 1);
        assert!(sent[0].text.contains("one more thing") && !sent[0].text.contains("first"));
    }

    async fn what_fails_is_tried_again_and_then_is_a_dead_letter(t: TestStore, a: TestArchive) {
        let (chat, courier) = open(&t, &a, "i1").await;
        let anna = agent(&chat, "Anna", 5).await;
        let id = with_address(&chat, "v1").await;
        chat.send(&id, replies(&anna, "hello")).await.unwrap();
        courier.fail(8);
        let mut pauses = Vec::new();
        let mut pause = Duration::ZERO;
        while dead(&chat).await.is_empty() {
            t.clock.advance(10 * SECOND);
            pause += 10 * SECOND;
            if chat.send_due().await.unwrap() > 0 {
                pauses.push(pause.as_secs());
                pause = Duration::ZERO;
            }
            assert!(pauses.len() <= 8);
            // Long pauses are not walked through step by step.
            if pauses.len() >= 4 {
                t.clock.advance(Duration::from_secs(1_700));
                pause += Duration::from_secs(1_700);
            }
        }
        assert_eq!(pauses.len(), 8);
        assert!(pauses[1..].windows(2).all(|pair| pair[0] < pair[1]), "{pauses:?}");
        let sent = courier.emails();
        assert!(sent.iter().all(|mail| mail.id == sent[0].id), "one e-mail, eight attempts");
        let letters = dead(&chat).await;
        assert_eq!(letters.len(), 1);
        assert_eq!(letters[0].error.as_deref(), Some("451 try later"));
        assert_eq!((letters[0].to.as_str(), letters[0].kind), ("v1@example.org", OutgoingKind::Reply));
        assert_eq!((letters[0].attempts, letters[0].state), (8, OutgoingState::Dead));

        chat.resend_outgoing(letters[0].number).await.unwrap();
        chat.send_due().await.unwrap();
        assert_eq!(courier.emails().len(), 1);
        assert_eq!(dead(&chat).await, []);
        let gone = chat.resend_outgoing(letters[0].number).await;
        assert!(matches!(gone, Err(Error::NotFound { .. })), "it was sent");

        // What the other side refuses for good is given up at once, and can be removed.
        chat.send(&id, replies(&anna, "again")).await.unwrap();
        courier.outcomes.lock().push_back(CourierOutcome::Refused("550 no such user".to_owned()));
        t.clock.advance(2 * MINUTE);
        chat.send_due().await.unwrap();
        let letters = dead(&chat).await;
        assert_eq!(letters[0].error.as_deref(), Some("550 no such user"));
        assert_eq!(letters[0].attempts, 1);
        chat.delete_outgoing(letters[0].number).await.unwrap();
        assert_eq!(dead(&chat).await, []);
    }

    async fn what_a_killed_process_was_sending_is_sent_again_under_the_same_id(t: TestStore, a: TestArchive) {
        let (chat, courier) = open(&t, &a, "i1").await;
        let anna = agent(&chat, "Anna", 5).await;
        let id = with_address(&chat, "v1").await;
        chat.send(&id, replies(&anna, "hello")).await.unwrap();
        t.clock.advance(2 * MINUTE);
        *courier.hangs.lock() = true;
        {
            // The server has it; the process ends before it can note that.
            let sending = chat.send_due();
            tokio::pin!(sending);
            testkit::until("the e-mail is handed over", async || {
                tokio::select! {
                    biased;
                    _ = &mut sending => panic!("it did not hang"),
                    () = tokio::task::yield_now() => {}
                }
                (courier.emails.lock().len() == 1).then_some(())
            })
            .await;
        }
        let first = courier.emails().remove(0);
        let (other, second) = open(&t, &a, "i2").await;
        other.send_due().await.unwrap();
        assert_eq!(second.emails(), [], "claimed for two minutes");
        t.clock.advance(2 * MINUTE + SECOND);
        other.send_due().await.unwrap();
        let again = second.emails();
        assert_eq!(again.len(), 1);
        assert_eq!((again[0].id.as_str(), again[0].text.contains("hello")), (first.id.as_str(), true));
        assert_eq!(waiting(&chat).await, 0);
    }

    async fn two_instances_send_each_e_mail_once(t: TestStore, a: TestArchive) {
        let (one, first) = open(&t, &a, "i1").await;
        let (other, second) = open(&t, &a, "i2").await;
        let anna = agent(&one, "Anna", 100).await;
        for n in 0..40 {
            let id = with_address(&one, &format!("v{n}")).await;
            one.send(&id, replies(&anna, "hello")).await.unwrap();
        }
        t.clock.advance(2 * MINUTE);
        let both = tokio::join!(one.send_due(), other.send_due());
        assert!(both.0.is_ok() && both.1.is_ok());
        let sent = [first.emails(), second.emails()].concat();
        let mut to: Vec<String> = sent.into_iter().map(|mail| mail.to).collect();
        to.sort();
        assert_eq!(to.len(), 40);
        to.dedup();
        assert_eq!(to.len(), 40);
    }

    async fn a_link_leads_its_visitor_back_and_nobody_anywhere_else(t: TestStore, a: TestArchive) {
        let (chat, courier) = open(&t, &a, "i1").await;
        let anna = agent(&chat, "Anna", 5).await;
        let id = with_address(&chat, "v1").await;
        let other = with_address(&chat, "v2").await;
        chat.send(&id, replies(&anna, "hello")).await.unwrap();
        t.clock.advance(2 * MINUTE);
        chat.send_due().await.unwrap();
        let link = link_of(&courier.emails()[0]);
        let token = link.split_once("#return=").unwrap().1;
        let (second, _) = open(&t, &a, "i2").await;
        let found = second.check_return_link(token).await.unwrap();
        assert_eq!((&found.id, &found.visitor.id), (&id, &visitor("v1")));
        let refused = async |text: &str| {
            matches!(chat.check_return_link(text).await, Err(Error::Forbidden { code: "BAD_LINK", .. }))
        };
        assert!(refused(&token.replace(id.as_str(), other.as_str())).await);
        let later: Vec<&str> = token.split('.').collect();
        let seconds: i64 = later[1].parse().unwrap();
        assert!(refused(&format!("{}.{}.{}", later[0], seconds + 1, later[2])).await);
        for bad in ["", "a", "a.b.c", "..", &token[..token.len() - 2], "cnv_x.99999999999.AAAA"] {
            assert!(refused(bad).await, "{bad}");
        }
        // Sent to an address that is not theirs any more, and expired.
        let change = VisitorChange { email: Some("new@example.org".to_owned()), ..VisitorChange::default() };
        chat.put_visitor(&visitor("v1"), change).await.unwrap();
        assert!(refused(token).await);
        let change = VisitorChange { email: Some("v1@example.org".to_owned()), ..VisitorChange::default() };
        chat.put_visitor(&visitor("v1"), change).await.unwrap();
        assert!(!refused(token).await);
        t.clock.advance(Duration::from_secs(7 * 86_400));
        assert!(refused(token).await);
    }

    async fn a_transcript_goes_to_the_visitors_own_address_once(t: TestStore, a: TestArchive) {
        let (chat, courier) = open(&t, &a, "i1").await;
        let anna = agent(&chat, "Anna", 5).await;
        let id = with_address(&chat, "v1").await;
        let code = async |id: &ConversationId, sender: Option<&Sender>| match chat.mail_transcript(id, sender).await {
            Err(Error::Conflict { code, .. }) => code,
            Err(Error::NotFound { .. }) => "NOT_FOUND",
            other => panic!("{other:?}"),
        };
        let own = Sender::Visitor(visitor("v1"));
        assert_eq!(code(&id, Some(&own)).await, "NO_ANSWER_YET");
        chat.send(&id, replies(&anna, "an <i>answer</i>")).await.unwrap();
        chat.send(&id, note(&anna, "a secret note")).await.unwrap();
        let removed = chat.send(&id, replies(&anna, "a slip")).await.unwrap().message;
        chat.delete_message(&id, &removed.id, Sender::Agent(anna.clone())).await.unwrap();
        assert_eq!(code(&id, Some(&Sender::Visitor(visitor("v2")))).await, "NOT_FOUND");
        for _ in 0..3 {
            assert_eq!(chat.mail_transcript(&id, Some(&own)).await.unwrap(), "v1@example.org");
        }
        chat.send_due().await.unwrap();
        let sent = courier.emails();
        assert_eq!(sent.len(), 1, "asked three times, sent once");
        let mail = &sent[0];
        assert_eq!(mail.to, "v1@example.org");
        assert!(mail.text.contains("You\n") && mail.text.contains("    hello"), "{}", mail.text);
        assert!(mail.text.contains("Anna\n") && mail.html.contains("an &lt;i&gt;answer&lt;/i&gt;"));
        assert!(!mail.text.contains("secret") && !mail.text.contains("slip"));
        let nameless = start(&chat, "v3", ChatPriority::Normal).await.conversation.id;
        assert_eq!(code(&nameless, None).await, "NO_ADDRESS");
        chat.configure(ChatOptions { email: false, ..options() });
        assert_eq!(code(&id, None).await, "EMAIL_OFF");
    }

    async fn an_invitation_is_mailed_and_sealed_until_then(t: TestStore, a: TestArchive) {
        let (chat, courier) = open(&t, &a, "i1").await;
        let anna = agent(&chat, "Anna", 5).await;
        let anna = chat.agent(&anna).unwrap();
        let secret = chat.invite_again(&anna.id).await.unwrap();
        assert!(chat.mail_invitation(&anna, &secret).await.unwrap());
        chat.send_due().await.unwrap();
        let sent = courier.emails();
        assert_eq!((sent.len(), sent[0].to.as_str()), (1, "anna@example.org"));
        assert!(sent[0].text.contains(&format!("https://desk.example/desk/invitation/{secret}\n")));
        assert_eq!(waiting(&chat).await, 0);
        // Used before it is sent again: of no use to anybody.
        assert!(chat.mail_invitation(&anna, &secret).await.unwrap());
        chat.accept_invitation(&secret, "correct horse battery").await.unwrap();
        chat.send_due().await.unwrap();
        assert_eq!(courier.emails(), []);
        assert!(dead(&chat).await[0].error.as_deref().unwrap().contains("invite them again"));
        chat.configure(ChatOptions { email: false, ..options() });
        assert!(!chat.mail_invitation(&anna, &secret).await.unwrap());
    }
}

fn browser(name: &str) -> PushSubscription {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    PushSubscription {
        endpoint: format!("https://push.example/{name}"),
        p256dh: URL_SAFE_NO_PAD.encode([[4].as_slice(), &[7; 64]].concat()),
        auth: URL_SAFE_NO_PAD.encode([1; 16]),
    }
}

async fn log_in(chat: &Chat, agent: &AgentId) -> UserSessionId {
    let user = chat.user_of_agent(agent).unwrap();
    let login = VerifiedLogin { device_id: "console", ip_address: None, replaces: None };
    match chat.users().open_session(&user, login).await.unwrap() {
        OpenOutcome::Opened(token) => token.session().clone(),
        OpenOutcome::Blocked(_) => panic!("blocked"),
    }
}

async fn give(chat: &Chat, id: &ConversationId, agent: &AgentId) {
    let request = AssignRequest {
        agent: Some(agent.clone()),
        expected: None,
        over_capacity: true,
        needs_presence: false,
        by: "test".to_owned(),
        reason: "assigned",
    };
    chat.deliver_now(id).await.unwrap();
    chat.assign(id, request).await.unwrap();
}

fn payload(push: &PushMessage) -> Value {
    serde_json::from_str(&push.payload).unwrap()
}

each_archive! {
    async fn agents_are_notified_of_what_concerns_them(t: TestStore, a: TestArchive) {
        let (chat, courier) = open(&t, &a, "i1").await;
        let (anna, ben) = (agent(&chat, "Anna", 5).await, agent(&chat, "Ben", 5).await);
        for one in [&anna, &ben] {
            come_online(&chat, one).await;
            let session = log_in(&chat, one).await;
            chat.subscribe_push(one, &session, browser(one.as_str())).await.unwrap();
        }
        let id = with_address(&chat, "v1").await;
        chat.send_due().await.unwrap();
        assert_eq!(courier.pushes(), [], "nobody's yet");
        give(&chat, &id, &anna).await;
        chat.send_due().await.unwrap();
        let pushes = courier.pushes();
        assert_eq!(pushes.len(), 1);
        assert_eq!(pushes[0].endpoint, browser(anna.as_str()).endpoint);
        assert_eq!(payload(&pushes[0])["about"], "assigned");
        assert_eq!(payload(&pushes[0])["conversation_id"], id.as_str());
        // A message of the visitor, to who has the conversation, with a short preview.
        let long = format!("Where is my parcel? {}", "x".repeat(3_000));
        chat.send(&id, says("v1", &long)).await.unwrap();
        chat.send_due().await.unwrap();
        let pushes = courier.pushes();
        assert_eq!(pushes.len(), 1);
        let told = payload(&pushes[0]);
        assert_eq!((told["title"].as_str(), told["about"].as_str()), (Some("Eva"), Some("message")));
        let body = told["body"].as_str().unwrap();
        assert!(body.starts_with("Where is my parcel? x") && body.chars().count() == 120);
        // A mention, without a word of the note; not to who wrote it.
        chat.send(&id, note(&anna, "@ben a secret, and @anna")).await.unwrap();
        chat.send_due().await.unwrap();
        let pushes = courier.pushes();
        assert_eq!(pushes.len(), 1);
        assert_eq!(pushes[0].endpoint, browser(ben.as_str()).endpoint);
        assert_eq!(payload(&pushes[0])["about"], "mention");
        assert!(!pushes[0].payload.contains("secret"));
        // An answer is no news to anybody.
        chat.send(&id, replies(&anna, "soon")).await.unwrap();
        chat.send_due().await.unwrap();
        assert_eq!(courier.pushes(), []);
    }

    async fn nobody_is_notified_who_looks_or_has_read_or_logged_out(t: TestStore, a: TestArchive) {
        let (chat, courier) = open(&t, &a, "i1").await;
        let anna = agent(&chat, "Anna", 5).await;
        come_online(&chat, &anna).await;
        let session = log_in(&chat, &anna).await;
        chat.subscribe_push(&anna, &session, browser("one")).await.unwrap();
        let id = with_address(&chat, "v1").await;
        chat.show_foreground(&anna, "tab1", true).await.unwrap();
        give(&chat, &id, &anna).await;
        chat.send(&id, says("v1", "hello?")).await.unwrap();
        chat.send_due().await.unwrap();
        assert_eq!(courier.pushes(), [], "a tab is in the foreground");
        chat.show_foreground(&anna, "tab1", false).await.unwrap();
        // One that a crash left behind ends by itself.
        chat.show_foreground(&anna, "tab2", true).await.unwrap();
        t.clock.advance(46 * SECOND);
        chat.send(&id, says("v1", "anybody?")).await.unwrap();
        chat.mark_read(&id, Sender::Agent(anna.clone()), 3).await.unwrap();
        chat.send_due().await.unwrap();
        assert_eq!(courier.pushes(), [], "read elsewhere");
        chat.send(&id, says("v1", "hm")).await.unwrap();
        chat.send_due().await.unwrap();
        assert_eq!(courier.pushes().len(), 1);
        // The push service says that the browser is gone.
        courier.outcomes.lock().push_back(CourierOutcome::Gone);
        chat.send(&id, says("v1", "so")).await.unwrap();
        chat.send_due().await.unwrap();
        assert_eq!(courier.pushes().len(), 1);
        assert_eq!(chat.push_browsers(&anna).await.unwrap(), 0);
        // A browser ends with its session, also where nobody said so.
        chat.subscribe_push(&anna, &session, browser("two")).await.unwrap();
        chat.users().end_session(&session).await.unwrap();
        chat.send(&id, says("v1", "well")).await.unwrap();
        chat.send_due().await.unwrap();
        assert_eq!(courier.pushes(), []);
        assert_eq!(chat.push_browsers(&anna).await.unwrap(), 0);
        let session = log_in(&chat, &anna).await;
        chat.subscribe_push(&anna, &session, browser("three")).await.unwrap();
        chat.end_push_of(&session).await.unwrap();
        assert_eq!(chat.push_browsers(&anna).await.unwrap(), 0);
        chat.configure(ChatOptions { push: false, ..options() });
        let off = chat.subscribe_push(&anna, &session, browser("four")).await;
        assert!(matches!(off, Err(Error::Conflict { code: "PUSH_OFF", .. })));
        assert_eq!(waiting(&chat).await, 0);
    }
}
