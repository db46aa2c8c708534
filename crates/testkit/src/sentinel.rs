//! Real Sentinels on loopback: a master, two replicas, three Sentinels.

use std::{fs, path::Path};

use anyhow::Context;

use crate::{RedisServer, wait::until_now};

/// What the Sentinels call the master.
const NAME: &str = "tide";

/// A master with two replicas under three Sentinels, killed on drop. Ready when
/// [`Sentinel::start`] returns: the replicas have their data and every Sentinel knows all others.
#[derive(Debug)]
pub struct Sentinel {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl Sentinel {
    /// Starts all. Panics with how to get a server when there is none.
    pub fn start() -> Self {
        match Self::try_start() {
            Ok(sentinel) => sentinel,
            Err(error) => panic!("{error:#}"),
        }
    }

    /// Starts all, or says why not.
    pub fn try_start() -> anyhow::Result<Self> {
        let master = RedisServer::try_start(&[])?;
        let of = format!("127.0.0.1 {}", master.port());
        let mut servers = vec![master];
        for _ in 0..2 {
            servers.push(RedisServer::try_start(&["--replicaof", &of])?);
        }
        for replica in &servers[1..] {
            until_now("a replica has its data", || {
                let info: String = replica.query(&["INFO", "replication"])?;
                Ok(info.contains("master_link_status:up").then_some(()))
            })?;
        }
        let master = servers[0].port();
        let sentinels =
            (0..3).map(|_| RedisServer::launch_as(|port, folder| arguments(port, folder, master)));
        let sentinels = sentinels.collect::<anyhow::Result<Vec<_>>>()?;
        let ready = Self { servers, sentinels };
        for sentinel in &ready.sentinels {
            until_now("a Sentinel knows all others", || {
                let info: std::collections::HashMap<String, String> =
                    sentinel.query(&["SENTINEL", "MASTER", NAME])?;
                let known = |field: &str| info.get(field).map(String::as_str);
                let all =
                    known("num-slaves") == Some("2") && known("num-other-sentinels") == Some("2");
                Ok((all && known("flags") == Some("master")).then_some(()))
            })?;
        }
        Ok(ready)
    }

    /// Where the Sentinels are, and the master's name.
    pub fn url(&self) -> String {
        let sentinels: Vec<_> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port()))
            .collect();
        format!("redis+sentinel://{}/{NAME}", sentinels.join(","))
    }

    /// The servers; the first was master at the start.
    pub fn servers(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// The Sentinels.
    pub fn sentinels(&mut self) -> &mut [RedisServer] {
        &mut self.sentinels
    }

    /// The index of the server that the first Sentinel names as master.
    pub fn master(&self) -> anyhow::Result<usize> {
        let (_, port): (String, u16) =
            self.sentinels[0].query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])?;
        let found = self.servers.iter().position(|server| server.port() == port);
        found.with_context(|| format!("no server of ours has port {port}"))
    }
}

fn arguments(port: u16, folder: &Path, master: u16) -> anyhow::Result<Vec<String>> {
    let file = folder.join("sentinel.conf");
    // Short times, so that a failover takes a few seconds. But not shorter: Sentinels ping once a
    // second, and with one second until "down" they now and then fail over a healthy master again.
    let text = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {NAME} 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds {NAME} 3000\nsentinel failover-timeout {NAME} 10000\n\
         sentinel parallel-syncs {NAME} 2\n",
        folder.display()
    );
    fs::write(&file, text)?;
    Ok(vec![file.display().to_string(), "--sentinel".to_owned()])
}
