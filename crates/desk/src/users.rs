//! Users and their sessions: who may do what, and from when on not any more.
//!
//! The schema keeps one hash per user that any program may write (`ha:user:<id>`). Beside it stand
//! the sessions, one per device, and a record of the user's status that outlives the hash, so that a
//! block survives logout, login and idle days. Invariants: every write of a session is one script
//! that revives nothing and leaves no key without a TTL; a user who is blocked or logged out, also
//! by a plain `HSET` or `DEL`, is refused by the next check on every instance; the store alone gives
//! nobody a valid token.
//!
//! Read in this order: `token.rs`, [`Users`] here, then `lua/lib/user_state.lua`, `watch.rs`.

mod token;
mod watch;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use store::{Millis, Store, redis};
use subtle::ConstantTimeEq;

pub use self::{
    token::{UserSessionId, UserToken},
    watch::{UserWatch, UserWatcher, WATCHED_MAX, WatchState},
};
use crate::{
    Error, Prefix, UserId,
    keys::{self, UserKeys},
    scripts::{
        check_session, check_user, end_all_sessions, end_session, open_session, read_user,
        set_user_status,
    },
};

/// Most bytes of a device id.
const DEVICE_ID_MAX: usize = 200;

/// Most bytes of the reason of a block.
const REASON_MAX: usize = 500;

/// Most users in the list of users; the ones seen longest ago go first.
const LISTED_MAX: isize = 100_000;

/// Most users of which this instance remembers that it put them on the list.
const LISTED_MEMORY: usize = 10_000;

/// Most rounds of a search through the list, a thousand users each.
const SEARCH_ROUNDS: usize = 20;

/// Accuracy of `last_seen`: a session is written at most this often.
const TOUCH_INTERVAL: Duration = Duration::from_secs(60);

/// Options of users and sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserOptions {
    /// Time without a request after which a session ends, and the TTL of a user's hash. Default 7
    /// days, as the schema says.
    pub session_idle: Duration,
    /// Time after which a session ends in any case. Default 30 days.
    pub session_max: Duration,
    /// Most sessions of one user; one more ends the oldest. Default 20, at most 1,000.
    pub sessions_most: u32,
    /// The part of an address that is stored.
    pub ip_address: AddressStorage,
}

impl Default for UserOptions {
    fn default() -> Self {
        let day = Duration::from_secs(86_400);
        Self {
            session_idle: 7 * day,
            session_max: 30 * day,
            sessions_most: 20,
            ip_address: AddressStorage::default(),
        }
    }
}

impl UserOptions {
    fn validate(&self) -> Result<(), Error> {
        let minute = Duration::from_secs(60);
        if self.session_idle < minute || self.session_max < self.session_idle {
            return Err(Error::invalid(
                "session_idle",
                "at least a minute, and at most session_max",
            ));
        }
        if self.session_max > Duration::from_secs(366 * 86_400) {
            return Err(Error::invalid("session_max", "at most 366 days"));
        }
        if !(1..=1_000).contains(&self.sessions_most) {
            return Err(Error::invalid("sessions_most", "1 to 1,000"));
        }
        Ok(())
    }
}

/// The part of a client's address that is stored with a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressStorage {
    /// The whole address.
    Full,
    /// Its network: the /24 of an IPv4 address, the /48 of an IPv6 address.
    #[default]
    Truncated,
    /// Nothing.
    None,
}

impl AddressStorage {
    fn text(self, address: Option<IpAddr>) -> String {
        match (self, address.map(|address| address.to_canonical())) {
            (Self::None, _) | (_, None) => String::new(),
            (Self::Full, Some(address)) => address.to_string(),
            (Self::Truncated, Some(IpAddr::V4(v4))) => {
                let [a, b, c, _] = v4.octets();
                IpAddr::from([a, b, c, 0]).to_string()
            }
            (Self::Truncated, Some(IpAddr::V6(v6))) => {
                let mut segments = v6.segments();
                segments[3..].fill(0);
                IpAddr::from(segments).to_string()
            }
        }
    }
}

/// The status of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UserStatus {
    /// May view.
    Anonymous,
    /// Has full access.
    Login,
    /// Has no access, even with a valid session.
    Blocked,
}

impl UserStatus {
    /// Returns the word that is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Login => "login",
            Self::Blocked => "blocked",
        }
    }

    /// Returns what the status grants.
    pub fn capabilities(self) -> Capabilities {
        let (view, member) = (self != Self::Blocked, self == Self::Login);
        Capabilities { view, post: member, chat: member }
    }

    fn parse(text: &str) -> Self {
        match text {
            "login" => Self::Login,
            "blocked" => Self::Blocked,
            _ => Self::Anonymous,
        }
    }
}

