//! What a connection is told of keys that others change, and where that stands among its replies.

use crate::support::serve;

fn push(key: &str) -> String {
    format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n${}\r\n{key}\r\n", key.len())
}

#[tokio::test]
async fn a_change_is_told_to_who_has_read_the_key() {
    let served = serve(|_| {}).await;
    let (mut reader, mut writer) = (served.client(), served.client());
    reader.send("HELLO 3\r\nCLIENT TRACKING ON\r\n");
    let hello = reader.until("+OK\r\n");
    assert!(hello.starts_with("%7\r\n"), "{hello}");
    reader.send("GET k\r\n");
    reader.expect("_\r\n");
    writer.send("SET k 1\r\nSET k 2\r\nFLUSHALL\r\n");
    writer.expect("+OK\r\n+OK\r\n+OK\r\n");
    reader.expect(push("k"));
    reader.expect(">2\r\n$10\r\ninvalidate\r\n_\r\n");
}

#[tokio::test]
async fn ones_own_changes_are_told_behind_the_reply_of_each_command() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("HELLO 3\r\nCLIENT TRACKING ON\r\n");
    client.until("+OK\r\n");
    client.send("GET k\r\nSET k 1\r\nGET k\r\nMULTI\r\nINCR k\r\nGET k\r\nEXEC\r\nPING\r\n");
    client.expect(format!("_\r\n+OK\r\n{}$1\r\n1\r\n+OK\r\n", push("k")));
    client.expect("+QUEUED\r\n+QUEUED\r\n");
    client.expect(format!("*2\r\n:2\r\n$1\r\n2\r\n{}+PONG\r\n", push("k")));
}

#[tokio::test]
async fn a_resp2_connection_listens_for_another() {
    let served = serve(|_| {}).await;
    let (mut reader, mut listener) = (served.client(), served.client());
    listener.send("CLIENT ID\r\n");
    let id = listener.until("\r\n");
    let id = id.trim_start_matches(':').trim();
    listener.send("SUBSCRIBE __redis__:invalidate\r\n");
    listener.expect("*3\r\n$9\r\nsubscribe\r\n$20\r\n__redis__:invalidate\r\n:1\r\n");
    reader.send(format!("CLIENT TRACKING ON REDIRECT {id}\r\nGET k\r\nSET k 1\r\n"));
    reader.expect("+OK\r\n$-1\r\n+OK\r\n");
    listener.expect("*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n$1\r\nk\r\n");
}

#[tokio::test]
async fn keys_that_nobody_asks_for_are_told_when_they_die() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("HELLO 3\r\nCLIENT TRACKING ON BCAST PREFIX p:\r\n");
    client.until("+OK\r\n");
    client.send("SET p:1 v PX 1\r\n");
    client.expect("+OK\r\n");
    client.expect(push("p:1"));
    client.expect(push("p:1"));
}

#[tokio::test]
async fn the_table_is_kept_below_its_bound() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("HELLO 3\r\nCLIENT TRACKING ON\r\nMGET a b c\r\n");
    client.until("*3\r\n_\r\n_\r\n_\r\n");
    client.send("CONFIG SET tracking-table-max-keys 1\r\n");
    // Two of the three go, whichever.
    client.expect("+OK\r\n");
    let first = client.until(&push("?").replace("?\r\n", ""));
    assert_eq!(first, push("?").replace("?\r\n", ""));
    client.until("\r\n");
    client.until(&push("?").replace("?\r\n", ""));
    client.until("\r\n");
    client.send("INFO stats\r\n");
    let info = client.until("unexpected_error_replies");
    assert!(info.contains("tracking_total_keys:1\r\n"), "{info}");
}
