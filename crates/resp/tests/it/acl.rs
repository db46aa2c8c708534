//! Users over real connections: who is refused what, and who is cut off.

use crate::support::{Client, Served, serve, until};

const NO_KEYS: &str =
    "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";

/// A connection that has logged in as this user, whom `rules` make.
fn user(served: &Served, name: &str, rules: &str) -> Client {
    let mut admin = served.client();
    admin.send(format!("ACL SETUSER {name} on >pw {rules}\r\n"));
    admin.expect("+OK\r\n");
    let mut client = served.client();
    client.send(format!("AUTH {name} pw\r\n"));
    client.expect("+OK\r\n");
    client
}

#[tokio::test]
async fn what_a_user_may_not_is_refused_in_the_middle_of_a_pipeline() {
    let served = serve(|_| {}).await;
    let mut client = user(&served, "anna", "~a* +get +set +multi +exec");
    client.send("SET a 1\r\nSET b 1\r\nGET a\r\nDEL a\r\nMULTI\r\nSET b 2\r\nEXEC\r\nGET a\r\n");
    client.expect("+OK\r\n");
    client.expect(NO_KEYS);
    client.expect("$1\r\n1\r\n");
    client.expect("-NOPERM this user has no permissions to run the 'del' command\r\n");
    client.expect("+OK\r\n");
    client.expect(NO_KEYS);
    client.expect("-EXECABORT Transaction discarded because of previous errors.\r\n$1\r\n1\r\n");
}

#[tokio::test]
async fn a_change_of_rules_counts_for_connections_that_are_there() {
    let served = serve(|_| {}).await;
    let mut client = user(&served, "anna", "~* +get");
    let mut admin = served.client();
    client.send("GET a\r\n");
    client.expect("$-1\r\n");
    admin.send("ACL SETUSER anna resetkeys ~b\r\n");
    admin.expect("+OK\r\n");
    client.send("GET a\r\nGET b\r\n");
    client.expect(NO_KEYS);
    client.expect("$-1\r\n");
    // Everything allowed again: nothing is checked any more, but the user stays who it is.
    admin.send("ACL SETUSER anna ~* &* +@all\r\n");
    admin.expect("+OK\r\n");
    client.send("DEL a\r\nACL WHOAMI\r\n");
    client.expect(":0\r\n$4\r\nanna\r\n");
}

#[tokio::test]
async fn connections_of_a_deleted_user_are_closed() {
    let served = serve(|_| {}).await;
    let mut waits = user(&served, "anna", "~* &* +@all");
    let mut idle = user(&served, "anna", "~* &* +@all");
    let mut other = user(&served, "berta", "~* &* +@all");
    waits.send("BLPOP l 0\r\n");
    while served.info("clients", "blocked_clients").await != "1" {
        tokio::task::yield_now().await;
    }
    let mut admin = served.client();
    admin.send("ACL DELUSER anna nobody\r\n");
    admin.expect(":1\r\n");
    assert_eq!(waits.rest(), "");
    assert_eq!(idle.rest(), "");
    other.send("PING\r\n");
    other.expect("+PONG\r\n");
    // Who deletes the own user is answered first, and nothing of it is run behind that.
    other.send("ACL DELUSER berta\r\nSET after 1\r\n");
    assert_eq!(other.rest(), ":1\r\n");
    admin.send("EXISTS after\r\nACL USERS\r\n");
    admin.expect(":0\r\n*1\r\n$7\r\ndefault\r\n");
}

#[tokio::test]
async fn who_may_not_listen_any_more_is_closed() {
    let served = serve(|_| {}).await;
    let mut listens = user(&served, "anna", "&news +@pubsub");
    listens.send("SUBSCRIBE news\r\n");
    listens.expect("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    let mut admin = served.client();
    admin.send("ACL SETUSER anna &more\r\nPUBLISH news a\r\n");
    admin.expect("+OK\r\n:1\r\n");
    listens.expect("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\na\r\n");
    admin.send("ACL SETUSER anna resetchannels\r\nPUBLISH news b\r\n");
    admin.expect("+OK\r\n:0\r\n");
    assert_eq!(listens.rest(), "");
}

#[tokio::test]
async fn a_restricted_default_user_does_not_bind_the_process_itself() {
    let served = serve(|_| {}).await;
    let mut admin = user(&served, "admin", "~* &* +@all");
    let mut store = served.store.clone();
    admin.send("ACL SETUSER default -@all resetkeys\r\n");
    admin.expect("+OK\r\n");
    let mut client = served.client();
    client.send("SET a 1\r\nHELLO 2 AUTH admin pw\r\nSET a 1\r\nRESET\r\nGET a\r\n");
    client.expect("-NOPERM this user has no permissions to run the 'set' command\r\n*14\r\n");
    client.until("modules\r\n*0\r\n");
    client.expect("+OK\r\n+RESET\r\n");
    client.expect("-NOPERM this user has no permissions to run the 'get' command\r\n");
    let set: String =
        store::redis::cmd("SET").arg("a").arg("2").query_async(&mut store).await.unwrap();
    assert_eq!(set, "OK");
    let me: Option<String> =
        store::redis::cmd("ACL").arg("WHOAMI").query_async(&mut store).await.unwrap();
    assert_eq!(me, None);
}

#[tokio::test]
async fn a_default_user_that_is_off_lets_nobody_in_without_a_name() {
    let served = serve(|_| {}).await;
    let mut admin = user(&served, "admin", "~* &* +@all");
    admin.send("ACL SETUSER default off\r\n");
    admin.expect("+OK\r\n");
    let mut client = served.client();
    client.send("PING\r\nAUTH default any\r\nAUTH admin pw\r\nPING\r\n");
    client.expect("-NOAUTH Authentication required.\r\n");
    client.expect("-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    client.expect("+OK\r\n+PONG\r\n");
}

#[tokio::test]
async fn a_user_can_log_in_while_a_script_runs_for_too_long() {
    let served = serve(|_| {}).await;
    let (mut runs, mut admin) = (served.client(), served.client());
    admin.send(
        "ACL SETUSER anna on >pw +ping +script|kill\r\nCONFIG SET busy-reply-threshold 1\r\n",
    );
    admin.expect("+OK\r\n+OK\r\n");
    runs.send("EVAL \"while true do end\" 0\r\n");
    let mut client = served.client();
    until("the script is seen to be busy", || {
        client.send("PING\r\n");
        client.until("\r\n").starts_with("-BUSY")
    });
    client.send("AUTH anna pw\r\nPING\r\nFUNCTION KILL\r\n");
    client.expect("+OK\r\n-BUSY");
    client.until("\r\n");
    client.expect("-NOPERM this user has no permissions to run the 'function|kill' command\r\n");
    client.send("SCRIPT KILL\r\n");
    client.expect("+OK\r\n");
    runs.until("\r\n");
}
