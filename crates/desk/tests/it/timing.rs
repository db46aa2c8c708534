//! Nobody learns by the time of an answer whether an account exists.

use std::time::{Duration, Instant};

use desk::{
    Prefix, UserId,
    users::{OpenOutcome, UserCheck, UserOptions, Users, VerifiedLogin},
};
use testkit::{TestArchive, each_store::on_embedded};

use crate::chat::{agent, open_on};

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Within a factor that a busy machine stays below. Without the work for unknown accounts it is a hundred.
#[track_caller]
fn assert_alike(known: Vec<Duration>, unknown: Vec<Duration>) {
    let (known, unknown) = (median(known), median(unknown));
    assert!(known < 4 * unknown && unknown < 4 * known, "known {known:?}, unknown {unknown:?}");
}

#[test]
fn a_login_of_an_unknown_agent_takes_as_long_as_one_with_a_wrong_password() {
    on_embedded(|t| async move {
        let archive = TestArchive::sqlite();
        let chat = open_on(&t.store, &archive, "i1").await;
        let anna = agent(&chat, "anna", 5).await;
        let invitation = chat.invite_again(&anna).await.unwrap();
        chat.accept_invitation(&invitation, "correct horse battery").await.unwrap();
        agent(&chat, "invited", 5).await;
        let (mut known, mut unknown, mut invited) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..7 {
            for (email, times) in [
                ("anna@example.org", &mut known),
                ("nobody@example.org", &mut unknown),
                ("invited@example.org", &mut invited),
            ] {
                let start = Instant::now();
                chat.log_in(email, "wrong password!", None).await.unwrap();
                times.push(start.elapsed());
            }
        }
        assert_alike(known.clone(), unknown);
        assert_alike(known, invited);
    });
}

#[test]
fn a_session_of_an_unknown_user_is_refused_as_fast_as_a_wrong_one_of_a_known() {
    on_embedded(|t| async move {
        let users = Users::new(&t.store, &Prefix::default(), UserOptions::default()).unwrap();
        let open = async |name: &str| {
            let login = VerifiedLogin { device_id: "d", ip_address: None, replaces: None };
            match users.open_session(&UserId::parse(name).unwrap(), login).await.unwrap() {
                OpenOutcome::Opened(token) => token.to_string(),
                other => panic!("{other:?}"),
            }
        };
        // The same token with another last digit, and one of a user who is gone.
        let mut wrong = open("known").await;
        let last = if wrong.pop() == Some('0') { '1' } else { '0' };
        wrong.push(last);
        let gone = open("unknown").await;
        users.erase(&UserId::parse("unknown").unwrap()).await.unwrap();
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            for (token, times) in [(&wrong, &mut known), (&gone, &mut unknown)] {
                let start = Instant::now();
                let check = users.check_token(token).await.unwrap();
                times.push(start.elapsed());
                assert!(matches!(check, UserCheck::Unknown), "{check:?}");
            }
        }
        assert_alike(known, unknown);
    });
}
