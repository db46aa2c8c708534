//! Users and sessions. The numbers in brackets are those of the list of traps.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use desk::{
    Error, Prefix, UserId,
    users::{
        AddressStorage, OpenOutcome, UserBlock, UserCheck, UserOptions, UserStatus, UserToken,
        Users, VerifiedLogin,
    },
};
use store::{
    Layout, Millis, Store,
    redis::{self, AsyncCommands},
};
use testkit::{TestStore, each_store};

use crate::support::{MINUTE, SECOND};

const DAY: Duration = Duration::from_secs(86_400);

fn users(store: &Store) -> Users {
    Users::new(store, &Prefix::default(), UserOptions::default()).unwrap()
}

fn user() -> UserId {
    UserId::parse("123").unwrap()
}

/// The user's key as the store at hand spells it.
fn key(t: &TestStore, name: &str) -> String {
    match t.store.layout() {
        Layout::Standalone => format!("ha:{name}:123"),
        Layout::Cluster => format!("ha:{name}:{{123}}"),
    }
}

fn phone() -> VerifiedLogin<'static> {
    VerifiedLogin {
        device_id: "iPhone_12_ABC123",
        ip_address: Some([192, 168, 1, 100].into()),
        replaces: None,
    }
}

async fn open(users: &Users) -> UserToken {
    match users.open_session(&user(), phone()).await.unwrap() {
        OpenOutcome::Opened(token) => token,
        OpenOutcome::Blocked(block) => panic!("{block:?}"),
    }
}

async fn check(users: &Users, token: &UserToken) -> UserCheck {
    users.check_token(&token.to_string()).await.unwrap()
}

fn valid(status: UserStatus) -> UserCheck {
    UserCheck::Valid { user: user(), status }
}

/// Everything in the store about the user: keys with their time to live in ms, and all text in them.
/// The list of users, which people look at, is left out; it goes by itself.
async fn dump(t: &TestStore) -> Vec<(String, i64, String)> {
    let mut store = t.store.clone();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut store).await.unwrap();
    let mut all = Vec::new();
    for key in keys {
        let kind: String = redis::cmd("TYPE").arg(&key).query_async(&mut store).await.unwrap();
        let text = match kind.as_str() {
            "hash" => {
                format!("{:?}", store.hgetall::<_, HashMap<String, String>>(&key).await.unwrap())
            }
            "zset" => format!("{:?}", store.zrange::<_, Vec<String>>(&key, 0, -1).await.unwrap()),
            _ => store.get(&key).await.unwrap(),
        };
        let ttl: i64 = store.pttl(&key).await.unwrap();
        if key == "ha:users" {
            assert!(ttl > 0, "{ttl}");
            continue;
        }
        all.push((key, ttl, text));
    }
    all
}

