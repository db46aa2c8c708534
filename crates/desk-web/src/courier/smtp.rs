//! E-mail over SMTP: one connection per e-mail, to an address that was checked.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use desk::chat::Email;
use ipnet::IpNet;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart};
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{Address, Message};
use store::Millis;
use web::error::chain;
use web::outbound::{self, OutboundError};

use crate::config::{DeskSettings, SmtpTls};

/// Time to connect to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The SMTP server and the account there.
#[derive(Debug, Clone)]
pub(crate) struct SmtpServer {
    pub(crate) host: String,
    pub(crate) port: u16,
    tls: SmtpTls,
    login: Option<Login>,
    pub(crate) from: Mailbox,
}

/// A user with a password, which never shows in debug output.
#[derive(Clone)]
struct Login(Credentials);

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login(…)")
    }
}

impl SmtpServer {
    /// The server of the settings; none if e-mail is off.
    pub(crate) fn of(settings: &DeskSettings) -> Option<SmtpServer> {
        let host = settings.smtp_host.trim().to_owned();
        let from = settings.smtp_from.0.clone().filter(|_| !host.is_empty())?;
        let credentials = || {
            Credentials::new(settings.smtp_user.clone(), settings.smtp_password.reveal().to_owned())
        };
        Some(SmtpServer {
            host,
            port: settings.smtp_port,
            tls: settings.smtp_tls,
            login: (!settings.smtp_user.is_empty()).then(|| Login(credentials())),
            from,
        })
    }
}

/// The reason an e-mail was not taken.
#[derive(Debug)]
pub(crate) enum MailError {
    /// Trying again may help.
    Failed(String),
    /// It does not.
    Refused(String),
}

/// Writes an e-mail as it is sent: plain text, and the same as HTML.
///
/// # Errors
/// The address is none.
pub(crate) fn compose(email: &Email, from: &Mailbox, now: Millis) -> Result<Message, String> {
    let wrong = |error: &dyn std::error::Error| format!("the e-mail cannot be written: {error}");
    let to: Address = email
        .to
        .parse()
        .map_err(|error| format!("{} is not an e-mail address: {error}", email.to))?;
    let name = email.to_name.clone().filter(|name| !name.is_empty());
    let domain = from.email.domain();
    let since = Duration::from_millis(u64::try_from(now.0).unwrap_or(0));
    let automatic = HeaderValue::new(
        HeaderName::new_from_ascii_str("Auto-Submitted"),
        "auto-generated".to_owned(),
    );
    let mut message = Message::builder()
        .from(from.clone())
        .reply_to(from.clone())
        .to(Mailbox::new(name, to))
        .subject(email.subject.clone())
        .date(SystemTime::UNIX_EPOCH + since)
        .message_id(Some(format!("<{}@{domain}>", email.id)))
        .raw_header(automatic);
    if let Some(thread) = &email.thread {
        let first = format!("<{thread}@{domain}>");
        message = message.in_reply_to(first.clone()).references(first);
    }
    message
        .multipart(MultiPart::alternative_plain_html(email.text.clone(), email.html.clone()))
        .map_err(|error| wrong(&error))
}

/// Hands an e-mail to the server.
pub(crate) async fn send(
    server: &SmtpServer,
    allowed: &[IpNet],
    message: &Message,
) -> Result<(), MailError> {
    let mut connection = connect(server, allowed).await?;
    let bytes = message.formatted();
    if let Err(error) = connection.send(message.envelope(), &bytes).await {
        let reason = chain(&error);
        // What the server will say again, and what it was never asked.
        let is_final = error.is_permanent() || error.is_client();
        return Err(if is_final { MailError::Refused(reason) } else { MailError::Failed(reason) });
    }
    // It has the e-mail; how the connection ends does not matter.
    let _ = connection.quit().await;
    Ok(())
}

/// Connects and logs in, and sends nothing.
pub(crate) async fn probe(server: &SmtpServer, allowed: &[IpNet]) -> Result<(), MailError> {
    let mut connection = connect(server, allowed).await?;
    let _ = connection.quit().await; // it answered, which was the question
    Ok(())
}

