//! The resolver: forwards, caches and filters DNS queries; its cache outlives the process.
//!
//! Read in this order: `name.rs` (names and their two spellings), `keys.rs`, `wire.rs` (messages),
//! `l1.rs` (the cache in the store), `l0.rs` (the cache in memory),
//! `upstream.rs` (the servers queries are forwarded to),
//! `policy.rs` (what is decided about queries), `resolver.rs` (a query in, a reply out), `listen.rs`
//! (UDP and TCP), `query_record.rs` (what is told about answered queries), `query_log.rs` and
//! `statistics.rs` (where that is kept), `seen_client.rs` and `allow_request.rs` (who uses it, and who
//! asks for more), `remote.rs` (what needs HTTP).

mod allow_request;
mod cookie;
mod error;
mod filter;
mod keys;
mod l0;
mod l1;
mod listen;
pub mod lists;
mod local;
mod name;
mod policy;
mod query_log;
mod query_record;
mod remote;
mod resolver;
mod scripts;
mod seen_client;
mod statistics;
mod upstream;
pub mod wire;

pub use crate::{
    allow_request::{AllowRequest, AllowRequestState, AllowRequests},
    error::Error,
    keys::{DnsKeyMap, SECRET_KEYS},
    l0::{FrontTable, L0, L0Entry, L0Key, L0Stats},
    l1::{DueAnswer, L1, L1Options, RefreshLock, StoredAnswer, StoredEntry},
    listen::{ListenOptions, ListenStats, Listeners},
    lists::{ListFigures, ListRefresh, ListStatus, Lists},
    local::DesignatedEndpoints,
    name::{DomainName, NameError, Question},
    policy::{
        AccessPolicy, BlockMode, BlockReply, BlockedService, CheckedSchedule, ClientEntry,
        ClientGroup, CustomService, DEFAULT_GROUP, DomainUpstreams, FilterPause, GroupLog,
        GroupSchedule, ListAction, ListRefreshPolicy, ListSource, LocalRecord, LogPolicy,
        LoggedAddresses, Policy, PolicyError, PolicyScope, PolicyStore, PolicyVersion,
        RateLimitPolicy, RebindingPolicy, ScheduleAction, ScheduleWindow, SearchEngine,
        StrategyName, TimedRule, UpstreamPolicy, UpstreamServer, WeekDay, WeekSchedule,
    },
    query_log::{
        InstanceInfo, LogFilter, LogPage, LoggedQuery, QueryLog, QueryLogOptions, QueryLogStats,
        QueryRecorder, RecorderStats, SharedLog, SharedPage, SharedRow,
    },
    query_record::{
        CacheTier, Label, Labels, QueryBatch, QueryOutcome, QueryProtocol, QueryQueue, QueryRecord,
    },
    remote::{Exchange, ExchangeRequest, Fetch, FetchReply, FetchRequest, RemoteError, Validators},
    resolver::{
        DecisionStep, Explanation, HitResult, PreviewChange, PreviewQuery, PreviewReport,
        QueryClient, RefreshPreset, RefreshStats, Resolver, ResolverOptions, StaleOptions,
        SweepReport,
    },
    seen_client::{SeenClient, SeenClients},
    statistics::{Statistics, StatisticsBucket, StatisticsField, StatisticsReport, StatisticsStep},
    upstream::{
        UpstreamAddress, UpstreamAnswer, UpstreamError, UpstreamNeeds, UpstreamOptions,
        UpstreamProtocol, UpstreamRoutes, UpstreamStats, UpstreamStrategy, Upstreams,
    },
};
