//! A household of twelve devices against a scripted upstream: a child's schedule, a tracker behind a CNAME,
//! and an upstream that fails now and then and recovers.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use dns::{
    ClientEntry, ClientGroup, GroupSchedule, LocalRecord, QueryClient, QueryProtocol,
    ScheduleAction, ScheduleWindow, SearchEngine, UpstreamServer, WeekDay, WeekSchedule,
};
use store::Millis;
use tokio::net::UdpSocket;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use web::demo::{report_end, tide};

use crate::service::DnsState;

const BEAT: Duration = Duration::from_millis(250);

/// The first upstream is silent for so long, once in so long.
const OUTAGE_MS: i64 = 20_000;
const OUTAGE_EVERY_MS: i64 = 120_000;

/// Devices: id, name, group, last part of the address, queries a second at most.
const DEVICES: [(&str, &str, &str, u8, f64); 12] = [
    ("router", "Router", "default", 1, 0.3),
    ("laptop-ann", "Ann's laptop", "default", 10, 1.6),
    ("laptop-ben", "Ben's laptop", "default", 11, 1.4),
    ("phone-ann", "Ann's phone", "default", 12, 1.0),
    ("phone-ben", "Ben's phone", "default", 13, 0.9),
    ("tablet-cleo", "Cleo's tablet", "kids", 20, 1.2),
    ("phone-cleo", "Cleo's phone", "kids", 21, 0.8),
    ("console", "Game console", "kids", 22, 0.5),
    ("tv", "Television", "things", 30, 1.1),
    ("speaker", "Speaker", "things", 31, 0.4),
    ("vacuum", "Vacuum cleaner", "things", 32, 0.2),
    ("printer", "Printer", "things", 33, 0.1),
];

/// Names that are asked for, and how often.
const NAMES: [(&str, f64); 26] = [
    ("www.news.example", 9.0),
    ("static.news.example", 6.0),
    ("metrics.news.example", 3.0),
    ("mail.post.example", 6.0),
    ("imap.post.example", 4.0),
    ("shop.example", 5.0),
    ("images.shop.example", 4.0),
    ("bank.example", 1.0),
    ("search.example", 6.0),
    ("www.google.com", 4.0),
    ("www.youtube.com", 3.0),
    ("video.stream.example", 5.0),
    ("cdn.stream.example", 5.0),
    ("music.example", 3.0),
    ("games.example", 3.0),
    ("updates.console.example", 1.0),
    ("weather.example", 2.0),
    ("time.example", 2.0),
    ("chat.example", 4.0),
    ("www.tiktok.com", 2.0),
    ("telemetry.tv.example", 4.0),
    ("doubleclick.net", 3.0),
    ("stats.g.doubleclick.net", 2.0),
    ("www.google-analytics.com", 3.0),
    ("nas.home.arpa", 2.0),
    ("missing.example", 1.0),
];

/// Starts the household, on `tasks` until `stop`.
pub(crate) fn start(state: DnsState, tasks: &TaskTracker, stop: &CancellationToken) {
    let (tasks_of_it, stop) = (tasks.clone(), stop.clone());
    tasks.spawn(async move {
        report_end(run(state, tasks_of_it, stop).await, "the household");
    });
}

async fn run(state: DnsState, tasks: TaskTracker, stop: CancellationToken) -> anyhow::Result<()> {
    let mut servers = Vec::new();
    for name in ["provider", "spare"] {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = socket.local_addr()?.to_string();
        servers.push(UpstreamServer { address, name: name.to_owned(), bootstrap: vec![] });
        let (state, stop) = (state.clone(), stop.clone());
        tasks.spawn(async move { serve(&socket, name == "provider", &state, stop).await });
    }
    move_in(&state, servers).await?;
    let mut chance = fastrand::Rng::new();
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut id: u16 = 1;
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = stop.cancelled() => return Ok(()),
        }
        let busy = 0.3 + 0.7 * tide(state.resolver.now(), 300_000);
        for (_, _, _, last, rate) in DEVICES {
            let expected = rate * busy * BEAT.as_secs_f64();
            if chance.f64() >= expected {
                continue;
            }
            id = id.wrapping_add(1);
            let packet = query(id, pick(&mut chance), if chance.f64() < 0.3 { 28 } else { 1 });
            let protocol = match last {
                12 | 13 => QueryProtocol::Https,
                10 => QueryProtocol::Tls,
                _ => QueryProtocol::Udp,
            };
            let resolver = state.resolver.clone();
            tasks.spawn(async move {
                let address = IpAddr::from([192, 168, 1, last]);
                let client = QueryClient { address, id: None, protocol };
                // Its reply goes to nobody.
                drop(resolver.answer(&packet, client).await);
            });
        }
    }
}

