//! A script that takes long: what others are told, and how they end it.

use std::{
    future::Future as _,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use store::{
    Fsync, Options, Store,
    redis::{self, AsyncCommands, Value},
};

use crate::support::{Client, Served, serve, serve_store};

const BUSY: &str =
    "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";
const UNKILLABLE: &str = "-UNKILLABLE Sorry the script already executed write commands against \
    the dataset. You can either wait the script termination or kill the server in a hard way \
    using the SHUTDOWN NOSAVE command.\r\n";

impl Client {
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            std::io::Read::read_exact(&mut self.stream, &mut byte).unwrap();
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    fn ask(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n"));
        self.line()
    }

    /// Until others are told that a script takes long.
    #[track_caller]
    fn until_busy(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let reply = self.ask("PING");
            if reply == BUSY {
                return;
            }
            assert_eq!(reply, "+PONG\r\n");
            assert!(Instant::now() < deadline, "no script keeps others waiting");
        }
    }
}

async fn impatient() -> Served {
    let served = serve(|_| {}).await;
    assert_eq!(served.client().ask("CONFIG SET lua-time-limit 20"), "+OK\r\n");
    served
}

fn eval(script: &str) -> String {
    let keys = "$1\r\n1\r\n$1\r\nk\r\n";
    format!("*4\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n{keys}", script.len())
}

#[tokio::test]
async fn others_are_told_busy_and_can_kill_the_script() {
    let served = impatient().await;
    let (mut runs, mut other) = (served.client(), served.client());
    runs.send(eval("while true do end"));
    runs.send("PING\r\n");
    other.until_busy();
    assert_eq!(other.ask("GET a"), BUSY);
    assert_eq!(other.ask("SHUTDOWN"), BUSY, "only without saving");
    assert_eq!(other.ask("FUNCTION KILL"), BUSY, "it is not a function");
    // One that comes only now, too.
    let mut late = served.client();
    assert_eq!(late.ask("GET a"), BUSY);
    assert_eq!(late.ask("SCRIPT KILL"), "+OK\r\n");
    let told = runs.line();
    assert!(told.contains("Script killed by user with SCRIPT KILL"), "{told}");
    runs.expect("+PONG\r\n");
    assert_eq!(late.ask("SET a 1"), "+OK\r\n");
    assert_eq!(other.ask("SCRIPT KILL"), "-NOTBUSY No scripts in execution right now.\r\n");
    // The late one is a session like any other.
    let mut store = served.store.clone();
    let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut store).await.unwrap();
    let port = late.stream.local_addr().unwrap().to_string();
    assert!(list.contains(&port), "{list}");
    late.send("SUBSCRIBE news\r\n");
    late.expect("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    assert_eq!(store.publish::<_, _, i64>("news", "x").await.unwrap(), 1);
    late.expect("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n");
}

#[tokio::test]
async fn a_script_that_has_written_cannot_be_killed_and_runs_to_its_end() {
    let served = impatient().await;
    let (mut runs, mut other) = (served.client(), served.client());
    runs.send(eval("redis.call('SET', KEYS[1], 1) for i = 1, 5e7 do end return 'done'"));
    other.until_busy();
    assert_eq!(other.ask("SCRIPT KILL"), UNKILLABLE);
    assert_eq!(other.ask("GET k"), BUSY);
    assert_eq!(runs.line(), "$4\r\n");
    runs.expect("done\r\n");
    assert_eq!(other.ask("DEL k"), ":1\r\n");
}

