//! The share one address has of a room: admitted positions and active sessions together.

use std::net::IpAddr;

use fastrand::Rng;
use room::{
    AdmissionRate, EndReason, NewPosition, PositionId, PositionState, PriorityPolicy, Proof,
    QueueConfig, SessionStart, Visitor, VisitorPriority,
};
use testkit::each_store;

use crate::support::{Bench, open_queue, seconds};

fn address(last: u8) -> Option<IpAddr> {
    Some(IpAddr::from([203, 0, 113, last]))
}

/// A room for a hundred, of which one address may have three.
fn shared() -> QueueConfig {
    QueueConfig {
        max_active: 100,
        max_active_per_address: Some(3),
        admission: AdmissionRate::new(1_000, 1),
        session_timeout: seconds(100),
        session_max: seconds(1_000),
        ..open_queue()
    }
}

async fn enqueue(b: &Bench, last: u8) -> PositionId {
    let new = NewPosition { address: address(last), ..NewPosition::default() };
    b.room.enqueue(&b.queue, new).await.unwrap().position.id
}

async fn start(b: &Bench, id: &PositionId, last: u8) -> SessionStart {
    let visitor = Visitor { address: address(last), ..Visitor::default() };
    b.room.start_session(&b.queue, id, &visitor).await.unwrap()
}

async fn count(b: &Bench, ids: &[PositionId], state: PositionState) -> usize {
    let mut found = 0;
    for id in ids {
        found += usize::from(b.state(id).await == state);
    }
    found
}