fn pick(chance: &mut fastrand::Rng) -> &'static str {
    let total: f64 = NAMES.iter().map(|(_, share)| share).sum();
    let mut at = chance.f64() * total;
    for (name, share) in NAMES {
        at -= share;
        if at <= 0.0 {
            return name;
        }
    }
    "www.news.example"
}

/// Puts devices, groups and rules in place.
async fn move_in(state: &DnsState, servers: Vec<UpstreamServer>) -> anyhow::Result<()> {
    use WeekDay::{Fri, Mon, Sat, Sun, Thu, Tue, Wed};
    let window = |days: &[WeekDay], start: &str, end: &str| ScheduleWindow {
        days: days.to_vec(),
        start: start.to_owned(),
        end: end.to_owned(),
    };
    let bedtime = GroupSchedule {
        name: "bedtime".to_owned(),
        action: ScheduleAction::Block,
        schedule: WeekSchedule {
            time_zone: "Europe/Berlin".to_owned(),
            windows: vec![
                window(&[Sun, Mon, Tue, Wed, Thu], "20:30", "06:30"),
                window(&[Fri, Sat], "21:30", "07:30"),
            ],
        },
    };
    let after_school = WeekSchedule {
        time_zone: "Europe/Berlin".to_owned(),
        windows: vec![window(&[Mon, Tue, Wed, Thu, Fri], "00:00", "16:00")],
    };
    let service = |id: &str, schedule: Option<WeekSchedule>| dns::BlockedService {
        id: id.to_owned(),
        schedule,
    };
    let kids = ClientGroup {
        id: "kids".to_owned(),
        name: "Kids".to_owned(),
        description: "Cleo's devices".to_owned(),
        safe_search: vec![SearchEngine::Google, SearchEngine::Youtube, SearchEngine::Bing],
        services: vec![service("tiktok", None), service("roblox", Some(after_school))],
        schedules: vec![bedtime],
        ..ClientGroup::default()
    };
    let things = ClientGroup {
        id: "things".to_owned(),
        name: "Things".to_owned(),
        description: "Devices that nobody sits in front of".to_owned(),
        rules: vec!["||telemetry.tv.example^".to_owned()],
        log: dns::GroupLog::All,
        ..ClientGroup::default()
    };
    let clients: Vec<ClientEntry> = DEVICES
        .iter()
        .map(|(id, name, group, last, _)| ClientEntry {
            id: (*id).to_owned(),
            name: (*name).to_owned(),
            group: (*group).to_owned(),
            addresses: vec![format!("192.168.1.{last}")],
            tags: Vec::new(),
        })
        .collect();
    let record = LocalRecord {
        name: "nas.home.arpa".to_owned(),
        record_type: "A".to_owned(),
        value: "192.168.1.5".to_owned(),
        ttl_seconds: 300,
    };
    state
        .resolver
        .update_policy(|policy| {
            policy.upstreams.servers.clone_from(&servers);
            // What the news site calls its own is a tracker's behind a CNAME.
            policy.rules = vec!["||tracker.example^".to_owned(), "@@||shop.example^".to_owned()];
            policy.groups = vec![kids.clone(), things.clone()];
            policy.clients.clone_from(&clients);
            policy.records = vec![record.clone()];
            Ok(())
        })
        .await?;
    Ok(())
}

/// A query for a name.
fn query(id: u16, name: &str, qtype: u16) -> Vec<u8> {
    let mut packet = id.to_be_bytes().to_vec();
    packet.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    write_name(&mut packet, name);
    packet.extend(qtype.to_be_bytes());
    packet.extend([0, 1]);
    packet
}

fn write_name(packet: &mut Vec<u8>, name: &str) {
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).unwrap_or(0));
        packet.extend(label.bytes());
    }
    packet.push(0);
}

