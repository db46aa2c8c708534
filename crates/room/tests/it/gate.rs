//! The gate of a protected site.

use room::{
    Arrival, End, Error, Fault, Inside, NewPlace, QueueConfig, QueueId, Rate, Session, Visitor,
};
use testkit::each_store;

use crate::support::{Bench, open_queue, seconds};

/// A queue that lets everybody in at once.
fn wide() -> QueueConfig {
    QueueConfig {
        admission: Rate::new(1_000, 1),
        session_timeout: seconds(100),
        session_max: seconds(1_000),
        ..open_queue()
    }
}

/// A visitor comes and is in.
async fn visitor(b: &Bench) -> (Session, String) {
    match b.room.arrive(&b.queue, NewPlace::default(), &Visitor::default()).await.unwrap() {
        Arrival::In { session, pass } => (*session, pass),
        other => panic!("{other:?}"),
    }
}

async fn gate(b: &Bench, pass: &str) -> Result<Inside, Fault> {
    match b.room.gate(&b.queue, pass).await {
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
        assert_eq!(gate(&b, &pass).await, Err(Fault::Revoked));
        assert_eq!(gate(&b, &pass).await, Err(Fault::Revoked), "and from then on");
    }

    async fn an_end_here_is_seen_at_once(t: TestStore) {
        let b = Bench::new(t, wide()).await;
        for end in [End::Complete, End::Revoke, End::OriginRevoke, End::Reset] {
            let (session, pass) = visitor(&b).await;
            assert!(gate(&b, &pass).await.is_ok());
            b.room.end_session(&b.queue, &session.id, end).await.unwrap();
            assert!(gate(&b, &pass).await.is_err(), "{end:?}");
        }
        let (session, pass) = visitor(&b).await;
        assert!(gate(&b, &pass).await.is_ok());
        b.room.revoke_token(&b.queue, &session.id, "test", seconds(60)).await.unwrap();
        assert_eq!(gate(&b, &pass).await, Err(Fault::Revoked));
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
        assert_eq!(gate(&b, &pass).await, Err(Fault::Over));
    }

    async fn a_pass_is_renewed_at_half_time_and_the_old_one_serves_as_long_as_the_session(t: TestStore) {
        let b = Bench::new(t, wide()).await;
        let (session, pass) = visitor(&b).await;
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
        assert!(matches!(b.room.gate(&other, &pass).await, Err(Error::Token(Fault::OtherQueue))));
        assert!(gate(&b, &pass).await.is_ok());
        let mut forged = pass.clone().into_bytes();
        let last = forged.len() - 10;
        forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
        assert_eq!(gate(&b, &String::from_utf8(forged).unwrap()).await, Err(Fault::Forged));
        assert_eq!(gate(&b, "eyJ").await, Err(Fault::Malformed));
    }

    async fn who_comes_while_others_wait_takes_no_place_at_the_gate(t: TestStore) {
        let b = Bench::new(t, QueueConfig { max_active: 1, ..wide() }).await;
        let come = async || b.room.arrive(&b.queue, NewPlace::default(), &Visitor::default()).await.unwrap();
        assert!(matches!(come().await, Arrival::In { .. }));
        b.clock.advance(seconds(2));
        assert_eq!(come().await, Arrival::Line);
        assert_eq!(b.room.queue(&b.queue).await.unwrap().waiting, 0);
        b.room.pause_queue(&b.queue).await.unwrap();
        assert_eq!(come().await, Arrival::Line);
        b.room.close_queue(&b.queue).await.unwrap();
        assert_eq!(come().await, Arrival::Closed);
    }
}
