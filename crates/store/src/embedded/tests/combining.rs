//! Commands that find the lock taken: the lock holder runs them, and each caller gets its reply.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use futures_util::future::join_all;
use redis::{Cmd, RedisResult, Value, cmd};
use tokio::task::coop::unconstrained;

use super::{
    EIO, Failure, Memory,
    group_commit::{after_kill, set, start},
};
use crate::{Fsync, embedded::Embedded};

type Call = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>;

/// Queues these commands while the lock is held, and runs `meanwhile` before it is released.
async fn leave(
    store: &Embedded,
    commands: Vec<Cmd>,
    meanwhile: impl FnOnce(&mut Vec<Call>),
) -> Vec<Call> {
    let call = |cmd: Cmd| {
        let store = store.clone();
        // More calls than a task may usually make at once.
        Box::pin(unconstrained(async move { store.command(&cmd).await })) as Call
    };
    let mut calls: Vec<Call> = commands.into_iter().map(call).collect();
    let mut meanwhile = Some(meanwhile);
    poll_fn(|cx| {
        let batch = store.batch();
        for call in &mut calls {
            assert!(call.as_mut().poll(cx).is_pending(), "the lock is taken");
        }
        if let Some(meanwhile) = meanwhile.take() {
            meanwhile(&mut calls);
        }
        drop(batch);
        Poll::Ready(())
    })
    .await;
    calls
}

#[tokio::test]
async fn what_was_left_is_run_when_the_lock_is_released() {
    for fsync in [Fsync::Always, Fsync::Everysec] {
        let disk = Memory::default();
        let store = start(&disk, fsync);
        let calls = leave(&store, vec![set("a", "1"), set("b", "2")], |_| ()).await;
        for call in calls {
            assert_eq!(call.await, Ok(Value::Okay));
        }
        assert_eq!(after_kill(&disk, "a").as_deref(), Some("1"));
        assert_eq!(after_kill(&disk, "b").as_deref(), Some("2"));
    }
}

#[tokio::test]
async fn it_is_run_in_the_order_in_which_it_was_left() {
    let store = start(&Memory::default(), Fsync::No);
    let incr = || cmd("INCR").arg("n").clone();
    let calls = leave(&store, vec![incr(), incr(), incr()], |_| ()).await;
    let told: Vec<_> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(told, [Value::Int(1), Value::Int(2), Value::Int(3)]);
}

#[tokio::test]
async fn nothing_is_done_for_a_caller_that_has_gone() {
    let store = start(&Memory::default(), Fsync::No);
    let calls = leave(&store, vec![set("a", "1"), set("b", "2")], |calls| {
        drop(calls.remove(0));
    });
    for call in calls.await {
        assert_eq!(call.await, Ok(Value::Okay));
    }
    let kept = store.command(cmd("MGET").arg("a").arg("b")).await.unwrap();
    assert_eq!(kept, Value::Array(vec![Value::Nil, Value::BulkString(b"2".to_vec())]));
}

#[tokio::test]
async fn an_error_of_the_disk_reaches_each_whose_records_are_not_written() {
    let disk = Memory::default();
    let store = start(&disk, Fsync::Everysec);
    assert_eq!(store.command(&set("before", "1")).await, Ok(Value::Okay));
    let get = cmd("GET").arg("before").clone();
    let commands = vec![get, set("a", "1"), set("b", "2")];
    let calls = leave(&store, commands, |_| disk.fail(Failure::From(EIO))).await;
    let mut told = join_all(calls).await.into_iter().map(Result::unwrap);
    assert_eq!(told.next(), Some(Value::BulkString(b"1".to_vec())), "reads go on");
    for reply in told {
        let error = reply.extract_error().unwrap_err();
        assert_eq!(error.code(), Some("MISCONF"), "{error}");
    }
}

#[tokio::test]
async fn more_than_a_caller_would_run_for_others_is_run_all_the_same() {
    let store = start(&Memory::default(), Fsync::No);
    let commands = (0..3_000).map(|_| cmd("INCR").arg("n").clone()).collect();
    let calls = leave(&store, commands, |_| ()).await;
    let told = tokio::time::timeout(Duration::from_secs(30), join_all(calls)).await.unwrap();
    assert_eq!(told.last(), Some(&Ok(Value::Int(3_000))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_script_that_keeps_everybody_waiting_is_told_of() {
    let store = start(&Memory::default(), Fsync::No);
    let threshold = cmd("CONFIG").arg("SET").arg("busy-reply-threshold").arg(1).clone();
    store.command(&threshold).await.unwrap();
    let endless = cmd("EVAL").arg("while true do end").arg(0).clone();
    let script = tokio::spawn({
        let store = store.clone();
        async move { store.command(&endless).await }
    });
    // Else the caller could be the one that runs it for the other.
    while !store.shared.control.is_running() {
        tokio::task::yield_now().await;
    }
    let code = |reply: RedisResult<Value>| {
        let told = reply.and_then(Value::extract_error);
        told.err().and_then(|error| error.code().map(str::to_owned))
    };
    while code(store.command(cmd("GET").arg("k")).await).as_deref() != Some("BUSY") {
        assert!(!script.is_finished(), "it ended by itself");
        tokio::task::yield_now().await;
    }
    assert_eq!(store.command(cmd("SCRIPT").arg("KILL")).await, Ok(Value::Okay));
    assert!(script.await.unwrap().and_then(Value::extract_error).is_err(), "it was stopped");
    assert_eq!(store.command(&set("k", "v")).await, Ok(Value::Okay));
}

#[tokio::test]
async fn a_health_check_runs_no_script_that_was_left_with_it() {
    let store = start(&Memory::default(), Fsync::No);
    let soon = cmd("CONFIG").arg("SET").arg("lua-time-limit").arg(20).clone();
    assert_eq!(store.command(&soon).await, Ok(Value::Okay));
    let held = store.shared.try_lock_briefly(Duration::from_secs(10)).unwrap();
    let own = store.clone();
    let endless = cmd("EVAL").arg("while true do end").arg(0).clone();
    let mut script: Call = Box::pin(async move { own.command(&endless).await });
    poll_fn(|cx| {
        assert!(script.as_mut().poll(cx).is_pending(), "the lock is taken");
        Poll::Ready(())
    })
    .await;
    // Ran it here, this would take until its time limit.
    drop(held);
    let busy = async {
        while store.status().1.as_deref() != Some("a script runs for long") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), busy).await.expect("the background runs it");
    let killed = store.command(cmd("SCRIPT").arg("KILL")).await;
    assert_eq!(killed, Ok(Value::Okay));
    let Ok(Value::ServerError(error)) = script.await else { panic!("no error") };
    assert!(error.to_string().contains("killed by user"), "{error}");
}
