//! Claiming, sessions, and what becomes of those who do not come.

use std::collections::HashMap;

use room::{
    EndCounts, EndReason, Error, PositionId, PositionState, QueueConfig, SessionEnd, SessionStart,
    SessionStatus, Visitor, VisitorSession,
};
use testkit::each_store;

use crate::support::{Bench, open_queue, seconds};

async fn claim(b: &Bench, id: &PositionId) -> VisitorSession {
    match b.room.start_session(&b.queue, id, &Visitor::default()).await.unwrap() {
        SessionStart::Active { session, .. } => session,
        other => panic!("{other:?}"),
    }
}

async fn admit_one(b: &Bench) -> PositionId {
    let ids = b.room.admit_by_hand(&b.queue, 1).await.unwrap().ids;
    assert_eq!(ids.len(), 1);
    ids[0]
}

each_store! {
    async fn a_session_has_the_documented_fields_types_and_lifetimes(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        admit_one(&b).await;
        let visitor = Visitor { user_id: "user-123".into(), user_agent: "Mozilla/5.0".into(), ..Visitor::default() };
        let SessionStart::Active { session, .. } = b.room.start_session(&b.queue, &position.id, &visitor).await.unwrap() else { panic!() };
        let key = format!("session:{}", session.id);
        let hash: HashMap<String, String> = b.redis(&["HGETALL", &key]).await;
        let now = b.clock.now().as_secs();
        assert_eq!(hash["queue_id"], "concert-tickets");
        assert_eq!(hash["position_id"], position.id.to_string());
        assert_eq!(hash["user_id"], "user-123");
        assert_eq!(hash["user_agent"], "Mozilla/5.0");
        assert_eq!(hash["started_at"], now.to_string());
        assert_eq!(hash["expires_at"], (now + 1_800).to_string());
        assert_eq!(hash["last_activity"], now.to_string());
        assert_eq!(hash["page_views"], "0");
        assert_eq!(hash["status"], "active");
        assert!(hash.contains_key("token") && hash.contains_key("ip_address"));
        let ttl: i64 = b.redis(&["TTL", &key]).await;
        assert!((3_500..=3_600).contains(&ttl), "{ttl}");
        let members: Vec<String> = b.redis(&["SMEMBERS", "queue:concert-tickets:sessions:active"]).await;
        assert_eq!(members, [session.id.to_string()]);
        let status: String = b.redis(&["HGET", &format!("position:{}", position.id), "status"]).await;
        assert_eq!(status, "active");
    }

    async fn claiming_twice_finds_the_first_session(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        assert_eq!(b.room.start_session(&b.queue, &position.id, &Visitor::default()).await.unwrap(), SessionStart::Waiting);
        admit_one(&b).await;
        let first = claim(&b, &position.id).await;
        let claims = (0..5).map(|_| claim(&b, &position.id));
        for again in futures_util::future::join_all(claims).await {
            assert_eq!(again.id, first.id);
        }
        assert_eq!(b.room.queue(&b.queue).await.unwrap().active, 1);
        let never = PositionId::from_bytes([7; 16]);
        assert!(matches!(b.room.start_session(&b.queue, &never, &Visitor::default()).await, Err(Error::UnknownPosition)));
    }

    async fn all_sessions_end_at_once_and_the_line_stays(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { max_active: 0, ..open_queue() }).await;
        let mut sessions = Vec::new();
        for _ in 0..201 {
            let position = b.enqueue().await;
            admit_one(&b).await;
            sessions.push(claim(&b, &position.id).await);
        }
        b.enqueue().await;
        b.enqueue().await;
        admit_one(&b).await;
        assert_eq!(b.room.terminate_all(&b.queue).await.unwrap(), EndCounts { positions: 0, sessions: 201 });
        let last = b.room.session(&b.queue, &sessions[200].id).await.unwrap();
        assert_eq!((last.status, last.reason), (SessionStatus::Terminated, Some(EndReason::AdminRevoked)));
        let queue = b.room.queue(&b.queue).await.unwrap();
        assert_eq!((queue.waiting, queue.admitted, queue.active), (1, 1, 0));
        assert_eq!(b.room.terminate_all(&b.queue).await.unwrap(), EndCounts::default());
    }

    async fn a_no_show_gives_the_slot_back_returns_once_and_then_ends(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { max_active: 1, ..open_queue() }).await;
        let absent = b.enqueue().await;
        let next = b.enqueue().await;
        assert_eq!(admit_one(&b).await, absent.id);
        b.pass(seconds(119)).await;
        assert_eq!(b.state(&absent.id).await, PositionState::Admitted);
        b.pass(seconds(1)).await;
        let returned = b.status(&absent.id).await;
        assert_eq!((returned.state, returned.number), (PositionState::Waiting, Some(1)), "the head of its lane");
        assert_eq!(returned.session, None);
        let lane: Vec<String> = b.redis(&["LRANGE", "queue:concert-tickets:waiting:0", "0", "-1"]).await;
        assert_eq!(lane, [absent.id.to_string(), next.id.to_string()]);
        assert_eq!(b.room.queue(&b.queue).await.unwrap().admitted, 0, "the slot is free");
        assert_eq!(admit_one(&b).await, absent.id);
        b.pass(seconds(121)).await;
        let over = b.status(&absent.id).await;
        assert_eq!((over.state, over.reason), (PositionState::Expired, Some(EndReason::AdmissionTimeout)));
        assert_eq!(admit_one(&b).await, next.id);
    }

    async fn those_who_return_keep_their_order(t: TestStore) {
        let b = Bench::still(t).await;
        let mut ids = Vec::new();
        for _ in 0..6 {
            ids.push(b.enqueue().await.id);
            b.clock.advance(seconds(1));
        }
        for _ in 0..4 {
            admit_one(&b).await;
            b.pass(seconds(3)).await;
        }
        b.pass(seconds(140)).await;
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(b.position(id).await, Some(i as u64 + 1));
        }
        let lane: Vec<String> = b.redis(&["LRANGE", "queue:concert-tickets:waiting:0", "0", "-1"]).await;
        assert_eq!(lane, ids.iter().map(ToString::to_string).collect::<Vec<_>>());
    }

    async fn no_shows_do_not_hold_capacity_for_ever(t: TestStore) {
        let config = QueueConfig { max_active: 5, admission: room::AdmissionRate::new(100, 1), ..open_queue() };
        let b = Bench::new(t, config).await;
        for _ in 0..20 {
            b.enqueue().await;
        }
        b.pass(seconds(2 * 4 * 125 + 200)).await;
        let queue = b.room.queue(&b.queue).await.unwrap();
        assert_eq!((queue.waiting, queue.admitted, queue.active), (0, 0, 0));
    }

    async fn a_session_ends_when_idle_and_activity_renews_it_up_to_the_hard_limit(t: TestStore) {
        let config = QueueConfig { session_timeout: seconds(60), session_max: seconds(150), ..open_queue() };
        let b = Bench::still_with(t, config).await;
        let (idle, busy) = (b.enqueue().await, b.enqueue().await);
        b.room.admit_by_hand(&b.queue, 2).await.unwrap();
        let (idle, busy) = (claim(&b, &idle.id).await, claim(&b, &busy.id).await);
        b.pass(seconds(40)).await;
        let touched = b.room.activity(&b.queue, &busy.id, 1).await.unwrap();
        assert_eq!(touched.expires, b.clock.now() + seconds(60));
        assert_eq!(touched.page_views, 1);
        b.pass(seconds(20)).await;
        let over = b.room.session(&b.queue, &idle.id).await.unwrap();
        assert_eq!((over.status, over.reason), (SessionStatus::Expired, Some(EndReason::SessionIdle)));
        assert_eq!(b.state(&idle.position).await, PositionState::Expired);
        b.pass(seconds(35)).await;
        b.room.activity(&b.queue, &busy.id, 1).await.unwrap();
        b.pass(seconds(50)).await;
        let touched = b.room.activity(&b.queue, &busy.id, 1).await.unwrap();
        assert_eq!(touched.expires, touched.hard_until);
        b.pass(seconds(5)).await;
        let over = b.room.session(&b.queue, &busy.id).await.unwrap();
        assert_eq!((over.status, over.reason), (SessionStatus::Expired, Some(EndReason::SessionCap)));
        assert_eq!(b.room.queue(&b.queue).await.unwrap().active, 0, "no leak");
        let again = b.room.activity(&b.queue, &busy.id, 1).await.unwrap();
        assert_eq!(again.status, SessionStatus::Expired, "stays ended");
    }

    async fn without_renewal_a_session_has_a_fixed_length(t: TestStore) {
        let config = QueueConfig { session_timeout: seconds(60), session_renewal: false, ..open_queue() };
        let b = Bench::still_with(t, config).await;
        let position = b.enqueue().await;
        admit_one(&b).await;
        let session = claim(&b, &position.id).await;
        b.pass(seconds(50)).await;
        assert_eq!(b.room.activity(&b.queue, &session.id, 1).await.unwrap().expires, session.expires);
        b.pass(seconds(10)).await;
        assert_eq!(b.room.session(&b.queue, &session.id).await.unwrap().status, SessionStatus::Expired);
    }

    async fn a_session_whose_record_is_gone_does_not_leak_its_slot(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { session_timeout: seconds(60), ..open_queue() }).await;
        let position = b.enqueue().await;
        admit_one(&b).await;
        let session = claim(&b, &position.id).await;
        let _: i64 = b.redis(&["DEL", &format!("session:{}", session.id)]).await;
        b.pass(seconds(65)).await;
        assert_eq!(b.room.queue(&b.queue).await.unwrap().active, 0);
        let exists: i64 = b.redis(&["EXISTS", &format!("session:{}", session.id)]).await;
        assert_eq!(exists, 0);
    }

    async fn completing_terminating_and_revoking_follow_the_documented_table(t: TestStore) {
        let b = Bench::still(t).await;
        let mut sessions = Vec::new();
        for _ in 0..3 {
            let position = b.enqueue().await;
            admit_one(&b).await;
            sessions.push(claim(&b, &position.id).await);
        }
        let done = b.room.complete(&b.queue, &sessions[0].id).await.unwrap();
        assert_eq!((done.status, done.reason), (SessionStatus::Terminated, Some(EndReason::Completed)));
        assert_eq!(b.state(&sessions[0].position).await, PositionState::Completed);
        let again = b.room.terminate(&b.queue, &sessions[0].id).await.unwrap();
        assert_eq!(again.reason, Some(EndReason::Completed), "a session ends once");

        let ended = b.room.terminate(&b.queue, &sessions[1].id).await.unwrap();
        assert_eq!(ended.status, SessionStatus::Terminated);
        assert_eq!(b.state(&sessions[1].position).await, PositionState::Revoked);
        let word: String = b.redis(&["HGET", &format!("position:{}", sessions[1].position), "status"]).await;
        assert_eq!(word, "expired", "ACTIVE, terminate -> EXPIRED");
        let key = format!("revocation:{}", sessions[1].id);
        let reason: String = b.redis(&["GET", &key]).await;
        assert_eq!(reason, "admin_revoked");
        let ttl: i64 = b.redis(&["TTL", &key]).await;
        assert!(ttl > 14_000, "until the last instant any copy of the token could be valid: {ttl}");

        b.room.end_session(&b.queue, &sessions[2].id, SessionEnd::OriginRevoke).await.unwrap();
        assert_eq!(b.status(&sessions[2].position).await.reason, Some(EndReason::OriginRevoked));
        assert_eq!(b.room.queue(&b.queue).await.unwrap().active, 0);
    }

    async fn leaving_while_active_completes_the_session(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        admit_one(&b).await;
        let session = claim(&b, &position.id).await;
        b.room.leave(&b.queue, &position.id).await.unwrap();
        assert_eq!(b.state(&position.id).await, PositionState::Completed);
        assert_eq!(b.room.session(&b.queue, &session.id).await.unwrap().status, SessionStatus::Terminated);
    }

    async fn leaving_while_admitted_gives_the_slot_back(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { max_active: 1, ..open_queue() }).await;
        let position = b.enqueue().await;
        admit_one(&b).await;
        b.room.leave(&b.queue, &position.id).await.unwrap();
        assert_eq!(b.state(&position.id).await, PositionState::Cancelled);
        assert_eq!(b.room.queue(&b.queue).await.unwrap().admitted, 0);
    }

    async fn after_an_outage_sessions_have_a_whole_idle_time_again(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { session_timeout: seconds(60), ..open_queue() }).await;
        let position = b.enqueue().await;
        admit_one(&b).await;
        let session = claim(&b, &position.id).await;
        b.pass(seconds(10)).await;
        b.clock.advance(seconds(300));
        b.tick().await;
        b.pass(seconds(55)).await;
        assert_eq!(b.room.session(&b.queue, &session.id).await.unwrap().status, SessionStatus::Active);
        b.pass(seconds(10)).await;
        assert_eq!(b.room.session(&b.queue, &session.id).await.unwrap().status, SessionStatus::Expired);
    }

    async fn a_session_is_found_without_knowing_its_queue(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        admit_one(&b).await;
        let session = claim(&b, &position.id).await;
        assert_eq!(b.room.queue_of_session(&session.id).await.unwrap(), b.queue);
        let never = room::SessionId::from_bytes([7; 16]);
        assert!(matches!(b.room.queue_of_session(&never).await, Err(Error::UnknownSession)));
    }
}