/// Answers as a provider would, but for its outages.
async fn serve(socket: &UdpSocket, has_outages: bool, state: &DnsState, stop: CancellationToken) {
    let mut buffer = [0_u8; 1_500];
    loop {
        let received = tokio::select! {
            () = stop.cancelled() => return,
            received = socket.recv_from(&mut buffer) => received,
        };
        let Ok((length, client)) = received else { continue };
        if has_outages && is_out(state.resolver.now()) {
            continue;
        }
        let Some(reply) = buffer.get(..length).and_then(reply) else { continue };
        // A reply that gets lost is what UDP is like.
        let _ = socket.send_to(&reply, client).await;
    }
}

/// Tells whether the first upstream is silent at a moment.
fn is_out(now: Millis) -> bool {
    now.0.rem_euclid(OUTAGE_EVERY_MS) >= OUTAGE_EVERY_MS - OUTAGE_MS
}

/// The scripted answer to a query; none if it is no query.
fn reply(query: &[u8]) -> Option<Vec<u8>> {
    let mut end = 12;
    let mut name = String::new();
    loop {
        let length = usize::from(*query.get(end)?);
        if length == 0 {
            break;
        }
        let label = query.get(end + 1..end + 1 + length)?;
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(&String::from_utf8_lossy(label).to_ascii_lowercase());
        end += 1 + length;
    }
    let qtype = u16::from_be_bytes([*query.get(end + 1)?, *query.get(end + 2)?]);
    let mut reply = query.get(..end + 5)?.to_vec();
    let is_missing = name == "missing.example";
    let target = (name == "metrics.news.example").then_some("collect.tracker.example");
    let mut answers: u8 = 0;
    let mut records = Vec::new();
    let mut owner = vec![0xc0, 12];
    if let Some(target) = target.filter(|_| !is_missing) {
        let mut data = Vec::new();
        write_name(&mut data, target);
        records.extend(&owner);
        records.extend([0, 5, 0, 1, 0, 0, 1, 44]);
        records.extend(u16::try_from(data.len()).ok()?.to_be_bytes());
        records.extend(&data);
        owner = data;
        answers += 1;
    }
    let number = name.bytes().fold(7_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    match qtype {
        _ if is_missing => {}
        1 => {
            records.extend(&owner);
            records.extend([0, 1, 0, 1, 0, 0, 0, 120, 0, 4, 203, 0, 113, number]);
            answers += 1;
        }
        28 => {
            records.extend(&owner);
            records.extend([0, 28, 0, 1, 0, 0, 0, 120, 0, 16]);
            records.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number]);
            answers += 1;
        }
        _ => {}
    }
    let authority = u8::from(answers == 0);
    if authority > 0 {
        // SOA, so that the answer can be kept: example, hostmaster, serial and times.
        let mut data = Vec::new();
        write_name(&mut data, "ns.example");
        write_name(&mut data, "hostmaster.example");
        for number in [1_u32, 3_600, 600, 86_400, 60] {
            data.extend(number.to_be_bytes());
        }
        let mut soa = Vec::new();
        write_name(&mut soa, "example");
        soa.extend([0, 6, 0, 1, 0, 0, 0, 60]);
        soa.extend(u16::try_from(data.len()).ok()?.to_be_bytes());
        soa.extend(&data);
        records.extend(soa);
    }
    let code = if is_missing { 0x83 } else { 0x80 };
    reply.get_mut(2..12)?.copy_from_slice(&[0x81, code, 0, 1, 0, answers, 0, authority, 0, 0]);
    reply.extend(records);
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::MessageText;

    #[test]
    fn the_scripted_upstream_answers_every_name_of_the_household() {
        for (name, _) in NAMES {
            for qtype in [1, 28, 65] {
                let message = MessageText::read(&reply(&query(1, name, qtype)).unwrap()).unwrap();
                let is_missing = name == "missing.example";
                assert_eq!(
                    message.rcode,
                    if is_missing { "NXDOMAIN" } else { "NOERROR" },
                    "{name}"
                );
            }
        }
        let tracked = reply(&query(1, "metrics.news.example", 1)).unwrap();
        let tracked = MessageText::read(&tracked).unwrap();
        assert_eq!(tracked.answers[0].data.trim_end_matches('.'), "collect.tracker.example");
        assert_eq!(tracked.answers.len(), 2);
        assert_eq!(reply(&[1, 2, 3]), None);
        assert!(!is_out(Millis(0)) && is_out(Millis(OUTAGE_EVERY_MS - 1)));
    }
}