#[tokio::test]
async fn logging_in_and_transactions_go_on_meanwhile() {
    let served = impatient().await;
    let mut runs = served.client();
    assert_eq!(runs.ask("PING"), "+PONG\r\n");
    served.store.embedded().unwrap().set_password("secret");
    runs.send(eval("while true do end"));
    let mut late = served.client();
    // Unknown until it has shown the password, busy or not.
    assert!(late.ask("SCRIPT KILL").starts_with("-NOAUTH"));
    assert!(late.ask("AUTH wrong").starts_with("-WRONGPASS"));
    assert_eq!(late.ask("AUTH secret"), "+OK\r\n");
    late.until_busy();
    assert_eq!(late.ask("MULTI"), "+OK\r\n");
    assert_eq!(late.ask("SET a 1"), BUSY);
    assert_eq!(late.ask("DISCARD"), "+OK\r\n");
    assert_eq!(late.ask("MULTI"), "+OK\r\n");
    assert_eq!(late.ask("SET a 1"), BUSY);
    let mut third = served.client();
    assert_eq!(third.ask("AUTH secret"), "+OK\r\n");
    assert_eq!(third.ask("SCRIPT KILL"), "+OK\r\n");
    assert!(runs.line().contains("killed by user"));
    assert!(late.ask("EXEC").starts_with("-EXECABORT"));
    third.send("QUIT\r\n");
    third.expect("+OK\r\n");
    assert_eq!(third.rest(), "");
}

