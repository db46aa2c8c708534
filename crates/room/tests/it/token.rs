//! What visitors carry: tokens, passes, invites, and everything that must not pass for one.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use ring::signature::{Ed25519KeyPair, KeyPair};
use room::{
    Error, NewInvite, NewPosition, Options, Proof, QueueConfig, QueueId, Room, SessionStart,
    TokenError, Visitor, VisitorPriority, VisitorSession,
};
use serde_json::{Value, json};
use testkit::each_store;

use crate::support::{Bench, open_queue, seconds};

const RSA: &str = include_str!("fixtures/rsa-for-tests-only.pem");

fn fault<T: std::fmt::Debug>(result: Result<T, Error>) -> TokenError {
    match result {
        Err(Error::Token(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

/// A session, with its pass instead of the digest of it.
async fn session(b: &Bench) -> VisitorSession {
    let position = b.enqueue().await;
    b.room.admit_by_hand(&b.queue, 10).await.unwrap();
    match b.room.start_session(&b.queue, &position.id, &Visitor::default()).await.unwrap() {
        SessionStart::Active { session, started: true } => {
            let token = b.room.issue_pass(&session).await.unwrap();
            VisitorSession { token, ..session }
        }
        other => panic!("{other:?}"),
    }
}

fn parts(token: &str) -> (Value, Value, Vec<u8>) {
    let mut parts = token.split('.').map(|part| URL_SAFE_NO_PAD.decode(part).unwrap());
    let mut json = || serde_json::from_slice(&parts.next().unwrap()).unwrap();
    (json(), json(), parts.next().unwrap())
}

fn encode(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// A key pair the test knows, made the room's signing key.
async fn known_key(b: &Bench) -> (Ed25519KeyPair, String) {
    let document = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).unwrap();
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        STANDARD.encode(document.as_ref())
    );
    b.room.import_pass_key(&pem).await.unwrap();
    let jwks = b.room.jwks().await.unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
    let key = jwks["keys"].as_array().unwrap().iter().find(|key| key["x"] == x.as_str()).unwrap();
    (pair, key["kid"].as_str().unwrap().to_owned())
}

fn sign(pair: &Ed25519KeyPair, header: &Value, claims: &Value) -> String {
    let signed = format!("{}.{}", encode(header), encode(claims));
    let signature = pair.sign(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}

each_store! {
    async fn a_place_token_proves_the_place_and_nothing_else(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        let token = b.room.position_token(&position).await.unwrap();
        assert!(token.starts_with("wrp1.") && token.len() < 130, "{token}");
        let read = b.room.check_position_token(&b.queue, &token).await.unwrap();
        assert_eq!((read.position, read.queue.clone(), read.priority), (position.id, b.queue.clone(), VisitorPriority::NORMAL));
        assert_eq!(read.ticket, position.ticket);

        let other = QueueId::parse("other").unwrap();
        assert_eq!(fault(b.room.check_position_token(&other, &token).await), TokenError::OtherQueue);
        assert_eq!(fault(b.room.check_redirect_token(&b.queue, &token).await), TokenError::Malformed);
        let as_invite = token.replacen("wrp1", "wri1", 1);
        assert_eq!(fault(b.room.check_invite(&b.queue, &as_invite).await), TokenError::Forged);
        // Every single changed character is noticed.
        for i in 5..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[i] = if bytes[i] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(bytes).unwrap();
            let fault = fault(b.room.check_position_token(&b.queue, &forged).await);
            assert!(matches!(fault, TokenError::Forged | TokenError::Malformed | TokenError::UnknownKey), "{i}: {fault:?}");
        }
        for bad in ["", "wrp1", "wrp1.", "wrp1..", "wrp1.AAAA.", "wrp1.AAAA.AAAA", "x.y.z", &"a".repeat(600)] {
            let fault = fault(b.room.check_position_token(&b.queue, bad).await);
            assert!(matches!(fault, TokenError::Malformed | TokenError::UnknownKey), "{bad}: {fault:?}");
        }
    }

    async fn a_redirect_token_runs_out_and_starts_one_session(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        b.room.admit_by_hand(&b.queue, 1).await.unwrap();
        let token = b.room.redirect_token(&position).await.unwrap();
        let read = b.room.check_redirect_token(&b.queue, &token).await.unwrap();
        let first = b.room.start_session(&b.queue, &read.position, &Visitor::default()).await.unwrap();
        assert!(matches!(first, SessionStart::Active { started: true, .. }));
        let second = b.room.start_session(&b.queue, &read.position, &Visitor::default()).await.unwrap();
        assert!(matches!(second, SessionStart::Active { started: false, .. }), "a replay starts nothing");
        b.clock.advance(seconds(121));
        assert_eq!(fault(b.room.check_redirect_token(&b.queue, &token).await), TokenError::Expired);
    }

    async fn a_pass_says_what_it_must_and_is_good_while_the_session_is(t: TestStore) {
        let b = Bench::still(t).await;
        let session = session(&b).await;
        let (header, claims, _) = parts(&session.token);
        assert_eq!((header["alg"].as_str(), header["typ"].as_str()), (Some("EdDSA"), Some("JWT")));
        assert_eq!(claims["aud"], "concert-tickets");
        assert_eq!(claims["iss"], "tidegate");
        assert_eq!(claims["jti"], session.id.to_string());
        assert_eq!(claims["position_id"], session.position.to_string());
        assert_eq!(claims["exp"], session.expires.as_secs());
        let pass = b.room.check_pass(&b.queue, &session.token).await.unwrap();
        assert_eq!((pass.session, pass.position, pass.expires), (session.id, session.position, session.expires));

        let renewed = b.room.issue_pass(&session).await.unwrap();
        assert!(b.room.check_pass(&b.queue, &renewed).await.is_ok());
        b.room.complete(&b.queue, &session.id).await.unwrap();
        assert_eq!(fault(b.room.check_pass(&b.queue, &session.token).await), TokenError::Over, "a replay");
        assert_eq!(fault(b.room.check_pass(&b.queue, &renewed).await), TokenError::Over);
    }

    async fn a_pass_is_void_once_revoked_expired_or_reset(t: TestStore) {
        let config = QueueConfig { session_timeout: seconds(60), ..open_queue() };
        let b = Bench::still_with(t, config).await;
        let (first, second, third) = (session(&b).await, session(&b).await, session(&b).await);
        b.room.terminate(&b.queue, &first.id).await.unwrap();
        assert_eq!(fault(b.room.check_pass(&b.queue, &first.token).await), TokenError::Revoked);
        b.room.revoke_token(&b.queue, &second.id, "abuse_detected", seconds(600)).await.unwrap();
        assert_eq!(fault(b.room.check_pass(&b.queue, &second.token).await), TokenError::Revoked);
        let reason: String = b.redis(&["GET", &format!("revocation:{}", second.id)]).await;
        assert_eq!(reason, "abuse_detected");
        assert!(b.room.check_pass(&b.queue, &third.token).await.is_ok());
        b.room.reset_queue(&b.queue).await.unwrap();
        assert_eq!(fault(b.room.check_pass(&b.queue, &third.token).await), TokenError::Revoked);
        b.clock.advance(seconds(61));
        assert_eq!(fault(b.room.check_pass(&b.queue, &third.token).await), TokenError::Expired);
    }

    async fn forged_passes_are_refused(t: TestStore) {
        let b = Bench::still(t).await;
        let (pair, kid) = known_key(&b).await;
        let session = session(&b).await;
        let (header, claims, signature) = parts(&session.token);
        assert_eq!(header["kid"], kid.as_str());
        assert!(b.room.check_pass(&b.queue, &sign(&pair, &header, &claims)).await.is_ok(), "the tests' signer works");
        let check = async |token: &str| fault(b.room.check_pass(&b.queue, token).await);
        let with = |base: &Value, name: &str, value: Value| {
            let mut changed = base.clone();
            changed[name] = value;
            changed
        };
        let raw = |header: &Value, claims: &Value, signature: &[u8]| {
            format!("{}.{}.{}", encode(header), encode(claims), URL_SAFE_NO_PAD.encode(signature))
        };
        // No algorithm, with and without a signature.
        for none in ["none", "None", "NONE", ""] {
            let header = with(&header, "alg", none.into());
            assert_eq!(check(&raw(&header, &claims, b"")).await, TokenError::Algorithm, "{none}");
            assert_eq!(check(&raw(&header, &claims, &signature)).await, TokenError::Algorithm);
        }
        // The public key used as a shared secret.
        let hs = with(&header, "alg", "HS256".into());
        let signed = format!("{}.{}", encode(&hs), encode(&claims));
        let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, pair.public_key().as_ref());
        let tag = ring::hmac::sign(&secret, signed.as_bytes());
        assert_eq!(check(&format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))).await, TokenError::Algorithm);
        // Another algorithm of ours under this key.
        assert_eq!(check(&sign(&pair, &with(&header, "alg", "RS256".into()), &claims)).await, TokenError::Algorithm);
        // Changed claims under the old signature; a stranger's key; an unknown key.
        assert_eq!(check(&raw(&header, &with(&claims, "pri", 3.into()), &signature)).await, TokenError::Forged);
        let stranger = Ed25519KeyPair::from_seed_unchecked(&[1; 32]).unwrap();
        assert_eq!(check(&sign(&stranger, &header, &claims)).await, TokenError::Forged);
        assert_eq!(check(&sign(&stranger, &with(&header, "kid", "deadbeef".into()), &claims)).await, TokenError::UnknownKey);
        // The key of position tokens is no key for passes.
        let fields: Vec<String> = b.redis(&["HKEYS", "room:signing"]).await;
        for id in fields.iter().filter(|id| **id != kid) {
            let fault = check(&sign(&stranger, &with(&header, "kid", id.as_str().into()), &claims)).await;
            assert!(matches!(fault, TokenError::Algorithm | TokenError::Forged), "{fault:?}");
        }
        // Signed by us, but saying what it must not.
        let signed = |claims: Value| sign(&pair, &header, &claims);
        assert_eq!(check(&signed(with(&claims, "exp", "never".into()))).await, TokenError::Malformed);
        assert_eq!(check(&signed(with(&claims, "exp", Value::Null))).await, TokenError::Malformed);
        assert_eq!(check(&signed(with(&claims, "exp", json!(1e300)))).await, TokenError::Malformed);
        assert_eq!(check(&signed(with(&claims, "exp", json!(b.clock.now().as_secs())))).await, TokenError::Expired);
        assert_eq!(check(&signed(with(&claims, "nbf", json!(b.clock.now().as_secs() + 60)))).await, TokenError::Early);
        assert_eq!(check(&signed(with(&claims, "aud", "other".into()))).await, TokenError::OtherQueue);
        assert_eq!(check(&signed(with(&claims, "iss", "other".into()))).await, TokenError::OtherQueue);
        assert_eq!(check(&signed(with(&claims, "typ", "invite".into()))).await, TokenError::Malformed);
        assert_eq!(check(&signed(with(&claims, "jti", "../x".into()))).await, TokenError::Malformed);
        let unknown = json!("019b76da-a800-41f4-8000-000000000000");
        assert_eq!(check(&signed(with(&claims, "jti", unknown))).await, TokenError::Over, "no such session");
        assert_eq!(check(&sign(&pair, &with(&header, "crit", json!(["b64"])), &claims)).await, TokenError::Malformed);
        let mut no_kid = header.clone();
        no_kid.as_object_mut().unwrap().remove("kid");
        assert_eq!(check(&sign(&pair, &no_kid, &claims)).await, TokenError::Malformed);
        for bad in ["", ".", "..", "a.b.c", "e30.e30.", &session.token[..session.token.len() - 2], &"x".repeat(5_000)] {
            let fault = check(bad).await;
            assert!(matches!(fault, TokenError::Malformed | TokenError::Forged | TokenError::Algorithm), "{bad}: {fault:?}");
        }
    }

    async fn rotation_logs_nobody_out_and_every_instance_follows(t: TestStore) {
        let b = Bench::still(t).await;
        let other = Room::open(b.test.another().await, Options::default()).await.unwrap();
        let position = b.enqueue().await;
        let token = b.room.position_token(&position).await.unwrap();
        let before = session(&b).await;
        b.clock.advance(seconds(1));
        b.room.rotate_keys().await.unwrap();
        let after = session(&b).await;
        let (old, new) = (parts(&before.token).0, parts(&after.token).0);
        assert_ne!(old["kid"], new["kid"]);
        for room in [&b.room, &other] {
            assert!(room.check_position_token(&b.queue, &token).await.is_ok());
            assert!(room.check_pass(&b.queue, &before.token).await.is_ok());
            assert!(room.check_pass(&b.queue, &after.token).await.is_ok(), "an unknown key is looked up");
        }
        let jwks = b.room.jwks().await.unwrap();
        assert_eq!(jwks["keys"].as_array().unwrap().len(), 2);
        assert_eq!(jwks["keys"][0]["kid"], new["kid"], "the one that signs comes first");
        assert!(jwks.to_string().find("\"d\"").is_none() && !jwks.to_string().contains("oct"));
        // A week later nothing the old key signed can be valid, and it is gone.
        b.clock.advance(seconds(8 * 86_400));
        b.room.rotate_keys().await.unwrap();
        let kids = b.room.jwks().await.unwrap().to_string();
        assert!(!kids.contains(old["kid"].as_str().unwrap()), "{kids}");
    }

    async fn a_pass_is_nowhere_in_the_store(t: TestStore) {
        let b = Bench::still(t).await;
        let session = session(&b).await;
        let stored: String = b.redis(&["HGET", &format!("session:{}", session.id), "token"]).await;
        let digest = ring::digest::digest(&ring::digest::SHA256, session.token.as_bytes());
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(stored, format!("sha256:{hex}"));
    }

    async fn a_user_id_comes_from_an_invite_or_from_an_operator(t: TestStore) {
        let b = Bench::still(t).await;
        let expires = b.clock.now() + seconds(60);
        let new = NewInvite { id: None, priority: VisitorPriority::VIP, uses: 2, expires, user_id: "user-123".into() };
        let (token, _) = b.room.issue_invite(&b.queue, new.clone()).await.unwrap();
        let invite = b.room.check_invite(&b.queue, &token).await.unwrap();
        assert_eq!(invite.user_id(), "user-123");
        let position = b.join_as(Proof::Invite(invite)).await;
        b.room.admit_by_hand(&b.queue, 1).await.unwrap();
        let SessionStart::Active { session, .. } = b.room.start_session(&b.queue, &position.id, &Visitor::default()).await.unwrap() else { panic!() };
        assert_eq!(session.user_id, "user-123");
        let changed = b.room.set_user(&b.queue, &session.id, "user-456").await.unwrap();
        assert_eq!(changed.user_id, "user-456");
        let stored: String = b.redis(&["HGET", &format!("session:{}", session.id), "user_id"]).await;
        assert_eq!(stored, "user-456");
        assert!(b.room.set_user(&b.queue, &session.id, "a\nb").await.is_err());
        let long = NewInvite { user_id: "x".repeat(201), ..new };
        assert!(b.room.issue_invite(&b.queue, long).await.is_err());
    }

    async fn an_operators_reason_is_kept_in_the_revocation_and_the_event(t: TestStore) {
        let b = Bench::still(t).await;
        let (one, two) = (session(&b).await, session(&b).await);
        b.room.terminate_for(&b.queue, &one.id, "abuse_detected").await.unwrap();
        let kept: String = b.redis(&["GET", &format!("revocation:{}", one.id)]).await;
        assert_eq!(kept, "abuse_detected");
        b.room.revoke_position_for(&b.queue, &two.position, "bot").await.unwrap();
        let kept: String = b.redis(&["GET", &format!("revocation:{}", two.id)]).await;
        assert_eq!(kept, "bot");
        let position = b.enqueue().await;
        b.room.revoke_position_for(&b.queue, &position.id, "bot").await.unwrap();
        assert_eq!(b.state(&position.id).await, room::PositionState::Revoked);
        let events = b.room.events(&b.queue, room::EventId::START, 100).await.unwrap().events;
        let told: Vec<_> = events.iter().filter_map(|event| event.data.get("detail")?.as_str()).collect();
        assert_eq!(told, ["abuse_detected", "bot", "bot"]);
        for bad in ["a b", "\"", "ä", &"x".repeat(65)] {
            assert!(b.room.terminate_for(&b.queue, &one.id, bad).await.is_err(), "{bad}");
        }
    }

    async fn an_operators_rsa_key_signs_rs256(t: TestStore) {
        let b = Bench::still(t).await;
        let eddsa = session(&b).await;
        b.clock.advance(seconds(1));
        b.room.import_pass_key(RSA).await.unwrap();
        let rsa = session(&b).await;
        let (header, claims, signature) = parts(&rsa.token);
        assert_eq!(header["alg"], "RS256");
        assert!(b.room.check_pass(&b.queue, &rsa.token).await.is_ok());
        assert!(b.room.check_pass(&b.queue, &eddsa.token).await.is_ok());
        b.clock.advance(seconds(1));
        b.room.rotate_keys().await.unwrap();
        assert_eq!(b.room.pass_algorithm().await.unwrap(), room::Algorithm::Rs256, "rotation does not choose");
        let jwks = b.room.jwks().await.unwrap();
        let key = jwks["keys"].as_array().unwrap().iter().find(|key| key["kty"] == "RSA").unwrap();
        // A stranger verifies it with the published key alone.
        let part = |name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str().unwrap()).unwrap();
        let public = ring::signature::RsaPublicKeyComponents { n: part("n"), e: part("e") };
        let signed = rsa.token.rsplit_once('.').unwrap().0;
        public.verify(&ring::signature::RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &signature).unwrap();
        // The modulus as a shared secret is not a signature.
        let hs = json!({ "alg": "HS256", "kid": header["kid"], "typ": "JWT" });
        let signed = format!("{}.{}", encode(&hs), encode(&claims));
        let tag = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &part("n")), signed.as_bytes());
        let confused = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()));
        assert_eq!(fault(b.room.check_pass(&b.queue, &confused).await), TokenError::Algorithm);
        for bad in ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", "hello"] {
            assert!(matches!(b.room.import_pass_key(bad).await, Err(Error::Invalid { field: "key", .. })));
        }
    }

    async fn with_a_secret_the_store_alone_cannot_sign(t: TestStore) {
        let b = Bench::still(t).await;
        let _: i64 = b.redis(&["DEL", "room:signing"]).await;
        let options = |secret| Options { secret, ..Options::default() };
        let sealed = Room::open(b.store.clone(), options(Some([7; 32]))).await.unwrap();
        let position = sealed.enqueue(&b.queue, NewPosition::default()).await.unwrap().position;
        let token = sealed.position_token(&position).await.unwrap();
        let again = Room::open(b.store.clone(), options(Some([7; 32]))).await.unwrap();
        assert!(again.check_position_token(&b.queue, &token).await.is_ok());
        for other in [Some([8; 32]), None] {
            assert!(matches!(Room::open(b.store.clone(), options(other)).await, Err(Error::Sealed)));
        }
        let records: Vec<String> = b.redis(&["HVALS", "room:signing"]).await;
        assert!(records.iter().all(|record| !record.contains("plain.")), "{records:?}");
        assert!(!format!("{:?}", options(Some([7; 32]))).contains('7'));
    }

    async fn what_was_signed_before_there_was_a_secret_stays_valid(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.room.enqueue(&b.queue, NewPosition::default()).await.unwrap().position;
        let old = b.room.position_token(&position).await.unwrap();
        let options = Options { secret: Some([7; 32]), ..Options::default() };
        let sealed = Room::open(b.store.clone(), options).await.unwrap();
        assert!(sealed.check_position_token(&b.queue, &old).await.is_ok());
        // What is signed from now on is signed by a key that the store alone does not give away.
        let new = sealed.position_token(&position).await.unwrap();
        let _: i64 = b.redis(&["DEL", "room:signing"]).await;
        let plain = Room::open(b.store.clone(), Options::default()).await.unwrap();
        assert_eq!(fault(plain.check_position_token(&b.queue, &new).await), TokenError::UnknownKey);
        assert_ne!(old.split('.').nth(1).map(|p| &p[..5]), new.split('.').nth(1).map(|p| &p[..5]));
    }

    async fn an_invite_gives_its_level_as_often_as_it_says(t: TestStore) {
        let b = Bench::still(t).await;
        b.enqueue().await;
        let expires = b.clock.now() + seconds(600);
        let new = NewInvite { id: None, priority: VisitorPriority::PREMIUM, uses: 2, expires, user_id: "user-123".into() };
        let (token, invite) = b.room.issue_invite(&b.queue, new.clone()).await.unwrap();
        assert_eq!(b.room.check_invite(&b.queue, &token).await.unwrap(), invite);
        let enqueue = async || {
            let invite = b.room.check_invite(&b.queue, &token).await.unwrap();
            b.room.enqueue(&b.queue, NewPosition { proof: Proof::Invite(invite), ..NewPosition::default() }).await
        };
        let first = enqueue().await.unwrap().position;
        assert_eq!((first.priority, first.number), (VisitorPriority::PREMIUM, Some(1)));
        assert_eq!(enqueue().await.unwrap().position.number, Some(2));
        assert!(matches!(enqueue().await, Err(Error::InviteUsed)));
        assert_eq!(b.room.queue(&b.queue).await.unwrap().waiting, 3);

        let other = QueueId::parse("other").unwrap();
        assert_eq!(fault(b.room.check_invite(&other, &token).await), TokenError::OtherQueue);
        let mut forged = token.clone().into_bytes();
        forged[12] ^= 1;
        assert!(b.room.check_invite(&b.queue, &String::from_utf8(forged).unwrap()).await.is_err());
        b.clock.advance(seconds(600));
        assert_eq!(fault(b.room.check_invite(&b.queue, &token).await), TokenError::Expired);
        for bad in [
            NewInvite { uses: 0, ..new.clone() },
            NewInvite { id: Some("a:b".into()), expires: b.clock.now() + seconds(60), ..new.clone() },
            new,
        ] {
            assert!(matches!(b.room.issue_invite(&b.queue, bad).await, Err(Error::Invalid { .. })));
        }
    }
}