each_store! {
    async fn admitted_positions_count_in_the_share_of_their_address(t: TestStore) {
        let b = Bench::new(t, shared()).await;
        let mut ours = Vec::new();
        for _ in 0..8 {
            ours.push(enqueue(&b, 1).await);
        }
        b.tick().await;
        assert_eq!(count(&b, &ours, PositionState::Admitted).await, 3);
        assert_eq!(count(&b, &ours, PositionState::Waiting).await, 5);
        // Those who have to wait keep nobody else waiting.
        let other = enqueue(&b, 2).await;
        b.tick().await;
        assert_eq!(b.state(&other).await, PositionState::Admitted);
        // An admitted position becomes a session of the same share.
        let mut sessions = Vec::new();
        for id in &ours[..3] {
            match start(&b, id, 1).await {
                SessionStart::Active { session, .. } => sessions.push(session.id),
                other => panic!("{other:?}"),
            }
        }
        b.pass(seconds(5)).await;
        assert_eq!(count(&b, &ours, PositionState::Admitted).await, 0);
        // One ends: the next of the address is admitted, in the order of the line.
        b.room.complete(&b.queue, &sessions[1]).await.unwrap();
        b.pass(seconds(5)).await;
        assert_eq!(b.state(&ours[3]).await, PositionState::Admitted);
        assert_eq!(count(&b, &ours, PositionState::Admitted).await, 1);
        // It is not used: it comes back, is admitted once more, and ends. Each time one part is free.
        b.pass(seconds(600)).await;
        let last = b.status(&ours[3]).await;
        assert_eq!((last.state, last.reason), (PositionState::Expired, Some(EndReason::AdmissionTimeout)));
    }

    async fn a_line_full_of_one_address_does_not_keep_others_out(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { max_active: 100, max_active_per_address: Some(3), ..open_queue() }).await;
        for _ in 0..2_500 {
            enqueue(&b, 1).await;
        }
        let other = enqueue(&b, 2).await;
        b.room.change_queue(&b.queue, None, |c| c.admission = AdmissionRate::new(1_000, 1)).await.unwrap();
        for _ in 0..4 {
            b.clock.advance(seconds(1));
            b.tick().await;
        }
        assert_eq!(b.state(&other).await, PositionState::Admitted);
        let queue = b.room.queue(&b.queue).await.unwrap();
        assert_eq!((queue.admitted, queue.waiting), (4, 2_497));
    }

    async fn an_operator_admits_by_hand_whoever_is_next_and_it_counts(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { max_active: 100, max_active_per_address: Some(3), ..open_queue() }).await;
        let mut ours = Vec::new();
        for _ in 0..5 {
            ours.push(enqueue(&b, 1).await);
        }
        let other = enqueue(&b, 2).await;
        let admitted = b.room.admit_by_hand(&b.queue, 4).await.unwrap().ids;
        assert_eq!(admitted, ours[..4]);
        assert!(matches!(start(&b, &ours[3], 1).await, SessionStart::Active { .. }));
        b.room.change_queue(&b.queue, None, |c| c.admission = AdmissionRate::new(1_000, 1)).await.unwrap();
        b.clock.advance(seconds(1));
        b.tick().await;
        assert_eq!(b.state(&ours[4]).await, PositionState::Waiting);
        assert_eq!(b.state(&other).await, PositionState::Admitted);
        // Also where it was passed over before.
        assert_eq!(b.room.admit_by_hand(&b.queue, 4).await.unwrap().ids, [ours[4]]);
    }

    async fn with_a_reserved_share_those_passed_over_hold_up_neither_lane(t: TestStore) {
        let config = QueueConfig { policy: PriorityPolicy::Strict, reserved_share: 4, ..shared() };
        let rate = config.admission;
        let b = Bench::still_with(t, QueueConfig { admission: open_queue().admission, ..config }).await;
        let mut others = Vec::new();
        for (last, priority) in [(1, 0), (1, 2), (1, 2), (1, 0), (1, 2), (1, 0), (2, 2), (2, 0)] {
            let proof = Proof::Operator(VisitorPriority::parse(priority).unwrap());
            let new = NewPosition { address: address(last), proof, ..NewPosition::default() };
            let id = b.room.enqueue(&b.queue, new).await.unwrap().position.id;
            if last == 2 {
                others.push(id);
            }
        }
        b.room.change_queue(&b.queue, None, |c| c.admission = rate).await.unwrap();
        b.clock.advance(seconds(1));
        b.tick().await;
        assert_eq!(b.room.queue(&b.queue).await.unwrap().admitted, 5);
        assert_eq!(count(&b, &others, PositionState::Admitted).await, 2);
    }

    async fn no_order_of_events_gives_an_address_more_than_its_share(t: TestStore) {
        let b = Bench::new(t, QueueConfig { admission: AdmissionRate::new(5, 1), ..shared() }).await;
        let mut random = Rng::with_seed(0x5a5e);
        let mut known: Vec<(PositionId, u8)> = Vec::new();
        for step in 0..250 {
            let from = random.u8(1..=3);
            let any = (!known.is_empty()).then(|| known[random.usize(..known.len())]);
            match (random.u8(..10), any) {
                (0..=3, _) | (_, None) => known.push((enqueue(&b, from).await, from)),
                // Now and then from another address than before.
                (4..=5, Some((id, own))) => {
                    let from = if random.u8(..4) == 0 { from } else { own };
                    let visitor = Visitor { address: address(from), ..Visitor::default() };
                    if let Ok(SessionStart::Active { started: true, .. }) =
                        b.room.start_session(&b.queue, &id, &visitor).await
                    {
                        known.retain(|(other, _)| *other != id);
                        known.push((id, from));
                    }
                }
                (6, Some((id, _))) => {
                    if let Some(session) = b.status(&id).await.session {
                        let _ = b.room.complete(&b.queue, &session).await;
                    }
                }
                (7, Some((id, _))) => {
                    let _ = b.room.leave(&b.queue, &id).await;
                }
                (8, _) => b.pass(seconds(random.u64(1..20))).await,
                _ => b.pass(seconds(60)).await,
            }
            b.tick().await;
            let mut counts = [0; 4];
            for (id, from) in &known {
                if let Ok(position) = b.room.status(&b.queue, id).await {
                    let state = position.state;
                    counts[usize::from(*from)] +=
                        u32::from(matches!(state, PositionState::Admitted | PositionState::Active));
                }
            }
            assert!(counts.iter().all(|count| *count <= 3), "{counts:?} after step {step}");
        }
        assert!(known.len() > 50);
    }
}