/// Rights that a status grants; the app enforces those it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// May read.
    pub view: bool,
    /// May create topics and the like.
    pub post: bool,
    /// May chat with an agent.
    pub chat: bool,
}

/// A login that the app has verified.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedLogin<'a> {
    /// The device it came from.
    pub device_id: &'a str,
    /// Address of the client.
    pub ip_address: Option<IpAddr>,
    /// Session of the same client that ends with this login.
    pub replaces: Option<&'a UserSessionId>,
}

/// The outcome of opening a session.
#[derive(Debug)]
pub enum OpenOutcome {
    /// The session is open; its token is shown this once.
    Opened(UserToken),
    /// The user is blocked; nothing was opened.
    Blocked(UserBlock),
}

/// A block of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserBlock {
    /// The operator's reason; empty if none was given.
    pub reason: String,
    /// Its end; none if it lasts until it is lifted.
    pub until: Option<Millis>,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserCheck {
    /// The user may go on, with the capabilities of the status.
    Valid {
        /// The user.
        user: UserId,
        /// The status: anonymous or login.
        status: UserStatus,
    },
    /// The user is blocked.
    Blocked(UserBlock),
    /// There is no such session: it never was, has expired or was ended.
    Unknown,
}

/// One device of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSession {
    /// Id of the session.
    pub id: UserSessionId,
    /// The device.
    pub device_id: String,
    /// Address of the client as it is stored; empty if it is not.
    pub ip_address: String,
    /// Time of the login.
    pub opened: Millis,
    /// Time of the last request, accurate to a minute.
    pub seen: Millis,
}

/// Users and sessions. A cheap clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_desk::Error> {
/// use tidegate_desk::{Prefix, UserId, users::{OpenOutcome, UserCheck, UserOptions, Users, VerifiedLogin}};
///
/// let store = store::Store::open("embedded:").await?;
/// let users = Users::new(&store, &Prefix::default(), UserOptions::default())?;
/// let anna = UserId::parse("anna")?;
/// let login = VerifiedLogin { device_id: "iPhone_12", ip_address: None, replaces: None };
/// let OpenOutcome::Opened(token) = users.open_session(&anna, login).await? else { panic!() };
///
/// assert!(matches!(users.check_token(&token.to_string()).await?, UserCheck::Valid { .. }));
/// users.block(&anna, "spam", None).await?;
/// assert!(matches!(users.check_token(&token.to_string()).await?, UserCheck::Blocked(_)));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Users(Arc<UsersInner>);

struct UsersInner {
    store: Store,
    prefix: Prefix,
    options: Mutex<UserOptions>,
    /// Users put on the list, and the minute since which.
    listed: Mutex<(i64, HashSet<UserId>)>,
}

/// A user as the desk knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSummary {
    /// Id of the user.
    pub id: UserId,
    /// Status.
    pub status: UserStatus,
    /// The block, if there is one.
    pub block: Option<UserBlock>,
    /// Device of the latest login; empty without one.
    pub device_id: String,
    /// Time of the latest login.
    pub login: Option<Millis>,
    /// Time of the last request, accurate to a minute.
    pub seen: Option<Millis>,
    /// Address of the latest login as it is stored; empty if it is not.
    pub ip_address: String,
    /// Number of sessions.
    pub sessions: u64,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("options", &*self.0.options.lock()).finish_non_exhaustive()
    }
}

impl Users {
    /// Opens the users of a store.
    ///
    /// # Errors
    /// Options out of bounds.
    pub fn new(store: &Store, prefix: &Prefix, options: UserOptions) -> Result<Self, Error> {
        options.validate()?;
        let (store, prefix) = (store.clone(), prefix.clone());
        let (options, listed) = (Mutex::new(options), Mutex::default());
        Ok(Self(Arc::new(UsersInner { store, prefix, options, listed })))
    }

    /// Changes the options; they count for what happens from now on.
    ///
    /// # Errors
    /// Options out of bounds; nothing is changed.
    pub fn configure(&self, options: UserOptions) -> Result<(), Error> {
        options.validate()?;
        *self.0.options.lock() = options;
        Ok(())
    }

    fn options(&self) -> UserOptions {
        *self.0.options.lock()
    }

