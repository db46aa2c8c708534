//! The gate of a protected site.

use room::{
    ActivePass, AdmissionRate, Arrival, Error, NewPosition, QueueConfig, QueueId, SessionEnd,
    TokenError, Visitor, VisitorSession,
};
use testkit::each_store;

use crate::support::{Bench, open_queue, seconds};

/// A queue that lets everybody in at once.
fn wide() -> QueueConfig {
    QueueConfig {
        admission: AdmissionRate::new(1_000, 1),
        session_timeout: seconds(100),
        session_max: seconds(1_000),
        ..open_queue()
    }
}

/// A visitor comes and is in.
async fn visitor(b: &Bench) -> (VisitorSession, String) {
    match b.room.arrive(&b.queue, NewPosition::default(), &Visitor::default()).await.unwrap() {
        Arrival::Started { session, pass } => (*session, pass),
        other => panic!("{other:?}"),
    }
}

async fn gate(b: &Bench, pass: &str) -> Result<ActivePass, TokenError> {
    match b.room.verify_pass(&b.queue, pass).await {
        Ok(inside) => Ok(inside),
        Err(Error::Token(fault)) => Err(fault),
        Err(error) => panic!("{error:?}"),
    }
}

each_store! {
    async fn a_known_pass_needs_no_store_and_an_end_elsewhere_is_seen_in_time(t: TestStore) {
        let b = Bench::new(t, wide()).await;
        let (session, pass) = visitor(&b).await;
        assert_eq!(gate(&b, &pass).await.unwrap().pass.session, session.id);
        // Another instance ends the session.
        let other = room::Room::open(b.store.clone(), room::Options::default()).await.unwrap();
        other.terminate(&b.queue, &session.id).await.unwrap();
        b.clock.advance(seconds(4));
        assert!(gate(&b, &pass).await.is_ok(), "not asked again yet");
        b.clock.advance(seconds(1));
        assert_eq!(gate(&b, &pass).await, Err(TokenError::Revoked));
        assert_eq!(gate(&b, &pass).await, Err(TokenError::Revoked), "and from then on");
    }

    async fn an_end_here_is_seen_at_once(t: TestStore) {
        let b = Bench::new(t, wide()).await;
        for end in [SessionEnd::Complete, SessionEnd::Revoke, SessionEnd::OriginRevoke, SessionEnd::Reset] {
            let (session, pass) = visitor(&b).await;
            assert!(gate(&b, &pass).await.is_ok());
            b.room.end_session(&b.queue, &session.id, end).await.unwrap();
            assert!(gate(&b, &pass).await.is_err(), "{end:?}");
        }
        let (session, pass) = visitor(&b).await;
        assert!(gate(&b, &pass).await.is_ok());
        b.room.revoke_token(&b.queue, &session.id, "test", seconds(60)).await.unwrap();
        assert_eq!(gate(&b, &pass).await, Err(TokenError::Revoked));
        let (_, pass) = visitor(&b).await;
        assert!(gate(&b, &pass).await.is_ok());
        b.room.reset_queue(&b.queue).await.unwrap();
        assert!(gate(&b, &pass).await.is_err());
    }

    async fn requests_are_counted_and_keep_the_session(t: TestStore) {
        let b = Bench::new(t, wide()).await;
        let (session, pass) = visitor(&b).await;
        for _ in 0..10 {
            gate(&b, &pass).await.unwrap();
        }
        b.pass(seconds(60)).await;
        gate(&b, &pass).await.unwrap();
        let seen = b.room.session(&b.queue, &session.id).await.unwrap();
        assert_eq!(seen.page_views, 11);
        assert_eq!(seen.expires, b.clock.now() + seconds(100));
        // Silence ends it.
        b.pass(seconds(101)).await;
        assert_eq!(gate(&b, &pass).await, Err(TokenError::Over));
    }

    async fn a_pass_is_renewed_at_half_time_and_the_old_one_serves_as_long_as_the_session(t: TestStore) {
        let b = Bench::new(t, wide()).await;
        let (session, first) = visitor(&b).await;
        let pass = gate(&b, &first).await.unwrap().renewed.expect("the pass came back");
        b.pass(seconds(40)).await;
        assert_eq!(gate(&b, &pass).await.unwrap().renewed, None);
        b.pass(seconds(20)).await;
        let inside = gate(&b, &pass).await.unwrap();
        assert_eq!(inside.until, b.clock.now() + seconds(100));
        let new = inside.renewed.unwrap();
        assert_eq!(gate(&b, &new).await.unwrap().pass.session, session.id);
        assert_eq!(gate(&b, &pass).await.unwrap().renewed, None, "once for each look");
        b.pass(seconds(60)).await;
        assert!(b.room.read_pass(&b.queue, &pass).await.is_err(), "its own time is over");
        assert!(gate(&b, &pass).await.is_ok(), "but the session runs");
        // The hard limit is one.
        for _ in 0..20 {
            b.pass(seconds(50)).await;
            let _ = gate(&b, &pass).await;
        }
        assert!(gate(&b, &pass).await.is_err());
    }

    async fn a_pass_is_for_its_queue_also_once_it_is_known(t: TestStore) {
        let b = Bench::new(t, wide()).await;
        let other = QueueId::parse("other").unwrap();
        b.room.create_queue(&other, wide()).await.unwrap();
        let (_, pass) = visitor(&b).await;
        assert!(gate(&b, &pass).await.is_ok());
        assert!(matches!(b.room.verify_pass(&other, &pass).await, Err(Error::Token(TokenError::OtherQueue))));
        assert!(gate(&b, &pass).await.is_ok());
        let mut forged = pass.clone().into_bytes();
        let last = forged.len() - 10;
        forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
        assert_eq!(gate(&b, &String::from_utf8(forged).unwrap()).await, Err(TokenError::Forged));
        assert_eq!(gate(&b, "eyJ").await, Err(TokenError::Malformed));
    }

    async fn a_session_is_short_until_its_pass_comes_back(t: TestStore) {
        let b = Bench::new(t, QueueConfig { provisional_timeout: seconds(30), ..wide() }).await;
        let ((lost, _), (kept, pass)) = (visitor(&b).await, visitor(&b).await);
        assert_eq!(lost.expires, b.clock.now() + seconds(30));
        b.pass(seconds(20)).await;
        // Activity without the pass does not make it longer than that again.
        let lasts = b.room.activity(&b.queue, &lost.id, 1).await.unwrap().expires;
        assert_eq!(lasts, b.clock.now() + seconds(30));
        let inside = gate(&b, &pass).await.unwrap();
        assert_eq!(inside.until, b.clock.now() + seconds(100));
        assert!(inside.renewed.is_some(), "a pass for all of it");
        b.pass(seconds(31)).await;
        assert_eq!(b.room.queue(&b.queue).await.unwrap().active, 1);
        let kept = b.room.session(&b.queue, &kept.id).await.unwrap();
        assert_eq!(kept.status, room::SessionStatus::Active);
    }

    async fn a_revocation_elsewhere_is_seen_with_the_next_round(t: TestStore) {
        let b = Bench::new(t, wide()).await;
        let other = room::Room::open(b.store.clone(), room::Options::default()).await.unwrap();
        b.tick().await;
        let mut visitors = Vec::new();
        for _ in 0..70 {
            let (session, pass) = visitor(&b).await;
            gate(&b, &pass).await.unwrap();
            visitors.push((session.id, pass));
        }
        // One by one, many between two rounds, and all at once.
        other.end_session(&b.queue, &visitors[0].0, SessionEnd::Revoke).await.unwrap();
        assert!(gate(&b, &visitors[0].1).await.is_ok(), "cached");
        b.tick().await;
        assert_eq!(gate(&b, &visitors[0].1).await, Err(TokenError::Revoked));
        assert!(gate(&b, &visitors[1].1).await.is_ok());
        for (id, _) in &visitors[2..69] {
            other.end_session(&b.queue, id, SessionEnd::Revoke).await.unwrap();
        }
        b.tick().await;
        for (_, pass) in &visitors[2..69] {
            assert_eq!(gate(&b, pass).await, Err(TokenError::Revoked));
        }
        assert!(gate(&b, &visitors[69].1).await.is_ok());
        other.reset_queue(&b.queue).await.unwrap();
        b.tick().await;
        assert!(gate(&b, &visitors[69].1).await.is_err());
    }

    async fn a_session_is_in_doubt_as_soon_as_it_is_revoked_elsewhere(t: TestStore) {
        let b = Bench::new(t, wide()).await;
        let other = room::Room::open(b.store.clone(), room::Options::default()).await.unwrap();
        b.tick().await;
        let (session, _) = visitor(&b).await;
        let (bystander, _) = visitor(&b).await;
        let long = seconds(60);
        let mut doubted = std::pin::pin!(b.room.session_in_doubt(&session.id, long));
        let mut quiet = std::pin::pin!(b.room.session_in_doubt(&bystander.id, long));
        assert!(futures_util::poll!(doubted.as_mut()).is_pending());
        assert!(futures_util::poll!(quiet.as_mut()).is_pending());
        other.end_session(&b.queue, &session.id, SessionEnd::Revoke).await.unwrap();
        b.tick().await;
        tokio::time::timeout(seconds(20), doubted).await.expect("told");
        assert!(futures_util::poll!(quiet).is_pending());
    }

    async fn an_address_has_its_share_of_the_sessions(t: TestStore) {
        let b = Bench::new(t, QueueConfig { max_active: 100, ..wide() }).await;
        let come = async |last: u8| {
            let address = Some(std::net::IpAddr::from([203, 0, 113, last]));
            let visitor = Visitor { address, ..Visitor::default() };
            let new = NewPosition { address, ..NewPosition::default() };
            b.room.arrive(&b.queue, new, &visitor).await.unwrap()
        };
        let mut inside = Vec::new();
        for _ in 0..40 {
            if let Arrival::Started { session, .. } = come(1).await {
                inside.push(session.id);
            }
        }
        assert_eq!(inside.len(), 20, "a fifth of a small room");
        assert!(matches!(come(2).await, Arrival::Started { .. }), "there is room for others");
        b.room.complete(&b.queue, &inside[7]).await.unwrap();
        assert!(matches!(come(1).await, Arrival::Started { .. }), "one is over");
        assert_eq!(come(1).await, Arrival::MustWait);
        let queue = b.room.queue(&b.queue).await.unwrap();
        assert_eq!((queue.active, queue.admitted, queue.waiting), (21, 0, 0));
        b.room.change_queue(&b.queue, None, |c| c.max_active_per_address = Some(0)).await.unwrap();
        assert!(matches!(come(1).await, Arrival::Started { .. }), "no limit");
    }

    async fn who_comes_while_others_wait_takes_no_place_at_the_gate(t: TestStore) {
        let b = Bench::new(t, QueueConfig { max_active: 1, ..wide() }).await;
        let come = async || b.room.arrive(&b.queue, NewPosition::default(), &Visitor::default()).await.unwrap();
        assert!(matches!(come().await, Arrival::Started { .. }));
        b.clock.advance(seconds(2));
        assert_eq!(come().await, Arrival::MustWait);
        assert_eq!(b.room.queue(&b.queue).await.unwrap().waiting, 0);
        b.room.pause_queue(&b.queue).await.unwrap();
        assert_eq!(come().await, Arrival::MustWait);
        b.room.close_queue(&b.queue).await.unwrap();
        assert_eq!(come().await, Arrival::Closed);
    }
}