#[tokio::test]
async fn a_client_that_leaves_meanwhile_is_forgotten() {
    let served = impatient().await;
    let (mut runs, mut other) = (served.client(), served.client());
    let mut waits = served.client();
    waits.send("BLPOP list 0\r\n");
    crate::session::until_blocked(&served, 1).await;
    runs.send(eval("while true do end"));
    other.until_busy();
    drop(waits);
    for _ in 0..20 {
        let mut passing = served.client();
        assert_eq!(passing.ask("PING"), BUSY);
    }
    drop(runs);
    assert_eq!(other.ask("SCRIPT KILL"), "+OK\r\n");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "somebody is still there");
        other.send("INFO clients\r\n");
        let length: usize = other.line()[1..].trim().parse().unwrap();
        let mut text = vec![0; length + 2];
        std::io::Read::read_exact(&mut other.stream, &mut text).unwrap();
        if String::from_utf8(text).unwrap().contains("connected_clients:1\r\n") {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_of_the_process_itself_is_ended_from_outside() {
    let served = impatient().await;
    let mut store = served.store.clone();
    let script = tokio::spawn(async move {
        redis::cmd("EVAL").arg("while true do end").arg(0).query_async::<Value>(&mut store).await
    });
    let mut other = served.client();
    other.until_busy();
    assert_eq!(other.ask("SCRIPT KILL"), "+OK\r\n");
    let error = script.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("killed by user"), "{error}");
    assert_eq!(other.ask("PING"), "+PONG\r\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_itself_is_told_busy_and_can_end_a_clients_script() {
    let served = impatient().await;
    let mut runs = served.client();
    runs.send(eval("while true do end"));
    let mut store = served.store.clone();
    let error = loop {
        match store.get::<_, Option<String>>("a").await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Some("BUSY"), "{error}");
    assert!(store::Error::from(error).is_unavailable());
    let error = redis::pipe().atomic().get("a").query_async::<Value>(&mut store).await;
    assert_eq!(error.unwrap_err().code(), Some("BUSY"));
    let health = served.store.health();
    assert!(!health.reachable, "{health:?}");
    assert!(served.store.blocking().await.is_err_and(|error| error.is_unavailable()));
    assert!(served.store.subscribe(&["a"], &[]).await.is_err_and(|error| error.is_unavailable()));
    let _: () = redis::cmd("SCRIPT").arg("KILL").query_async(&mut store).await.unwrap();
    assert!(runs.line().contains("killed by user"));
    assert!(served.store.health().reachable);
    let missing: Option<String> = store.get("a").await.unwrap();
    assert_eq!(missing, None);
}

#[tokio::test]
async fn a_script_left_with_the_listener_keeps_no_client_waiting_and_can_be_killed() {
    let served = impatient().await;
    let embedded = served.store.embedded().unwrap().clone();
    let mut other = served.client();
    assert_eq!(other.ask("PING"), "+PONG\r\n");
    // A call of the process finds the lock taken and leaves its script.
    let batch = embedded.batch();
    let mut store = served.store.clone();
    let mut endless = redis::cmd("EVAL");
    endless.arg("while true do end").arg(0);
    let mut script = Box::pin(endless.query_async::<Value>(&mut store));
    let mut nobody = Context::from_waker(Waker::noop());
    assert!(script.as_mut().poll(&mut nobody).is_pending(), "the lock is taken");
    // The next to have the lock is the listener, before or after it has read this.
    other.send("PING\r\n");
    let (_, deferred) = batch.commit_deferred();
    let first = other.line();
    assert!([BUSY, "+PONG\r\n"].contains(&first.as_str()), "{first}");
    other.until_busy();
    assert_eq!(other.ask("SCRIPT KILL"), "+OK\r\n");
    let error = script.await.unwrap_err();
    assert!(error.to_string().contains("killed by user"), "{error}");
    assert_eq!(other.ask("PING"), "+PONG\r\n");
    drop(deferred);
}

/// Clients whose commands come before an endless script in the same turn are answered before it ends.
async fn check_earlier_replies(store: Store) {
    let served = serve_store(store, |_| {});
    assert_eq!(served.client().ask("CONFIG SET lua-time-limit 20"), "+OK\r\n");
    let embedded = served.store.embedded().unwrap().clone();
    let mut clients: Vec<Client> = (0..9).map(|_| served.client()).collect();
    for client in &mut clients {
        assert_eq!(client.ask("PING"), "+PONG\r\n");
    }
    let [first, reader, writer, logs_in, wrong, pushes, publishes, runs, listens] =
        clients.as_mut_slice()
    else {
        unreachable!("nine clients");
    };
    listens.send("SUBSCRIBE news\r\n");
    listens.expect("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    let mut waits = served.client();
    waits.send("BLPOP list 0\r\n");
    crate::session::until_blocked(&served, 1).await;
    served.store.embedded().unwrap().set_password("secret");
    // The listener waits for the lock with `first`; the others come in one turn after that.
    let batch = embedded.batch();
    first.send("PING\r\n");
    reader.send("GET a\r\n");
    writer.send("SET a 1\r\n");
    logs_in.send("AUTH secret\r\n");
    wrong.send("AUTH no\r\n");
    pushes.send("LPUSH list 1\r\n");
    publishes.send("PUBLISH news x\r\n");
    runs.send(eval("while true do end"));
    drop(batch);
    first.expect("+PONG\r\n");
    for (client, answers) in [
        (reader, &["$-1\r\n", BUSY][..]),
        (&mut *writer, &["+OK\r\n", BUSY]),
        (logs_in, &["+OK\r\n"]),
        (pushes, &[":1\r\n", BUSY]),
        (publishes, &[":1\r\n", BUSY]),
    ] {
        let reply = client.line();
        assert!(answers.contains(&reply.as_str()), "{reply}");
        client.until_busy();
    }
    waits.expect("*2\r\n$4\r\nlist\r\n$1\r\n1\r\n");
    listens.expect("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n");
    let reply = wrong.line();
    assert!(reply.starts_with("-WRONGPASS"), "{reply}");
    assert_eq!(first.ask("SCRIPT KILL"), "+OK\r\n");
    assert!(runs.line().contains("killed by user"));
    // Replies of later turns are in their places.
    assert_eq!(writer.ask("ECHO one"), "$3\r\n");
    writer.expect("one\r\n");
}

#[tokio::test]
async fn replies_of_a_turn_in_memory_do_not_wait_for_a_script_of_it() {
    check_earlier_replies(Store::open("embedded:").await.unwrap()).await;
}

#[tokio::test]
async fn replies_of_a_turn_on_disk_do_not_wait_for_a_script_of_it() {
    for fsync in [Fsync::Everysec, Fsync::Always] {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("embedded:{}", folder.path().display());
        let options = Options { fsync, ..Options::default() };
        let store = Store::open_with(&url, options).await.unwrap();
        check_earlier_replies(store).await;
    }
}