    /// Opens a session for a user whose password, or whatever stands for it, the app has checked.
    ///
    /// # Errors
    /// A device id that is empty, longer than 200 bytes or has control characters.
    pub async fn open_session(
        &self,
        user: &UserId,
        login: VerifiedLogin<'_>,
    ) -> Result<OpenOutcome, Error> {
        let device = login.device_id;
        if !(1..=DEVICE_ID_MAX).contains(&device.len()) || device.contains(char::is_control) {
            return Err(Error::invalid("device_id", "1 to 200 bytes without control characters"));
        }
        let (token, keys) = (UserToken::fresh(user)?, self.keys(user));
        let options = self.options();
        let replaces = login.replaces.filter(|session| session.user() == user);
        let reply: Vec<String> = open_session::run(
            &self.0.store,
            open_session::Keys {
                user: &keys.user,
                record: &keys.status,
                sessions: &keys.sessions,
                session: keys.session(token.session()),
            },
            open_session::Args {
                now_ms: self.0.store.now(),
                session_id: token.session().to_string(),
                token_hash: token.hash(),
                device_id: device,
                ip_address: options.ip_address.text(login.ip_address),
                idle_ms: millis(options.session_idle),
                max_ms: millis(options.session_max),
                most: options.sessions_most,
                replaces: replaces.map(UserSessionId::to_string),
            },
        )
        .await?;
        match reply.split_first() {
            Some((word, ended)) if word == "opened" => {
                self.sweep(&keys, ended).await;
                if !ended.is_empty() {
                    self.publish(user).await;
                }
                self.list(user).await;
                Ok(OpenOutcome::Opened(token))
            }
            Some((word, block)) if word == "blocked" => Ok(OpenOutcome::Blocked(read_block(block))),
            _ => Err(unreadable()),
        }
    }

    /// Checks the token of a session, and notes that the user was seen.
    pub async fn check_token(&self, token: &str) -> Result<UserCheck, Error> {
        let Some(token) = UserToken::parse(token) else { return Ok(UserCheck::Unknown) };
        let (keys, options) = (self.keys(token.session().user()), self.options());
        let hash = token.hash();
        let reply: Vec<String> = check_session::run(
            &self.0.store,
            check_session::Keys {
                user: &keys.user,
                record: &keys.status,
                sessions: &keys.sessions,
                session: keys.session(token.session()),
            },
            check_session::Args {
                now_ms: self.0.store.now(),
                session_id: token.session().to_string(),
                token_hash: &hash,
                idle_ms: millis(options.session_idle),
                max_ms: millis(options.session_max),
                touch_ms: millis(TOUCH_INTERVAL),
            },
        )
        .await?;
        let reply: Vec<&str> = reply.iter().map(String::as_str).collect();
        let (word, stored, rest) = match reply.as_slice() {
            ["unknown"] => return Ok(UserCheck::Unknown),
            [word, stored, rest @ ..] => (*word, *stored, rest),
            _ => return Err(unreadable()),
        };
        if !bool::from(stored.as_bytes().ct_eq(hash.as_bytes())) {
            return Ok(UserCheck::Unknown);
        }
        read_check(token.session().user(), word, rest)
    }

    /// Checks a user whose login another program keeps in the user's hash, and notes that the user
    /// was seen. The caller must know by other means that the request is this user's.
    pub async fn check_user(&self, user: &UserId) -> Result<UserCheck, Error> {
        let keys = self.keys(user);
        let reply: Vec<String> = check_user::run(
            &self.0.store,
            check_user::Keys { user: &keys.user, record: &keys.status },
            check_user::Args {
                now_ms: self.0.store.now(),
                idle_ms: millis(self.options().session_idle),
                touch_ms: millis(TOUCH_INTERVAL),
            },
        )
        .await?;
        let reply: Vec<&str> = reply.iter().map(String::as_str).collect();
        let check = match reply.as_slice() {
            ["unknown"] => UserCheck::Unknown,
            [word, rest @ ..] => read_check(user, word, rest)?,
            [] => return Err(unreadable()),
        };
        if check != UserCheck::Unknown {
            self.list(user).await;
        }
        Ok(check)
    }

    /// Returns the standing of a user or of one session of theirs, without counting as a request.
    pub(crate) async fn standing(
        &self,
        user: &UserId,
        session: Option<&UserSessionId>,
    ) -> Result<UserCheck, Error> {
        let Some(summary) = self.read(user).await? else { return Ok(UserCheck::Unknown) };
        if let Some(block) = summary.block {
            return Ok(UserCheck::Blocked(block));
        }
        if let Some(session) = session {
            let is_open = self.sessions(user).await?.iter().any(|known| known.id == *session);
            if !is_open {
                return Ok(UserCheck::Unknown);
            }
        } else if summary.device_id.is_empty() {
            return Ok(UserCheck::Unknown);
        }
        Ok(UserCheck::Valid { user: user.clone(), status: summary.status })
    }

