//! Calls in the process that share a write of the log: what they are told is written, and an error
//! reaches each of them.

use std::{
    future::{Future as _, poll_fn},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use redis::{Cmd, Value, cmd};
use tokio::task::JoinSet;

use super::{EIO, ENOSPC, Failure, Memory, open};
use crate::{Clock, Fsync, Options, embedded::Embedded};

pub(super) fn start(disk: &Memory, fsync: Fsync) -> Embedded {
    let options = Options { fsync, ..Options::default() };
    Embedded::start(Some(Arc::new(disk.clone())), &options, Clock::system()).unwrap()
}

pub(super) fn set(key: &str, value: &str) -> Cmd {
    cmd("SET").arg(key).arg(value).clone()
}

/// What a store finds that is opened after this one was killed.
pub(super) fn after_kill(disk: &Memory, key: &str) -> Option<String> {
    open(&disk.after_kill()).get(key)
}

#[tokio::test]
async fn calls_at_the_same_time_share_a_write() {
    let disk = Memory::default();
    let store = start(&disk, Fsync::Everysec);
    let before = disk.0.lock().operations;
    let mut tasks = JoinSet::new();
    for task in 0..50 {
        let store = store.clone();
        tasks.spawn(async move {
            for n in 0..40 {
                let reply = store.command(&set(&format!("{task}:{n}"), "x")).await;
                assert_eq!(reply, Ok(Value::Okay));
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let operations = disk.0.lock().operations - before;
    assert!(operations < 200, "2,000 calls took {operations} operations of the disk");
}

#[tokio::test]
async fn a_lone_caller_is_told_what_is_written() {
    let disk = Memory::default();
    let store = start(&disk, Fsync::No);
    for n in 0..40 {
        let value = n.to_string();
        assert_eq!(store.command(&set("k", &value)).await, Ok(Value::Okay));
        assert_eq!(after_kill(&disk, "k"), Some(value));
    }
}

#[tokio::test]
async fn relaxed_writes_survive_a_kill_and_leave_the_fsync_to_others_or_to_later() {
    let disk = Memory::default();
    let store = start(&disk, Fsync::Everysec);
    let relaxed = store.relaxed();
    // Compared with the last record, not with those on disk: the sync thread runs meanwhile.
    let asks_for_fsync = || {
        let state = store.shared.lock();
        state.log.as_ref().is_some_and(|log| log.strict == log.lsn)
    };
    let synced = async || {
        let lsn = store.shared.lock().log.as_ref().unwrap().lsn;
        store.shared.durable.subscribe().wait_for(|now| now.synced >= lsn).await.unwrap();
    };
    relaxed.command(&set("soft", "1")).await.unwrap();
    let (mut pipe, mut transaction) = (redis::pipe(), redis::pipe());
    pipe.add_command(set("soft", "2"));
    relaxed.pipeline(&pipe, 0, 1).await.unwrap();
    transaction.atomic().add_command(set("soft", "3"));
    relaxed.pipeline(&transaction, 0, 1).await.unwrap();
    assert!(!asks_for_fsync());
    assert_eq!(after_kill(&disk, "soft").as_deref(), Some("3"));
    // One that does brings those before it to disk.
    store.command(&set("hard", "1")).await.unwrap();
    assert!(asks_for_fsync());
    synced().await;
    // And without one they get there in a while.
    relaxed.command(&set("soft", "4")).await.unwrap();
    assert!(!asks_for_fsync());
    synced().await;
    assert_eq!(after_kill(&disk, "soft").as_deref(), Some("4"));
}

#[tokio::test]
async fn a_relaxed_write_that_finds_the_lock_taken_is_as_relaxed() {
    let disk = Memory::default();
    let store = start(&disk, Fsync::Everysec);
    for (client, is_strict) in [(store.relaxed(), false), (store.clone(), true)] {
        let before = store.shared.lock().log.as_ref().unwrap().strict;
        let command = set("k", "1");
        let mut queued = Box::pin(client.command(&command));
        let batch = store.batch();
        assert!(queued.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // Whoever has the lock runs it.
        drop(batch.commit());
        queued.await.unwrap();
        let after = store.shared.lock().log.as_ref().unwrap().strict;
        assert_eq!(after > before, is_strict);
    }
}

#[tokio::test]
async fn with_always_relaxed_writes_are_on_disk_before_the_reply() {
    let disk = Memory::default();
    let store = start(&disk, Fsync::Always).relaxed();
    store.command(&set("k", "1")).await.unwrap();
    let after = open(&disk.after_power_cut(&mut fastrand::Rng::with_seed(1)));
    assert_eq!(after.get("k").as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn whatever_a_caller_has_seen_is_written() {
    for fsync in [Fsync::Always, Fsync::Everysec] {
        let disk = Memory::default();
        let store = start(&disk, fsync);
        let mut tasks = JoinSet::new();
        for task in 0..16_usize {
            let (store, disk) = (store.clone(), disk.clone());
            tasks.spawn(async move {
                for n in 0..12_usize {
                    let incr = store.command(cmd("INCR").arg("n")).await.unwrap();
                    let get = store.command(cmd("GET").arg("n")).await.unwrap();
                    if (n + task) % 4 == 0 {
                        let Value::BulkString(seen) = get else { panic!("{incr:?} {get:?}") };
                        let seen: u64 = String::from_utf8(seen).unwrap().parse().unwrap();
                        let kept: u64 = after_kill(&disk, "n").unwrap().parse().unwrap();
                        assert!(kept >= seen, "saw {seen}, a kill would have left {kept}");
                    }
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        assert_eq!(after_kill(&disk, "n"), Some((16 * 12).to_string()));
    }
}

#[tokio::test]
async fn an_error_reaches_each_call_that_shared_the_write() {
    for code in [EIO, ENOSPC] {
        let disk = Memory::default();
        let store = start(&disk, Fsync::Everysec);
        assert_eq!(store.command(&set("before", "1")).await, Ok(Value::Okay));
        // Room for the log is made with the first command, so the next operation is the write.
        disk.fail(Failure::From(code));
        let mut tasks = JoinSet::new();
        for task in 0..20 {
            let store = store.clone();
            tasks.spawn(async move { store.command(&set(&format!("k{task}"), "x")).await });
        }
        let reader = store.clone();
        let read = tokio::spawn(async move { reader.command(cmd("GET").arg("before")).await });
        while let Some(reply) = tasks.join_next().await {
            let error = reply.unwrap().unwrap().extract_error().unwrap_err();
            assert_eq!(error.code(), Some("MISCONF"), "{error}");
        }
        assert_eq!(read.await.unwrap(), Ok(Value::BulkString(b"1".to_vec())), "reads go on");
        disk.mend();
        let mended = async {
            while store.command(&set("after", "1")).await.unwrap() != Value::Okay {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), mended).await.unwrap();
        assert_eq!(after_kill(&disk, "before").as_deref(), Some("1"));
        assert_eq!(after_kill(&disk, "after").as_deref(), Some("1"));
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_half_way_leaves_nothing_unwritten() {
    let disk = Memory::default();
    let store = start(&disk, Fsync::No);
    let command = set("k", "v");
    let mut call = Box::pin(store.command(&command));
    let waits = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await;
    assert!(waits, "the first call waits for group_commit");
    drop(call);
    assert_eq!(after_kill(&disk, "k").as_deref(), Some("v"));
}