each_store! {
    // S1
    async fn a_login_is_stored_as_the_schema_and_its_example_say(t: TestStore) {
        let users = users(&t.store);
        let token = open(&users).await;
        let hash: HashMap<String, String> = t.store.clone().hgetall(key(&t, "user")).await.unwrap();
        let now = t.clock.now().to_string();
        for (field, value) in [
            ("device_id", "iPhone_12_ABC123"),
            ("login_time", &now),
            ("last_seen", &now),
            ("status", "login"),
            ("active", "true"),
            ("ip_address", "192.168.1.0"),
        ] {
            assert_eq!(hash.get(field).map(String::as_str), Some(value), "{field}");
        }
        assert_eq!(hash.len(), 6);
        let ttl: i64 = t.store.clone().ttl(key(&t, "user")).await.unwrap();
        assert!(ttl > 604_790 && ttl <= 604_800, "{ttl}");
        assert_eq!(check(&users, &token).await, valid(UserStatus::Login));
        assert_eq!(users.check_user(&user()).await.unwrap(), valid(UserStatus::Login));
    }

    // S1
    async fn a_login_that_another_program_wrote_is_understood(t: TestStore) {
        let users = users(&t.store);
        let mut store = t.store.clone();
        let name = key(&t, "user");
        assert_eq!(users.check_user(&user()).await.unwrap(), UserCheck::Unknown);
        for (fields, expected) in [
            (vec![("active", "true")], valid(UserStatus::Login)),
            (vec![("status", "login")], valid(UserStatus::Login)),
            (vec![("status", "anonymous")], valid(UserStatus::Anonymous)),
            (vec![("status", "anonymous"), ("active", "true")], valid(UserStatus::Anonymous)),
            (vec![], valid(UserStatus::Anonymous)),
            (vec![("status", "blocked")], UserCheck::Blocked(UserBlock::default())),
            (vec![("active", "false")], UserCheck::Blocked(UserBlock::default())),
            (vec![("status", "login"), ("active", "false")], UserCheck::Blocked(UserBlock::default())),
        ] {
            users.erase(&user()).await.unwrap();
            let now = t.clock.now().to_string();
            store.hset_multiple::<_, _, _, ()>(&name, &[("device_id", "x"), ("login_time", &now), ("last_seen", &now)]).await.unwrap();
            for (field, value) in &fields {
                store.hset::<_, _, _, ()>(&name, field, value).await.unwrap();
            }
            assert_eq!(users.check_user(&user()).await.unwrap(), expected, "{fields:?}");
            if matches!(expected, UserCheck::Valid { .. }) {
                let ttl: i64 = store.ttl(&name).await.unwrap();
                assert!(ttl > 0, "{fields:?}: what was left without a TTL gets one");
            }
        }
        // A hash without a device is no login.
        users.erase(&user()).await.unwrap();
        store.hset::<_, _, _, ()>(&name, "last_seen", "1").await.unwrap();
        assert_eq!(users.check_user(&user()).await.unwrap(), UserCheck::Unknown);
    }

    // S2
    async fn a_dump_of_the_store_and_every_id_give_no_valid_token(t: TestStore) {
        let users = users(&t.store);
        let token = open(&users).await;
        let text = token.to_string();
        let (id, secret) = text.rsplit_once('.').unwrap();
        for (key, _, content) in dump(&t).await {
            assert!(!key.contains(secret) && !content.contains(secret), "{key}");
            for word in content.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_') {
                for guess in [format!("{id}.{word}"), format!("{id}.{}", word.get(..32).unwrap_or(word))] {
                    assert_eq!(users.check_token(&guess).await.unwrap(), UserCheck::Unknown);
                }
            }
        }
        let other = open(&users).await.to_string();
        let swapped = format!("{id}.{}", other.rsplit_once('.').unwrap().1);
        for bad in ["", "123", "du_", "du_123.x", id, &swapped, &text.replace("du_", "xx_")] {
            assert_eq!(users.check_token(bad).await.unwrap(), UserCheck::Unknown, "{bad}");
        }
        assert_eq!(check(&users, &token).await, valid(UserStatus::Login));
    }

    // S3
    async fn two_devices_are_independent_and_logout_everywhere_ends_both(t: TestStore) {
        let users = users(&t.store);
        let (first, second) = (open(&users).await, open(&users).await);
        assert_eq!(users.sessions(&user()).await.unwrap().len(), 2);
        assert!(users.end_session(first.session()).await.unwrap());
        assert!(!users.end_session(first.session()).await.unwrap(), "once");
        assert_eq!(check(&users, &first).await, UserCheck::Unknown);
        assert_eq!(check(&users, &second).await, valid(UserStatus::Login));
        let third = open(&users).await;
        assert_eq!(users.end_all_sessions(&user()).await.unwrap(), 2);
        for token in [&second, &third] {
            assert_eq!(check(&users, token).await, UserCheck::Unknown);
        }
        assert_eq!(dump(&t).await, [], "nothing is left");
        // A later login does not bring them back.
        let fourth = open(&users).await;
        assert_eq!(check(&users, &second).await, UserCheck::Unknown);
        assert_eq!(check(&users, &fourth).await, valid(UserStatus::Login));
        // Nor does the last logout leave the user logged in.
        assert!(users.end_session(fourth.session()).await.unwrap());
        assert_eq!(users.check_user(&user()).await.unwrap(), UserCheck::Unknown);
    }

    // S4
    async fn a_block_outlives_logout_login_and_eight_idle_days(t: TestStore) {
        let users = users(&t.store);
        let token = open(&users).await;
        assert_eq!(users.block(&user(), "spam", None).await.unwrap(), UserStatus::Login);
        let blocked = UserCheck::Blocked(UserBlock { reason: "spam".to_owned(), until: None });
        assert_eq!(check(&users, &token).await, blocked);
        let mut store = t.store.clone();
        let fields: Vec<String> = store.hmget(key(&t, "user"), &["status", "active"]).await.unwrap();
        assert_eq!(fields, ["blocked", "false"], "programs that read the hash see it, too");
        users.end_all_sessions(&user()).await.unwrap();
        assert!(matches!(users.open_session(&user(), phone()).await.unwrap(), OpenOutcome::Blocked(_)));
        // Another program logs the user in, with both fields or as the schema's example does.
        let both = [("device_id", "y"), ("login_time", "5"), ("active", "true"), ("status", "login")];
        let example = [("device_id", "y"), ("login_time", "6"), ("active", "true")];
        for fields in [&both[..], &example] {
            store.hset_multiple::<_, _, _, ()>(key(&t, "user"), fields).await.unwrap();
            assert_eq!(users.check_user(&user()).await.unwrap(), blocked);
            let active: String = store.hget(key(&t, "user"), "active").await.unwrap();
            assert_eq!(active, "false", "the block is back where that program looks");
        }
        t.clock.advance(8 * DAY);
        let _: i64 = store.del(key(&t, "user")).await.unwrap();
        assert_eq!(users.check_user(&user()).await.unwrap(), blocked);
        assert_eq!(store.ttl::<_, i64>(key(&t, "user_status")).await.unwrap(), -1, "no TTL");
        assert_eq!(users.set_status(&user(), UserStatus::Login).await.unwrap(), UserStatus::Blocked);
        let token = open(&users).await;
        assert_eq!(check(&users, &token).await, valid(UserStatus::Login));
    }

    // S5
    async fn no_request_succeeds_after_logout_and_nothing_is_revived(t: TestStore) {
        let there = users(&t.another().await);
        let users = users(&t.store);
        let token = Arc::new(open(&users).await);
        // Every check would touch.
        t.clock.advance(2 * MINUTE);
        let is_over = Arc::new(AtomicBool::new(false));
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..1_000 {
            let instance = if number % 2 == 0 { users.clone() } else { there.clone() };
            let (shared, over) = (token.clone(), is_over.clone());
            tasks.spawn(async move {
                let was_over = over.load(Ordering::SeqCst);
                let outcome = check(&instance, &shared).await;
                assert!(!was_over || outcome == UserCheck::Unknown, "{outcome:?} after the logout");
            });
            if number == 500 {
                users.end_session(token.session()).await.unwrap();
                is_over.store(true, Ordering::SeqCst);
            }
        }
        tasks.join_all().await;
        assert_eq!(check(&there, &token).await, UserCheck::Unknown);
        assert_eq!(dump(&t).await, [], "no key came back");
    }

    // S5
    async fn deleting_the_users_hash_is_a_logout(t: TestStore) {
        let users = users(&t.store);
        let token = open(&users).await;
        let _: i64 = t.store.clone().del(key(&t, "user")).await.unwrap();
        assert_eq!(check(&users, &token).await, UserCheck::Unknown);
        let again = open(&users).await;
        assert_eq!(check(&users, &token).await, UserCheck::Unknown);
        assert_eq!(check(&users, &again).await, valid(UserStatus::Login));
        // A block or a status for a user who is not logged in makes no hash.
        users.end_all_sessions(&user()).await.unwrap();
        users.block(&user(), "", None).await.unwrap();
        users.set_status(&user(), UserStatus::Anonymous).await.unwrap();
        assert_eq!(dump(&t).await, []);
    }

    // S6
    async fn every_key_but_the_status_has_a_ttl_after_every_step(t: TestStore) {
        let users = users(&t.store);
        let mut random = fastrand::Rng::with_seed(12);
        let mut tokens: Vec<UserToken> = Vec::new();
        for step in 0..60 {
            t.clock.advance(Duration::from_secs(random.u64(0..200_000)));
            match random.u8(0..8) {
                0 | 1 => {
                    if let OpenOutcome::Opened(token) = users.open_session(&user(), phone()).await.unwrap() {
                        tokens.push(token);
                    }
                }
                2 if !tokens.is_empty() => _ = users.end_session(tokens[random.usize(..tokens.len())].session()).await.unwrap(),
                3 => _ = users.block(&user(), "x", Some(t.clock.now() + DAY)).await.unwrap(),
                4 => _ = users.set_status(&user(), UserStatus::Anonymous).await.unwrap(),
                5 => _ = users.check_user(&user()).await.unwrap(),
                _ if !tokens.is_empty() => _ = check(&users, &tokens[random.usize(..tokens.len())]).await,
                _ => {}
            }
            for (key, ttl, content) in dump(&t).await {
                assert!(ttl > 0 || key.starts_with("ha:user_status:"), "step {step}: {key} has no TTL: {content}");
            }
        }
        assert!(tokens.len() > 3);
    }

    // S7
    async fn a_session_is_written_at_most_once_a_minute(t: TestStore) {
        let users = users(&t.store);
        let token = open(&users).await;
        let start = t.clock.now();
        let mut store = t.store.clone();
        for second in 1..=180 {
            t.clock.advance(SECOND);
            assert_eq!(check(&users, &token).await, valid(UserStatus::Login));
            let seen: i64 = store.hget(key(&t, "user"), "last_seen").await.unwrap();
            assert_eq!(seen, start.0 + second / 60 * 60_000, "second {second}");
        }
    }

    // S10
    async fn a_plain_hset_blocks_on_every_instance_and_lifts_again(t: TestStore) {
        let instances = [users(&t.store), users(&t.another().await)];
        let mut store = t.store.clone();
        for (field, blocks, lifts) in [("status", "blocked", "login"), ("active", "false", "true")] {
            let token = open(&instances[0]).await;
            store.hset::<_, _, _, ()>(key(&t, "user"), field, blocks).await.unwrap();
            for users in &instances {
                assert!(matches!(check(users, &token).await, UserCheck::Blocked(_)), "{field}");
            }
            store.hset::<_, _, _, ()>(key(&t, "user"), field, lifts).await.unwrap();
            for users in &instances {
                assert_eq!(check(users, &token).await, valid(UserStatus::Login), "{field}");
            }
            // A block that was seen outlives the hash and a new login by the program that wrote it.
            store.hset::<_, _, _, ()>(key(&t, "user"), field, blocks).await.unwrap();
            assert!(matches!(check(&instances[0], &token).await, UserCheck::Blocked(_)));
            let _: i64 = store.del(key(&t, "user")).await.unwrap();
            t.clock.advance(MINUTE);
            let now = t.clock.now().to_string();
            for (name, value) in [("device_id", "z"), ("login_time", now.as_str()), ("active", "true"), ("status", "login")] {
                store.hset::<_, _, _, ()>(key(&t, "user"), name, value).await.unwrap();
            }
            assert!(matches!(instances[1].check_user(&user()).await.unwrap(), UserCheck::Blocked(_)), "{field}");
            instances[1].erase(&user()).await.unwrap();
        }
    }

    async fn a_block_with_an_end_ends_and_the_status_before_comes_back(t: TestStore) {
        let users = users(&t.store);
        let token = open(&users).await;
        users.set_status(&user(), UserStatus::Anonymous).await.unwrap();
        let until = t.clock.now() + MINUTE;
        for _ in 0..2 {
            users.block(&user(), "cool down", Some(until)).await.unwrap();
        }
        t.clock.advance(MINUTE - Duration::from_millis(1));
        let block = UserBlock { reason: "cool down".to_owned(), until: Some(until) };
        assert_eq!(check(&users, &token).await, UserCheck::Blocked(block));
        t.clock.advance(Duration::from_millis(1));
        assert_eq!(check(&users, &token).await, valid(UserStatus::Anonymous));
        assert!(dump(&t).await.iter().all(|(key, _, _)| !key.contains("user_status")));
    }

    async fn a_lifted_block_gives_back_the_status_before_it_and_no_more(t: TestStore) {
        let users = users(&t.store);
        let token = open(&users).await;
        assert_eq!(users.unblock(&user()).await.unwrap(), None, "nothing to lift");
        assert_eq!(check(&users, &token).await, valid(UserStatus::Login));
        users.set_status(&user(), UserStatus::Anonymous).await.unwrap();
        users.block(&user(), "spam", None).await.unwrap();
        assert_eq!(users.unblock(&user()).await.unwrap(), Some(UserStatus::Anonymous));
        assert_eq!(check(&users, &token).await, valid(UserStatus::Anonymous));
        assert!(dump(&t).await.iter().all(|(key, _, _)| !key.contains("user_status")));

        // Whoever logs in elsewhere while blocked has that login's status once the block is lifted.
        users.end_all_sessions(&user()).await.unwrap();
        users.block(&user(), "spam", None).await.unwrap();
        let mut store = t.store.clone();
        let login = [("device_id", "web"), ("login_time", "1"), ("last_seen", "1"), ("active", "true")];
        store.hset_multiple::<_, _, _, ()>(key(&t, "user"), &login).await.unwrap();
        assert!(matches!(users.check_user(&user()).await.unwrap(), UserCheck::Blocked(_)));
        assert_eq!(users.unblock(&user()).await.unwrap(), Some(UserStatus::Login));
    }

    async fn sessions_end_when_idle_and_after_their_longest_time(t: TestStore) {
        let users = users(&t.store);
        let (busy, idle) = (open(&users).await, open(&users).await);
        for _ in 0..4 {
            t.clock.advance(6 * DAY);
            assert_eq!(check(&users, &busy).await, valid(UserStatus::Login));
        }
        assert_eq!(check(&users, &idle).await, UserCheck::Unknown, "no request for 24 days");
        assert_eq!(users.sessions(&user()).await.unwrap().len(), 1);
        t.clock.advance(6 * DAY - Duration::from_millis(1));
        assert_eq!(check(&users, &busy).await, valid(UserStatus::Login));
        t.clock.advance(Duration::from_millis(1));
        assert_eq!(check(&users, &busy).await, UserCheck::Unknown, "30 days");
        assert_eq!(users.sessions(&user()).await.unwrap(), []);
    }

    async fn one_session_more_than_allowed_ends_the_oldest(t: TestStore) {
        let options = UserOptions { sessions_most: 3, ip_address: AddressStorage::None, ..UserOptions::default() };
        let users = Users::new(&t.store, &Prefix::default(), options).unwrap();
        let mut tokens = Vec::new();
        for _ in 0..5 {
            tokens.push(open(&users).await);
            t.clock.advance(SECOND);
        }
        for (number, token) in tokens.iter().enumerate() {
            let expected = if number < 2 { UserCheck::Unknown } else { valid(UserStatus::Login) };
            assert_eq!(check(&users, token).await, expected, "{number}");
        }
        let listed = users.sessions(&user()).await.unwrap();
        let newest: Vec<_> = tokens[2..].iter().rev().map(|token| token.session().clone()).collect();
        assert_eq!(listed.iter().map(|one| one.id.clone()).collect::<Vec<_>>(), newest);
        assert_eq!((listed[0].device_id.as_str(), listed[0].ip_address.as_str()), ("iPhone_12_ABC123", ""));
        assert_eq!(dump(&t).await.len(), 5, "three sessions, their list and the user");
    }

    async fn a_login_rotates_the_token_of_the_same_client(t: TestStore) {
        let users = users(&t.store);
        let old = open(&users).await;
        let login = VerifiedLogin { replaces: Some(old.session()), ..phone() };
        let OpenOutcome::Opened(new) = users.open_session(&user(), login).await.unwrap() else { panic!() };
        assert_eq!(check(&users, &old).await, UserCheck::Unknown);
        assert_eq!(check(&users, &new).await, valid(UserStatus::Login));
        // Nobody ends the session of another user that way.
        let other = UserId::parse("456").unwrap();
        let login = VerifiedLogin { replaces: Some(new.session()), ..phone() };
        assert!(matches!(users.open_session(&other, login).await.unwrap(), OpenOutcome::Opened(_)));
        assert_eq!(check(&users, &new).await, valid(UserStatus::Login));
    }

    async fn erasing_a_user_leaves_no_key(t: TestStore) {
        let users = users(&t.store);
        for _ in 0..3 {
            open(&users).await;
        }
        users.block(&user(), "x", None).await.unwrap();
        users.erase(&user()).await.unwrap();
        assert_eq!(dump(&t).await, []);
    }

    async fn bad_input_of_users_is_refused_and_nothing_is_stored(t: TestStore) {
        let users = users(&t.store);
        for device in ["", "a\nb", &"x".repeat(201)] {
            let login = VerifiedLogin { device_id: device, ..phone() };
            assert!(matches!(users.open_session(&user(), login).await, Err(Error::Invalid { .. })), "{device:?}");
        }
        assert!(users.block(&user(), &"x".repeat(501), None).await.is_err());
        assert!(users.block(&user(), "", Some(Millis(0))).await.is_err());
        assert!(users.set_status(&user(), UserStatus::Blocked).await.is_err());
        let bad = UserOptions { sessions_most: 0, ..UserOptions::default() };
        assert!(Users::new(&t.store, &Prefix::default(), bad).is_err());
        assert_eq!(dump(&t).await, []);
    }
}
