//! E-mails: answers to visitors who have left, transcripts, invitations; and the signed link that
//! leads back to a conversation.
//!
//! Composed when they are sent, from what the archive has then: an answer that was read meanwhile is
//! not mailed, one that was deleted is not in it, and notes never are.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use serde_json::json;
use store::Millis;

use super::{
    Agent, Chat, Conversation, Message, MessageType, Sender, SenderRole,
    login::hash_secret,
    millis,
    outgoing::{
        Courier, Email, NewOutgoing, OutgoingKind, OutgoingRow, RowOutcome, put, wait_for_present,
    },
    record::MESSAGE_SELECT,
    visitors::decode_hex,
};
use crate::{AgentId, ConversationId, Error, archive::text_of, random::random_hex};

/// Time for which a link back to a conversation holds.
const RETURN_TIME: Duration = Duration::from_secs(7 * 86_400);

/// Most answers in one e-mail; more follow in the next.
const ANSWERS_MOST: i64 = 50;

/// Most messages of a transcript, and most bytes of their texts: the latest.
const TRANSCRIPT_MESSAGES: i64 = 1_000;
const TRANSCRIPT_BYTES: usize = 500_000;

/// Name of the key that signs links, in the archive.
const LINK_KEY: &str = "link_key";

/// The texts of e-mails to visitors, in a language.
struct EmailWords {
    hello: &'static str,
    subject: &'static str,
    wrote: &'static str,
    files: &'static str,
    go_on: &'static str,
    link_note: &'static str,
    transcript_subject: &'static str,
    transcript: &'static str,
    left_out: &'static str,
    you: &'static str,
    somebody: &'static str,
}

static ENGLISH: EmailWords = EmailWords {
    hello: "Hello",
    subject: "Your conversation with us",
    wrote: "{name} wrote:",
    files: "Files: {names}. Open the conversation to see them.",
    go_on: "Continue the conversation:",
    link_note: "This link is only for you and works until {day}. Please reply there: nobody reads replies to this e-mail.",
    transcript_subject: "Transcript of your conversation",
    transcript: "This is the transcript you asked for. Times are in UTC.",
    left_out: "Earlier messages are not included.",
    you: "You",
    somebody: "Someone",
};

static GERMAN: EmailWords = EmailWords {
    hello: "Guten Tag",
    subject: "Ihr Gespräch mit uns",
    wrote: "{name} schreibt:",
    files: "Dateien: {names}. Sie finden sie im Gespräch.",
    go_on: "Gespräch fortsetzen:",
    link_note: "Der Link ist nur für Sie bestimmt und bis {day} gültig. Bitte antworten Sie dort: Antworten auf diese E-Mail werden nicht gelesen.",
    transcript_subject: "Verlauf Ihres Gesprächs",
    transcript: "Hier ist der gewünschte Gesprächsverlauf. Alle Zeiten sind in UTC angegeben.",
    left_out: "Frühere Nachrichten sind nicht enthalten.",
    you: "Sie",
    somebody: "Jemand",
};

static SPANISH: EmailWords = EmailWords {
    hello: "Hola",
    subject: "Tu conversación con nosotros",
    wrote: "{name} ha escrito:",
    files: "Archivos: {names}. Los encontrarás en la conversación.",
    go_on: "Continúa la conversación:",
    link_note: "Este enlace es solo para ti y es válido hasta el {day}. Responde allí, por favor: nadie lee las respuestas a este correo.",
    transcript_subject: "Transcripción de tu conversación",
    transcript: "Aquí tienes la transcripción que has pedido. Las horas están en UTC.",
    left_out: "No se incluyen los mensajes anteriores.",
    you: "Tú",
    somebody: "Alguien",
};

fn words_of(locale: Option<&str>) -> &'static EmailWords {
    let primary = locale.unwrap_or_default().split(['-', '_']).next().unwrap_or_default();
    match primary.to_ascii_lowercase().as_str() {
        "de" => &GERMAN,
        "es" => &SPANISH,
        _ => &ENGLISH,
    }
}