    /// Reads what is known of a user; `None` if nothing is. Does not count as a request of theirs.
    pub async fn read(&self, user: &UserId) -> Result<Option<UserSummary>, Error> {
        let keys = self.keys(user);
        let reply: Vec<String> = read_user::run(
            &self.0.store,
            read_user::Keys { user: &keys.user, record: &keys.status, sessions: &keys.sessions },
            read_user::Args { now_ms: self.0.store.now() },
        )
        .await?;
        let texts: Vec<&str> = reply.iter().map(String::as_str).collect();
        let [_, status, reason, until, device, login, seen, address, sessions] = texts.as_slice()
        else {
            return if texts == ["unknown"] { Ok(None) } else { Err(unreadable()) };
        };
        let time = |text: &str| text.parse().ok().map(Millis);
        let status = UserStatus::parse(status);
        let block = (status == UserStatus::Blocked).then(|| read_block(&[*reason, *until]));
        Ok(Some(UserSummary {
            id: user.clone(),
            status,
            block,
            device_id: (*device).to_owned(),
            login: time(login),
            seen: time(seen),
            ip_address: (*address).to_owned(),
            sessions: sessions.parse().unwrap_or(0),
        }))
    }

    /// Reads users of the list, the one seen last first. Users that another program keeps are on it
    /// once they were checked or changed here.
    pub async fn recent(&self, offset: usize, limit: usize) -> Result<Vec<UserSummary>, Error> {
        // The list is no longer than this, and the store counts no further than 2^63.
        if offset >= LISTED_MAX.unsigned_abs() {
            return Ok(Vec::new());
        }
        let ids: Vec<String> = redis::cmd("ZREVRANGE")
            .arg(keys::users(&self.0.prefix))
            .arg(offset)
            .arg(offset.saturating_add(limit).saturating_sub(1))
            .query_async(&mut self.0.store.clone())
            .await?;
        self.read_all(&ids).await
    }

    /// Finds users of the list whose id holds a text, and the one whose id it is. Looks at 20,000
    /// users at most.
    pub async fn search(&self, text: &str, limit: usize) -> Result<Vec<UserSummary>, Error> {
        let mut ids: Vec<String> = Vec::new();
        if let Ok(exact) = UserId::parse(text) {
            ids.push(exact.as_str().to_owned());
        }
        let escaped: String = text
            .chars()
            .flat_map(|c| {
                matches!(c, '*' | '?' | '[' | ']' | '\\').then_some('\\').into_iter().chain([c])
            })
            .collect();
        let mut cursor = "0".to_owned();
        for _ in 0..SEARCH_ROUNDS {
            let (next, found): (String, Vec<(String, f64)>) = redis::cmd("ZSCAN")
                .arg(keys::users(&self.0.prefix))
                .arg(&cursor)
                .arg("MATCH")
                .arg(format!("*{escaped}*"))
                .arg("COUNT")
                .arg(1_000)
                .query_async(&mut self.0.store.clone())
                .await?;
            for (id, _) in found {
                if !ids.contains(&id) && ids.len() <= limit {
                    ids.push(id);
                }
            }
            cursor = next;
            if cursor == "0" || ids.len() > limit {
                break;
            }
        }
        let mut found = self.read_all(&ids).await?;
        found.truncate(limit);
        Ok(found)
    }

    async fn read_all(&self, ids: &[String]) -> Result<Vec<UserSummary>, Error> {
        let mut found = Vec::with_capacity(ids.len());
        for batch in ids.chunks(100) {
            let ids: Vec<UserId> = batch.iter().filter_map(|id| UserId::parse(id).ok()).collect();
            let each = ids.iter().map(|id| self.read(id));
            for user in futures_util::future::join_all(each).await {
                found.extend(user?);
            }
        }
        Ok(found)
    }