async fn connect(server: &SmtpServer, allowed: &[IpNet]) -> Result<AsyncSmtpConnection, MailError> {
    let found = outbound::resolve(&server.host, server.port, allowed).await;
    // The host is the operator's setting: while it is wrong, e-mails wait.
    let addresses = found.map_err(|error| match error {
        OutboundError::Failed(reason) | OutboundError::Refused(reason) => {
            MailError::Failed(format!("{}: {reason}", server.host))
        }
    })?;
    let mut latest = "no address".to_owned();
    // Each address was checked; the name is not looked up again.
    for address in addresses.into_iter().take(3) {
        match connect_to(server, address).await {
            Ok(connection) => return Ok(connection),
            // So do they with a wrong password or certificate.
            Err(error) => latest = format!("{}:{}: {}", server.host, server.port, chain(&error)),
        }
    }
    Err(MailError::Failed(latest))
}

async fn connect_to(
    server: &SmtpServer,
    address: SocketAddr,
) -> Result<AsyncSmtpConnection, lettre::transport::smtp::Error> {
    let hello = ClientId::Domain(server.from.email.domain().to_owned());
    let tls = match server.tls {
        SmtpTls::None => None,
        SmtpTls::Starttls | SmtpTls::Tls => Some(TlsParameters::new(server.host.clone())?),
    };
    let wrapped = tls.clone().filter(|_| server.tls == SmtpTls::Tls);
    let connecting =
        AsyncSmtpConnection::connect_tokio1(address, Some(CONNECT_TIMEOUT), &hello, wrapped, None);
    let mut connection = connecting.await?;
    if let (SmtpTls::Starttls, Some(tls)) = (server.tls, tls) {
        connection.starttls(tls, &hello).await?;
    }
    if let Some(Login(credentials)) = &server.login {
        connection.auth(DEFAULT_MECHANISMS, credentials).await?;
    }
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn email() -> Email {
        Email {
            id: "cnv_1.7".to_owned(),
            thread: Some("cnv_1".to_owned()),
            to: "eva@example.org".to_owned(),
            to_name: Some("Eva \"<bcc: x@y.z>\" Müller".to_owned()),
            subject: "Grüße\r\nBcc: victim@example.org".to_owned(),
            text: "Hello\n.\nÄ line\n".to_owned(),
            html: "<p>Hello</p>".to_owned(),
        }
    }

    #[test]
    fn headers_are_complete_and_cannot_be_injected() {
        let from: Mailbox = "Support <support@shop.example>".parse().unwrap();
        let message = compose(&email(), &from, Millis(1_767_225_600_000)).unwrap();
        let bytes = message.formatted();
        assert!(bytes.is_ascii());
        let text = String::from_utf8(bytes).unwrap();
        let (head, _) = text.split_once("\r\n\r\n").unwrap();
        for wanted in [
            "Message-ID: <cnv_1.7@shop.example>",
            "References: <cnv_1@shop.example>",
            "Auto-Submitted: auto-generated",
            "Date: Thu, 01 Jan 2026 00:00:00 +0000",
            "Content-Type: multipart/alternative;",
        ] {
            assert!(head.contains(wanted), "{wanted}\n{head}");
        }
        let names: Vec<&str> = head
            .lines()
            .filter(|line| !line.starts_with([' ', '\t']))
            .filter_map(|line| line.split_once(':'))
            .map(|(name, _)| name)
            .collect();
        for name in ["From", "To", "Reply-To", "Subject"] {
            assert_eq!(names.iter().filter(|one| **one == name).count(), 1, "{name}\n{head}");
        }
        assert!(!names.iter().any(|name| name.eq_ignore_ascii_case("bcc")), "{head}");
        let to: Vec<String> = message.envelope().to().iter().map(ToString::to_string).collect();
        assert_eq!(to, ["eva@example.org"]);
        assert!(text.contains("text/plain") && text.contains("text/html"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let from: Mailbox = "support@shop.example".parse().unwrap();
        for bad in ["", "eva", "eva@example.org\r\nRCPT TO:<x@y.z>", "a b@example.org"] {
            let email = Email { to: bad.to_owned(), ..email() };
            assert!(compose(&email, &from, Millis(0)).is_err(), "{bad:?}");
        }
    }
}
