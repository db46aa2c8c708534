//! MIGRATE, between two stores over a socket.

use crate::support::{Served, serve};

async fn two() -> (Served, Served) {
    (serve(|_| {}).await, serve(|_| {}).await)
}

fn to(other: &Served, rest: &str) -> String {
    format!("MIGRATE 127.0.0.1 {} {rest}\r\n", other.address.port())
}

#[tokio::test]
async fn keys_of_all_types_move_with_their_deadlines() {
    let (here, there) = two().await;
    let (mut a, mut b) = (here.client(), there.client());
    a.send("SET s v PX 5000000\r\nRPUSH l 1 2 3\r\nZADD z 1.5 m\r\nHSET h f v\r\nSADD e x\r\n");
    a.expect("+OK\r\n:3\r\n:1\r\n:1\r\n:1\r\n");
    a.send(to(&there, "\"\" 0 5000 KEYS s l z h e missing"));
    a.expect("+OK\r\n");
    a.send("DBSIZE\r\n");
    a.expect(":0\r\n");
    b.send("GET s\r\nLRANGE l 0 -1\r\nZSCORE z m\r\nHGET h f\r\nSISMEMBER e x\r\nDBSIZE\r\n");
    b.expect(
        "$1\r\nv\r\n*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$3\r\n1.5\r\n$1\r\nv\r\n:1\r\n:5\r\n",
    );
    b.send("PTTL s\r\n");
    let left: i64 = b.until("\r\n").trim_start_matches(':').trim().parse().unwrap();
    assert!((4_000_000..=5_000_000).contains(&left), "{left}");
}

#[tokio::test]
async fn what_is_there_is_replaced_only_on_request_and_a_copy_stays() {
    let (here, there) = two().await;
    let (mut a, mut b) = (here.client(), there.client());
    b.send("SET k other\r\n");
    b.expect("+OK\r\n");
    a.send("MSET k own free v\r\n");
    a.expect("+OK\r\n");
    // One of the two is refused; the other goes.
    a.send(to(&there, "\"\" 0 5000 KEYS k free"));
    a.expect(
        "-ERR Target instance replied with error: BUSYKEY Target key name already exists.\r\n",
    );
    a.send("EXISTS k free\r\n");
    a.expect(":1\r\n");
    a.send(to(&there, "k 0 5000 COPY REPLACE"));
    a.expect("+OK\r\n");
    a.send("GET k\r\n");
    a.expect("$3\r\nown\r\n");
    b.send("MGET k free\r\n");
    b.expect("*2\r\n$3\r\nown\r\n$1\r\nv\r\n");
    a.send(to(&there, "k 3 5000 REPLACE"));
    a.expect("+OK\r\n");
    b.send("SELECT 3\r\nGET k\r\n");
    b.expect("+OK\r\n$3\r\nown\r\n");
}

#[tokio::test]
async fn the_other_side_asks_for_its_password() {
    let (here, there) = two().await;
    there.store.embedded().unwrap().set_password("secret");
    let mut a = here.client();
    a.send("SET k v\r\n");
    a.expect("+OK\r\n");
    a.send(to(&there, "k 0 5000"));
    a.expect("-ERR Target instance replied with error: NOAUTH Authentication required.\r\n");
    a.send(to(&there, "k 0 5000 AUTH wrong"));
    a.expect("-ERR Target instance replied with error: WRONGPASS invalid username-password pair ");
    a.expect("or user is disabled.\r\n");
    a.send("GET k\r\n");
    a.expect("$1\r\nv\r\n");
    a.send(to(&there, "k 0 5000 AUTH2 default secret"));
    a.expect("+OK\r\n");
    a.send("EXISTS k\r\n");
    a.expect(":0\r\n");
}

#[tokio::test]
async fn nothing_is_lost_when_nobody_answers() {
    let (here, there) = two().await;
    let mut a = here.client();
    a.send("SET k v\r\n");
    a.expect("+OK\r\n");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    a.send(format!("MIGRATE 127.0.0.1 {port} k 0 50\r\n"));
    a.expect("-IOERR error or timeout reading to target instance\r\n");
    drop((silent, there));
    a.send(format!("MIGRATE 127.0.0.1 {port} k 0 1000\r\nGET k\r\n"));
    a.expect("-IOERR error or timeout writing to target instance\r\n$1\r\nv\r\n");
}