    /// Puts a user on the list, at most once a minute. The list is for people who look: it may miss
    /// one.
    async fn list(&self, user: &UserId) {
        let minute = self.0.store.now().as_secs().div_euclid(60);
        {
            let mut listed = self.0.listed.lock();
            if listed.0 != minute || listed.1.len() >= LISTED_MEMORY {
                *listed = (minute, HashSet::new());
            }
            if !listed.1.insert(user.clone()) {
                return;
            }
        }
        let key = keys::users(&self.0.prefix);
        let mut pipe = redis::pipe();
        pipe.cmd("ZADD").arg(&key).arg(self.0.store.now().0).arg(user.as_str()).ignore();
        pipe.cmd("ZREMRANGEBYRANK").arg(&key).arg(0).arg(-LISTED_MAX - 1).ignore();
        pipe.cmd("PEXPIRE").arg(&key).arg(millis(self.options().session_max)).ignore();
        if let Err(error) = pipe.query_async::<()>(&mut self.0.store.clone()).await {
            tracing::debug!(%error, "a user is not on the list");
        }
    }

    /// Tells all instances that a user changed. Who misses it finds out by looking.
    async fn publish(&self, user: &UserId) {
        let told = redis::cmd("PUBLISH")
            .arg(keys::user_events(&self.0.prefix))
            .arg(user.as_str())
            .query_async::<()>(&mut self.0.store.clone())
            .await;
        if let Err(error) = told {
            tracing::debug!(%error, "a change of a user is not published");
        }
    }

    /// Lists the sessions of a user, the newest first.
    pub async fn sessions(&self, user: &UserId) -> Result<Vec<UserSession>, Error> {
        let keys = self.keys(user);
        let mut store = self.0.store.clone();
        let ids: Vec<String> = redis::cmd("ZREVRANGE")
            .arg(&keys.sessions)
            .arg(0)
            .arg(self.options().sessions_most.saturating_sub(1))
            .query_async(&mut store)
            .await?;
        let now = self.0.store.now();
        let mut found = Vec::with_capacity(ids.len());
        for id in ids.iter().filter_map(|id| UserSessionId::parse(id)) {
            let fields: HashMap<String, String> =
                redis::cmd("HGETALL").arg(keys.session(&id)).query_async(&mut store).await?;
            let text = |name: &str| fields.get(name).cloned().unwrap_or_default();
            let time = |name: &str| text(name).parse().ok().map(Millis);
            let (Some(opened), Some(seen)) = (time("opened_ms"), time("seen_ms")) else { continue };
            let options = self.options();
            if now < seen + options.session_idle && now < opened + options.session_max {
                let (device_id, ip_address) = (text("device_id"), text("ip_address"));
                found.push(UserSession { id, device_id, ip_address, opened, seen });
            }
        }
        Ok(found)
    }

    /// Ends one session. Returns false if there is none of that id.
    pub async fn end_session(&self, session: &UserSessionId) -> Result<bool, Error> {
        let keys = self.keys(session.user());
        let (word,): (String,) = end_session::run(
            &self.0.store,
            end_session::Keys {
                user: &keys.user,
                sessions: &keys.sessions,
                session: keys.session(session),
            },
            end_session::Args { session_id: session.to_string() },
        )
        .await?;
        self.publish(session.user()).await;
        Ok(word == "ended")
    }

    /// Logs a user out everywhere at once. Returns the number of sessions.
    pub async fn end_all_sessions(&self, user: &UserId) -> Result<usize, Error> {
        let keys = self.keys(user);
        let reply: Vec<String> = end_all_sessions::run(
            &self.0.store,
            end_all_sessions::Keys { user: &keys.user, sessions: &keys.sessions },
            end_all_sessions::Args { most: self.options().sessions_most },
        )
        .await?;
        let ended = reply.get(1..).unwrap_or_default();
        self.sweep(&keys, ended).await;
        self.publish(user).await;
        Ok(ended.len())
    }

    /// Blocks a user everywhere at once, with or without a session, until a time or until lifted.
    /// Returns the status before.
    ///
    /// # Errors
    /// A reason longer than 500 bytes or an end that has passed.
    pub async fn block(
        &self,
        user: &UserId,
        reason: &str,
        until: Option<Millis>,
    ) -> Result<UserStatus, Error> {
        if reason.len() > REASON_MAX || reason.contains(char::is_control) {
            return Err(Error::invalid("reason", "at most 500 bytes without control characters"));
        }
        if until.is_some_and(|until| until <= self.0.store.now()) {
            return Err(Error::invalid("until", "must lie in the future"));
        }
        let (before, _) = self.set(user, Some(UserStatus::Blocked), reason, until).await?;
        Ok(before)
    }

