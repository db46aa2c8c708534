//! A real cluster on loopback: three masters with a replica each.

use std::path::Path;

use anyhow::{Context, ensure};

use crate::{RedisServer, wait::until_now};

/// How many masters a cluster has; as many replicas.
const MASTERS: usize = 3;

/// A cluster of six servers, killed on drop. Ready when [`Cluster::start`] returns: every node knows
/// all others and every replica has its data.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
}

impl Cluster {
    /// Starts a cluster. Panics with how to get a server when there is none.
    pub fn start() -> Self {
        match Self::try_start() {
            Ok(cluster) => cluster,
            Err(error) => panic!("{error:#}"),
        }
    }

    /// Starts a cluster, or says why not.
    pub fn try_start() -> anyhow::Result<Self> {
        let mut last = None;
        // The port of the bus may be taken between choosing and using it, which a node notices late.
        for _ in 0..3 {
            match Self::attempt() {
                Ok(cluster) => return Ok(cluster),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no attempt was made")))
            .context("no cluster came up in three attempts")
    }

    fn attempt() -> anyhow::Result<Self> {
        let nodes = (0..MASTERS * 2).map(|_| RedisServer::launch_as(arguments));
        let cluster = Self { nodes: nodes.collect::<anyhow::Result<_>>()? };
        let share = 16384 / MASTERS + 1;
        for (index, node) in cluster.nodes.iter().enumerate() {
            node.query::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
            if index < MASTERS {
                let (first, last) = (index * share, (index * share + share - 1).min(16383));
                node.query::<()>(&[
                    "CLUSTER",
                    "ADDSLOTSRANGE",
                    &first.to_string(),
                    &last.to_string(),
                ])?;
            }
        }
        let first = &cluster.nodes[0];
        for node in &cluster.nodes[1..] {
            let bus = bus_of(node)?;
            let (port, bus) = (node.port().to_string(), bus.to_string());
            first.query::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        for node in &cluster.nodes {
            until_now("every node knows all others", || {
                let info: String = node.query(&["CLUSTER", "INFO"])?;
                Ok(info.contains(&format!("cluster_known_nodes:{}", MASTERS * 2)).then_some(()))
            })?;
        }
        for (index, replica) in cluster.nodes.iter().enumerate().skip(MASTERS) {
            let master: String = cluster.nodes[index - MASTERS].query(&["CLUSTER", "MYID"])?;
            until_now("a replica knows its master", || {
                Ok(replica.query::<()>(&["CLUSTER", "REPLICATE", &master]).ok())
            })?;
        }
        for (index, node) in cluster.nodes.iter().enumerate() {
            until_now("the cluster is whole", || {
                let info: String = node.query(&["CLUSTER", "INFO"])?;
                let link: String = node.query(&["INFO", "replication"])?;
                // Without this a killed master is never replaced.
                let fed = index < MASTERS || link.contains("master_link_status:up");
                Ok((info.contains("cluster_state:ok") && fed).then_some(()))
            })?;
        }
        until_now("every node sees every replica", || {
            for node in &cluster.nodes {
                let nodes: String = node.query(&["CLUSTER", "NODES"])?;
                if nodes.matches(" slave ").count() + nodes.matches("myself,slave").count()
                    != MASTERS
                {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })?;
        Ok(cluster)
    }

    /// Where the cluster is: some of its nodes.
    pub fn url(&self) -> String {
        let nodes: Vec<_> =
            self.nodes[..2].iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// The nodes: masters first, then their replicas in the same order.
    pub fn nodes(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// Moves one slot, with its keys, to another master.
    pub fn move_slot(&self, slot: u16, to: usize) -> anyhow::Result<()> {
        let from = self.owner(slot)?;
        ensure!(from != to && to < self.nodes.len(), "a slot moves from one master to another");
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let source_id: String = source.query(&["CLUSTER", "MYID"])?;
        let target_id: String = target.query(&["CLUSTER", "MYID"])?;
        let slot_text = slot.to_string();
        target.query::<()>(&["CLUSTER", "SETSLOT", &slot_text, "IMPORTING", &source_id])?;
        source.query::<()>(&["CLUSTER", "SETSLOT", &slot_text, "MIGRATING", &target_id])?;
        loop {
            let keys: Vec<String> =
                source.query(&["CLUSTER", "GETKEYSINSLOT", &slot_text, "100"])?;
            if keys.is_empty() {
                break;
            }
            let port = target.port().to_string();
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            source.query::<()>(&migrate)?;
        }
        for node in [target, source] {
            node.query::<()>(&["CLUSTER", "SETSLOT", &slot_text, "NODE", &target_id])?;
        }
        Ok(())
    }

    /// Which node owns a slot.
    pub fn owner(&self, slot: u16) -> anyhow::Result<usize> {
        for (index, node) in self.nodes.iter().enumerate() {
            let nodes: String = match node.query(&["CLUSTER", "NODES"]) {
                Ok(nodes) => nodes,
                Err(_) => continue,
            };
            let myself = nodes.lines().find(|line| line.contains("myself"));
            let ranges = myself.into_iter().flat_map(|line| line.split(' ').skip(8));
            let owns = ranges.filter(|range| !range.starts_with('[')).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let number = |text: &str| text.parse::<u16>().unwrap_or(u16::MAX);
                (number(first)..=number(last)).contains(&slot)
            });
            if owns {
                return Ok(index);
            }
        }
        anyhow::bail!("nobody owns slot {slot}")
    }
}

fn arguments(port: u16, folder: &Path) -> anyhow::Result<Vec<String>> {
    let (port, bus) = (port.to_string(), crate::reserve_port().to_string());
    let folder = folder.display().to_string();
    let args = [
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--dir",
        &folder,
        "--save",
        "",
        "--appendonly",
        "no",
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-node-timeout",
        "2000",
        "--repl-diskless-sync-delay",
        "0",
        "--cluster-replica-validity-factor",
        "0",
        "--enable-debug-command",
        "yes",
    ];
    Ok(args.map(str::to_owned).to_vec())
}

fn bus_of(node: &RedisServer) -> anyhow::Result<u16> {
    let (_, bus): (String, u16) = node.query(&["CONFIG", "GET", "cluster-port"])?;
    Ok(bus)
}