/// A part of an e-mail.
enum EmailPart<'a> {
    Paragraph(String),
    /// A text that somebody wrote, as written.
    Quote(&'a str),
    Link(String),
    /// Small print.
    Note(String),
}

/// Writes the parts as plain text and as HTML, in which everything is text.
fn write_parts(parts: &[EmailPart<'_>]) -> (String, String) {
    let (mut text, mut html) = (String::new(), String::new());
    html.push_str(
        "<!doctype html><html><head><meta charset=\"utf-8\"></head>\
         <body style=\"font:16px/1.5 sans-serif;color:#1c1c1c;max-width:36em\">",
    );
    for part in parts {
        // Writing to a String cannot fail.
        let _ = match part {
            EmailPart::Paragraph(line) => {
                let _ = write!(text, "{line}\n\n");
                write!(html, "<p>{}</p>", escape(line))
            }
            EmailPart::Quote(content) => {
                for line in content.lines() {
                    let _ = writeln!(text, "    {line}");
                }
                text.push('\n');
                let lines = escape(content).replace('\n', "<br>");
                write!(
                    html,
                    "<blockquote style=\"margin:0 0 1em;padding:0 0 0 1em;border-left:3px solid #8aa\">{lines}</blockquote>"
                )
            }
            EmailPart::Link(url) => {
                let _ = write!(text, "{url}\n\n");
                let url = escape(url);
                write!(html, "<p><a href=\"{url}\">{url}</a></p>")
            }
            EmailPart::Note(line) => {
                let _ = write!(text, "{line}\n\n");
                write!(html, "<p style=\"font-size:13px;color:#555\">{}</p>", escape(line))
            }
        };
    }
    html.push_str("</body></html>");
    (text.trim_end().to_owned() + "\n", html)
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Characters that HTML does not allow.
            c if c.is_control() && c != '\n' => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

/// One line for a header: without control characters, and not too long.
fn header_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(150).collect()
}

fn greeting(words: &EmailWords, name: Option<&str>) -> String {
    match name.map(header_line).filter(|name| !name.is_empty()) {
        Some(name) => format!("{} {name},", words.hello),
        None => format!("{},", words.hello),
    }
}

fn file_names(message: &Message) -> Vec<String> {
    let names = message.attachments.iter().filter_map(|file| file["name"].as_str());
    names.map(header_line).collect()
}

/// The day of a time, as `2026-11-24`.
fn day(at: Millis) -> String {
    super::rfc3339(at).chars().take(10).collect()
}

/// The minute of a time, as `2026-11-24 09:30`.
fn minute(at: Millis) -> String {
    super::rfc3339(at).chars().take(16).collect::<String>().replace('T', " ")
}

impl Chat {
    /// Tells whether answers, transcripts and invitations go out by e-mail.
    pub fn sends_email(&self) -> bool {
        let options = self.options();
        options.email && !options.public_url.is_empty()
    }

    /// Makes the transcript of a conversation due, to the visitor's own address. Asked for twice
    /// without a new message, it is sent once.
    ///
    /// # Errors
    /// `EMAIL_OFF`; `NO_ADDRESS`; `NO_ANSWER_YET`, so that strangers cannot make the desk mail their
    /// own words to anybody; there is no such conversation, for who asks.
    pub async fn mail_transcript(
        &self,
        id: &ConversationId,
        asked_by: Option<&Sender>,
    ) -> Result<String, Error> {
        // Before anything else: a conversation of somebody else does not exist.
        let conversation = self.conversation(id).await?;
        if let Some(sender) = asked_by {
            sender.check(&conversation)?;
        }
        if !self.sends_email() {
            return Err(email_off());
        }
        let Some(email) = conversation.visitor.email.clone() else {
            return Err(Error::conflict("NO_ADDRESS", "the visitor gave no e-mail address"));
        };
        if conversation.first_reply_at.is_none() {
            return Err(Error::conflict(
                "NO_ANSWER_YET",
                "a transcript is sent once an agent has answered",
            ));
        }
        let now = self.now();
        let new = Arc::new(NewOutgoing {
            kind: OutgoingKind::Transcript,
            target: conversation.visitor.id.to_string(),
            conversation: Some(conversation.id.clone()),
            body: json!({ "seq": conversation.last_seq }),
            due: now,
            dedup: Some(format!("transcript:{}:{}", conversation.id, conversation.last_seq)),
        });
        self.0
            .archive
            .write(move |tx| {
                let new = Arc::clone(&new);
                Box::pin(async move { put(tx, &new, now).await })
            })
            .await?;
        self.wake_outgoing();
        Ok(email)
    }

    /// Makes the e-mail with an agent's invitation due. Returns false where e-mail is off; the link can
    /// be handed over in another way.
    ///
    /// # Errors
    /// The archive is away; the secret cannot be encrypted.
    pub async fn mail_invitation(&self, agent: &Agent, secret: &str) -> Result<bool, Error> {
        let Some(courier) = self.courier().filter(|_| self.sends_email()) else {
            return Ok(false);
        };
        // The archive has its hash only, and until it is sent, this.
        let sealed = courier.seal(secret).map_err(Error::archive)?;
        let now = self.now();
        let new = Arc::new(NewOutgoing {
            kind: OutgoingKind::Invitation,
            target: agent.id.to_string(),
            conversation: None,
            body: json!({ "secret": sealed }),
            due: now,
            dedup: None,
        });
        self.0
            .archive
            .write(move |tx| {
                let new = Arc::clone(&new);
                Box::pin(async move {
                    // An earlier invitation of theirs is of no use any more.
                    sqlx::query("DELETE FROM outgoing WHERE kind = 'invitation' AND target = $1")
                        .bind(new.target.clone())
                        .execute(&mut *tx)
                        .await?;
                    put(tx, &new, now).await
                })
            })
            .await?;
        self.wake_outgoing();
        Ok(true)
    }

    pub(crate) async fn send_reply(
        &self,
        courier: &dyn Courier,
        row: &OutgoingRow,
    ) -> Result<RowOutcome, Error> {
        let Some(conversation) = self.conversation_of(row).await? else {
            return Ok(RowOutcome::Needless { seq: 0 });
        };
        let all = RowOutcome::Needless { seq: conversation.last_seq };
        let Some(email) = conversation.visitor.email.clone() else { return Ok(all) };
        let user = self.0.users.read(&conversation.visitor.id).await?;
        if user.is_some_and(|user| user.block.is_some()) {
            return Ok(all);
        }
        let from = conversation.visitor_read_seq.max(row.number_in("seq"));
        let sql = format!(
            "{MESSAGE_SELECT} WHERE conversation_id = $1 AND seq > $2 AND sender_role IN ('admin', 'bot') \
             AND type = 'text' AND deleted = 0 ORDER BY seq LIMIT $3"
        );
        let answers = self.messages_by(&sql, &conversation.id, from, ANSWERS_MOST).await?;
        let Some(last) = answers.last() else {
            return Ok(RowOutcome::Needless { seq: 0 });
        };
        if self.is_visitor_present(&conversation.visitor.id).await? {
            return Ok(wait_for_present());
        }
        if !self.sends_email() {
            return Ok(off());
        }
        let words = words_of(conversation.visitor.locale.as_deref());
        let until = Millis(self.now().0 + millis(RETURN_TIME));
        let link = self.return_link(&conversation, until).await?;
        let names: Vec<(String, Option<String>)> = answers
            .iter()
            .map(|answer| {
                let name = answer.sender_name.as_deref().map(header_line);
                let name = name.filter(|name| !name.is_empty());
                let name = name.unwrap_or_else(|| words.somebody.to_owned());
                let files = file_names(answer);
                let files =
                    (!files.is_empty()).then(|| words.files.replace("{names}", &files.join(", ")));
                (words.wrote.replace("{name}", &name), files)
            })
            .collect();
        let mut parts =
            vec![EmailPart::Paragraph(greeting(words, conversation.visitor.name.as_deref()))];
        let mut told = "";
        for (answer, (wrote, files)) in answers.iter().zip(&names) {
            if told != wrote {
                parts.push(EmailPart::Paragraph(wrote.clone()));
            }
            told = wrote;
            if !answer.content.trim().is_empty() {
                parts.push(EmailPart::Quote(&answer.content));
            }
            if let Some(files) = files {
                parts.push(EmailPart::Paragraph(files.clone()));
            }
        }
        parts.push(EmailPart::Paragraph(words.go_on.to_owned()));
        parts.push(EmailPart::Link(link));
        parts.push(EmailPart::Note(words.link_note.replace("{day}", &day(until))));
        let (text, html) = write_parts(&parts);
        let mail = Email {
            id: format!("{}.{}", conversation.id, last.seq),
            thread: Some(conversation.id.to_string()),
            to: email,
            to_name: conversation.visitor.name.as_deref().map(header_line),
            subject: subject(&conversation, words.subject),
            text,
            html,
        };
        Ok(match courier.send_email(&mail).await.into() {
            RowOutcome::Sent { .. } => RowOutcome::Sent { seq: last.seq },
            other => other,
        })
    }

    pub(crate) async fn send_transcript(
        &self,
        courier: &dyn Courier,
        row: &OutgoingRow,
    ) -> Result<RowOutcome, Error> {
        let Some(conversation) = self.conversation_of(row).await? else {
            return Ok(RowOutcome::Needless { seq: 0 });
        };
        let Some(email) = conversation.visitor.email.clone() else {
            return Ok(RowOutcome::Refused(
                "the visitor no longer has an e-mail address".to_owned(),
            ));
        };
        if !self.sends_email() {
            return Ok(off());
        }
        let sql = format!(
            "{MESSAGE_SELECT} WHERE conversation_id = $1 AND seq > $2 AND type = 'text' AND deleted = 0 \
             ORDER BY seq DESC LIMIT $3"
        );
        let found = self.messages_by(&sql, &conversation.id, 0, TRANSCRIPT_MESSAGES).await?;
        let words = words_of(conversation.visitor.locale.as_deref());
        let (mut bytes, mut shown) = (0, Vec::new());
        for message in &found {
            bytes += message.content.len();
            if bytes > TRANSCRIPT_BYTES {
                break;
            }
            shown.push(message);
        }
        let is_cut = shown.last().is_some_and(|first| first.seq > 1)
            && (shown.len() < found.len() || found.len() as i64 == TRANSCRIPT_MESSAGES);
        let mut parts = vec![
            EmailPart::Paragraph(greeting(words, conversation.visitor.name.as_deref())),
            EmailPart::Paragraph(words.transcript.to_owned()),
        ];
        if is_cut {
            parts.push(EmailPart::Paragraph(words.left_out.to_owned()));
        }
        for message in shown.into_iter().rev() {
            let name = match message.sender_role {
                SenderRole::User => words.you.to_owned(),
                _ => message.sender_name.as_deref().map_or(words.somebody.to_owned(), header_line),
            };
            parts.push(EmailPart::Paragraph(format!("{}  {name}", minute(message.created_at))));
            if !message.content.trim().is_empty() {
                parts.push(EmailPart::Quote(&message.content));
            }
            let files = file_names(message);
            if !files.is_empty() {
                parts.push(EmailPart::Paragraph(format!("[{}]", files.join(", "))));
            }
        }
        let (text, html) = write_parts(&parts);
        let mail = Email {
            id: format!("{}.transcript.{}", conversation.id, row.number_in("seq")),
            thread: Some(conversation.id.to_string()),
            to: email,
            to_name: conversation.visitor.name.as_deref().map(header_line),
            subject: subject(&conversation, words.transcript_subject),
            text,
            html,
        };
        Ok(courier.send_email(&mail).await.into())
    }

    pub(crate) async fn send_invitation(
        &self,
        courier: &dyn Courier,
        row: &OutgoingRow,
    ) -> Result<RowOutcome, Error> {
        if !self.sends_email() {
            return Ok(off());
        }
        let Some(secret) = row.body["secret"].as_str().and_then(|sealed| courier.unseal(sealed))
        else {
            let reason = "the invitation was sealed with another secret; invite them again";
            return Ok(RowOutcome::Refused(reason.to_owned()));
        };
        let agent = AgentId::parse(&row.target).and_then(|id| self.agent(&id));
        let Ok(agent) = agent else { return Ok(RowOutcome::Needless { seq: 0 }) };
        let found = sqlx::query(
            "SELECT invite FROM agents WHERE id = $1 AND invite_until_ms > $2 AND disabled = 0",
        )
        .bind(row.target.clone())
        .bind(self.now().0)
        .fetch_optional(self.0.archive.readers())
        .await?;
        let invite = found.map(|row| text_of(&row, "invite")).transpose()?.flatten();
        if invite.is_none_or(|hash| hash != hash_secret(&secret)) {
            let reason = "the invitation has expired or was used; invite them again";
            return Ok(RowOutcome::Refused(reason.to_owned()));
        }
        let parts = [
            EmailPart::Paragraph(greeting(&ENGLISH, Some(&agent.name))),
            EmailPart::Paragraph("You are invited to answer conversations at the desk.".to_owned()),
            EmailPart::Paragraph("Choose your password here:".to_owned()),
            EmailPart::Link(format!("{}/desk/invitation/{secret}", self.options().public_url)),
            EmailPart::Note("The link works once, within 7 days of the invitation. If you did not expect it, do nothing.".to_owned()),
        ];
        let (text, html) = write_parts(&parts);
        let mail = Email {
            id: format!("{}.invitation.{}", agent.id, row.created_at.0),
            thread: None,
            to: agent.email.clone(),
            to_name: Some(header_line(&agent.name)),
            subject: "Your invitation to the desk".to_owned(),
            text,
            html,
        };
        Ok(courier.send_email(&mail).await.into())
    }

    async fn conversation_of(&self, row: &OutgoingRow) -> Result<Option<Conversation>, Error> {
        let Some(id) = &row.conversation else { return Ok(None) };
        match self.conversation(id).await {
            Ok(conversation) => Ok(Some(conversation)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn messages_by(
        &self,
        sql: &str,
        id: &ConversationId,
        after: i64,
        most: i64,
    ) -> Result<Vec<Message>, Error> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql.to_owned()))
            .bind(id.as_str().to_owned())
            .bind(after)
            .bind(most)
            .fetch_all(self.0.archive.readers())
            .await?;
        let found = rows.iter().map(Message::read).collect::<Result<Vec<_>, _>>()?;
        debug_assert!(found.iter().all(|message| message.kind == MessageType::Text));
        Ok(found)
    }

    async fn link_key(&self) -> Result<hmac::Key, Error> {
        let key = self
            .0
            .link_key
            .get_or_try_init(async || {
                let kept = match self.kept(LINK_KEY).await? {
                    Some(kept) => kept,
                    None => self.keep(LINK_KEY, &random_hex::<32>()?).await?,
                };
                let bytes = decode_hex(&kept)
                    .ok_or_else(|| Error::archive("link_key is not hexadecimal"))?;
                Ok::<_, Error>(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
            })
            .await?;
        Ok(key.clone())
    }

    /// Returns the link that leads a visitor back to a conversation until then. What signs it is in the
    /// part of the address that browsers send to nobody.
    ///
    /// # Errors
    /// The archive is away.
    pub async fn return_link(
        &self,
        conversation: &Conversation,
        until: Millis,
    ) -> Result<String, Error> {
        let key = self.link_key().await?;
        let seconds = until.0 / 1_000;
        let tag = hmac::sign(&key, signed_text(conversation, seconds).as_bytes());
        let tag = URL_SAFE_NO_PAD.encode(tag.as_ref());
        let public_url = &self.options().public_url;
        Ok(format!("{public_url}/chat#return={}.{seconds}.{tag}", conversation.id))
    }

    /// Checks what follows `#return=` in a link, and returns the conversation it leads to. It is for the
    /// visitor of that conversation, at the address it was sent to.
    ///
    /// # Errors
    /// `BAD_LINK`: wrong or expired, or the visitor has another address by now.
    pub async fn check_return_link(&self, text: &str) -> Result<Conversation, Error> {
        let bad = || Error::forbidden("BAD_LINK", "this link is invalid or has expired");
        let parts: Vec<&str> = text.rsplitn(3, '.').collect();
        let [tag, seconds, id] = parts.as_slice() else { return Err(bad()) };
        let id = ConversationId::parse(id).map_err(|_| bad())?;
        let seconds: i64 = seconds.parse().map_err(|_| bad())?;
        let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| bad())?;
        let conversation = match self.conversation(&id).await {
            Ok(conversation) => conversation,
            Err(Error::NotFound { .. }) => return Err(bad()),
            Err(error) => return Err(error),
        };
        let key = self.link_key().await?;
        hmac::verify(&key, signed_text(&conversation, seconds).as_bytes(), &tag)
            .map_err(|_| bad())?;
        if seconds <= self.now().0 / 1_000 {
            return Err(bad());
        }
        Ok(conversation)
    }
}

fn signed_text(conversation: &Conversation, seconds: i64) -> String {
    let email = conversation.visitor.email.as_deref().unwrap_or_default();
    format!("return\n{}\n{}\n{email}\n{seconds}", conversation.id, conversation.visitor.id)
}

fn subject(conversation: &Conversation, otherwise: &str) -> String {
    match conversation.subject.as_deref().map(header_line) {
        Some(subject) if !subject.is_empty() => format!("{otherwise}: {subject}"),
        _ => otherwise.to_owned(),
    }
}

fn email_off() -> Error {
    Error::conflict(
        "EMAIL_OFF",
        "e-mail is not set up: set desk.smtp_host, desk.smtp_from and desk.public_url",
    )
}

fn off() -> RowOutcome {
    let reason = "e-mail is not set up any more: set desk.smtp_host".to_owned();
    RowOutcome::Failed { reason, retry_after: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_in_the_html_is_text() {
        let parts = [
            EmailPart::Paragraph("<b>\u{1b}Anna</b> wrote:".to_owned()),
            EmailPart::Quote("<script>alert('x')</script>\n\"two\" & more"),
            EmailPart::Link("https://x.example/chat#return=a\"><img src=x>".to_owned()),
        ];
        let (text, html) = write_parts(&parts);
        assert!(!html.contains("<script") && !html.contains("<b>") && !html.contains("<img"));
        assert!(html.contains(
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;<br>&quot;two&quot; &amp; more"
        ));
        assert!(text.contains("    <script>alert('x')</script>\n    \"two\" & more\n"));
    }

    #[test]
    fn a_header_is_one_short_line() {
        assert_eq!(header_line("Eva\r\nBcc: all@example.org\0"), "Eva Bcc: all@example.org");
        assert_eq!(header_line(&"x".repeat(1_000)).len(), 150);
        assert_eq!(words_of(Some("de-AT")).you, "Sie");
        assert_eq!(words_of(None).you, "You");
    }

    #[test]
    fn blanks_are_the_same_in_every_language() {
        for words in [&ENGLISH, &GERMAN, &SPANISH] {
            assert!(words.wrote.contains("{name}") && words.files.contains("{names}"));
            assert!(words.link_note.contains("{day}"));
        }
    }
}