    /// Gives a user the status anonymous or login, and lifts a block. Returns the status before.
    ///
    /// # Errors
    /// The status blocked: use [`Users::block`].
    pub async fn set_status(&self, user: &UserId, status: UserStatus) -> Result<UserStatus, Error> {
        if status == UserStatus::Blocked {
            return Err(Error::invalid("status", "a block has a reason and an end: use block"));
        }
        let (before, _) = self.set(user, Some(status), "", None).await?;
        Ok(before)
    }

    /// Lifts the block of a user: the status before it comes back. Returns that status; `None` if the
    /// user was not blocked.
    pub async fn unblock(&self, user: &UserId) -> Result<Option<UserStatus>, Error> {
        let (before, now) = self.set(user, None, "", None).await?;
        Ok((before == UserStatus::Blocked).then_some(now))
    }

    /// Deletes everything that is kept about a user: sessions, hash, and status, also a block.
    pub async fn erase(&self, user: &UserId) -> Result<(), Error> {
        self.end_all_sessions(user).await?;
        let mut store = self.0.store.clone();
        let () = redis::cmd("DEL").arg(self.keys(user).status).query_async(&mut store).await?;
        let () = redis::cmd("ZREM")
            .arg(keys::users(&self.0.prefix))
            .arg(user.as_str())
            .query_async(&mut store)
            .await?;
        self.0.listed.lock().1.remove(user);
        self.publish(user).await;
        Ok(())
    }

    /// Sets a status, or lifts a block without one. Returns the status before and after.
    async fn set(
        &self,
        user: &UserId,
        status: Option<UserStatus>,
        reason: &str,
        until: Option<Millis>,
    ) -> Result<(UserStatus, UserStatus), Error> {
        let keys = self.keys(user);
        let (_, before, now): (String, String, String) = set_user_status::run(
            &self.0.store,
            set_user_status::Keys { user: &keys.user, record: &keys.status },
            set_user_status::Args {
                now_ms: self.0.store.now(),
                status: status.map_or("", UserStatus::as_str),
                reason,
                until_ms: until,
            },
        )
        .await?;
        self.list(user).await;
        self.publish(user).await;
        Ok((UserStatus::parse(&before), UserStatus::parse(&now)))
    }

    fn keys(&self, user: &UserId) -> UserKeys {
        UserKeys::new(self.0.store.layout(), &self.0.prefix, user)
    }

    /// Deletes what is left of sessions that no longer count. What is not reached goes with its TTL.
    async fn sweep(&self, keys: &UserKeys, ids: &[String]) {
        let mut store = self.0.store.clone();
        for id in ids.iter().filter_map(|id| UserSessionId::parse(id)) {
            let swept =
                redis::cmd("DEL").arg(keys.session(&id)).query_async::<()>(&mut store).await;
            if let Err(error) = swept {
                tracing::debug!(%error, "an ended session is left to its ttl");
            }
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn read_check(user: &UserId, word: &str, rest: &[&str]) -> Result<UserCheck, Error> {
    match (word, rest) {
        ("valid", [status]) => {
            Ok(UserCheck::Valid { user: user.clone(), status: UserStatus::parse(status) })
        }
        ("blocked", block) => Ok(UserCheck::Blocked(read_block(block))),
        _ => Err(unreadable()),
    }
}

fn read_block<T: AsRef<str>>(reply: &[T]) -> UserBlock {
    let text = |index: usize| reply.get(index).map_or("", AsRef::as_ref);
    UserBlock { reason: text(0).to_owned(), until: text(1).parse().ok().map(Millis) }
}

fn unreadable() -> Error {
    Error::Store(store::Error::Decode { message: "a user's reply has another shape".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_stored_as_the_setting_says() {
        let [v4, v6] = ["192.168.1.100", "2001:db8:1:2::3"].map(|text| Some(text.parse().unwrap()));
        assert_eq!(AddressStorage::Full.text(v4), "192.168.1.100");
        assert_eq!(AddressStorage::Truncated.text(v4), "192.168.1.0");
        assert_eq!(AddressStorage::Truncated.text(v6), "2001:db8:1::");
        assert_eq!(AddressStorage::None.text(v4), "");
        assert_eq!(AddressStorage::Full.text(None), "");
    }

    #[test]
    fn a_status_grants_what_the_schema_says() {
        let rights = |status: UserStatus| {
            let Capabilities { view, post, chat } = status.capabilities();
            (view, post, chat)
        };
        assert_eq!(rights(UserStatus::Login), (true, true, true));
        assert_eq!(rights(UserStatus::Anonymous), (true, false, false));
        assert_eq!(rights(UserStatus::Blocked), (false, false, false));
    }
}
