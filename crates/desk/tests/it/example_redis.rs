//! The schema's Example Usage from Node, block by block, beside the library: on a real server, which
//! Node's clients reach without the program.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use desk::{
    Identity, InstanceId, Prefix, UserId,
    limit::LimitAlgorithm,
    traffic::{FinishedRequest, RequestOutcome, Traffic},
    users::{OpenOutcome, UserCheck, UserOptions, UserStatus, Users, VerifiedLogin},
};
use testkit::RedisServer;

use crate::support::{limiter, policy};

/// A Node program that runs one block of the example at a time.
struct NodeProgram {
    child: Child,
    blocks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl NodeProgram {
    fn start(script: &str, port: u16) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        // Clients in other languages are installed once, for all tests.
        let clients = here.join("../tidegate/tests/clients");
        assert!(
            clients.join("node_modules").exists(),
            "the clients are not installed: run `npm ci` in {} (./test does)",
            clients.display()
        );
        let mut child = Command::new("timeout")
            .args(["120", "node", script, &port.to_string()])
            .arg(clients)
            .current_dir(here.join("tests/example"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (blocks, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, blocks, answers: BufReader::new(answers) }
    }

    /// Runs a block and returns its answer as JSON.
    fn run(&mut self, block: &str) -> String {
        writeln!(self.blocks, "{block}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert!(answer.ends_with('\n'), "{block} did not answer");
        answer.trim_end().to_owned()
    }

    fn end(mut self) {
        drop(self.blocks);
        assert!(self.child.wait().unwrap().success());
    }
}

fn runs_beside_the_library(script: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start();
        let store = store::Store::open(&server.url()).await.unwrap();
        let mut node = NodeProgram::start(script, server.port());
        users_beside(&store, &mut node).await;
        traffic_beside(&store, &mut node).await;
        limits_beside(&store, &mut node).await;
        node.end();
    });
}

async fn users_beside(store: &store::Store, node: &mut NodeProgram) {
    let users = Users::new(store, &Prefix::default(), UserOptions::default()).unwrap();
    let user = UserId::parse("123").unwrap();
    let valid = || UserCheck::Valid { user: user.clone(), status: UserStatus::Login };

    // What Node writes, the library honours.
    node.run("login");
    assert_eq!(users.check_user(&user).await.unwrap(), valid());
    node.run("touch");
    assert_eq!(users.check_user(&user).await.unwrap(), valid());
    node.run("disable");
    assert!(matches!(users.check_user(&user).await.unwrap(), UserCheck::Blocked(_)));
    node.run("enable");
    assert_eq!(users.check_user(&user).await.unwrap(), valid());
    node.run("logout");
    assert_eq!(users.check_user(&user).await.unwrap(), UserCheck::Unknown);

    // What the library writes, Node reads.
    let login = VerifiedLogin { device_id: "Pixel_9", ip_address: None, replaces: None };
    let OpenOutcome::Opened(token) = users.open_session(&user, login).await.unwrap() else {
        panic!("blocked")
    };
    assert_eq!(node.run("validate"), "\"ok\"");
    users.block(&user, "spam", None).await.unwrap();
    assert_eq!(node.run("validate"), "\"User disabled\"");
    // The schema's login writes over the block; the next check puts it back.
    node.run("login");
    assert!(matches!(users.check_user(&user).await.unwrap(), UserCheck::Blocked(_)));
    assert_eq!(node.run("validate"), "\"User disabled\"");
    users.set_status(&user, UserStatus::Login).await.unwrap();
    assert_eq!(node.run("validate"), "\"ok\"");
    assert_eq!(users.check_token(&token.to_string()).await.unwrap(), valid());
    users.end_all_sessions(&user).await.unwrap();
    assert_eq!(node.run("validate"), "\"Session expired\"");
    // The schema's touch brings back half a hash; it is no login.
    node.run("touch");
    assert_eq!(users.check_user(&user).await.unwrap(), UserCheck::Unknown);
    assert_eq!(users.check_token(&token.to_string()).await.unwrap(), UserCheck::Unknown);
}

async fn traffic_beside(store: &store::Store, node: &mut NodeProgram) {
    let instance = InstanceId::parse("web-1").unwrap();
    let traffic = Traffic::new(store, &Prefix::default(), None, instance);
    let _connection = traffic.open_connection();
    for status in [200, 404] {
        traffic.record(&FinishedRequest {
            method: "GET",
            route: Some("/api/forum/questions"),
            outcome: RequestOutcome::Status(status),
            is_refused: false,
            duration: Duration::from_millis(5),
        });
    }
    traffic.flush().await.unwrap();
    assert_eq!(node.run("read"), r#"["2","2","1","1","2"]"#);
    node.run("count");
    assert_eq!(node.run("read"), r#"["3","2","1","1","3"]"#);
    assert_eq!(traffic.snapshot().await.unwrap().total, 3);
    assert_eq!(traffic.endpoints().await.unwrap()[0].requests, 3);
}

async fn limits_beside(store: &store::Store, node: &mut NodeProgram) {
    let (limiter, address) = (limiter(store), Identity::ip([192, 168, 1, 100].into()));
    node.run("hit");
    for algorithm in [LimitAlgorithm::Fixed, LimitAlgorithm::Sliding] {
        let decision = limiter.check(&address, &[&policy("", algorithm, 5)], 1).await.unwrap();
        assert!(decision.allowed && !decision.degraded);
        assert_eq!(decision.limits[0].remaining, 3, "one hit by Node, one by the library");
    }
    assert_eq!(node.run("hit"), "[3,3]");
}

#[test]
fn the_example_usage_runs_from_node_redis() {
    runs_beside_the_library("node_redis.mjs");
}

#[test]
fn the_example_usage_runs_from_ioredis() {
    runs_beside_the_library("ioredis.mjs");
}
