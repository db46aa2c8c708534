//! A policy: the rule of a limit, and what happens around it.

use std::{collections::HashMap, time::Duration};

use jiff::tz::TimeZone;
use store::{Millis, limit::Rule};

use super::CalendarPeriod;
use crate::{Error, Identity, PolicyName};

/// The algorithm of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitAlgorithm {
    /// At most the limit in a window that opens with its first request. Limit at most 1,000.
    Fixed,
    /// At most the limit in any window, exactly. Limit at most 1,000.
    Sliding,
    /// Two weighted windows: any limit, less than twice the limit in any window.
    Counter,
    /// `burst` at once, refilled with the limit per window.
    Bucket {
        /// Most units at once; the limit unless set.
        burst: Option<u32>,
    },
    /// The limit per period of the calendar; the policy's window is not used.
    Calendar {
        /// Length of a period.
        period: CalendarPeriod,
        /// Time zone in which a period starts.
        zone: TimeZone,
    },
    /// The limit at once; a unit is a lease that expires after the window unless renewed.
    Concurrent,
}

impl LimitAlgorithm {
    /// Returns the name in settings and JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Sliding => "sliding",
            Self::Counter => "counter",
            Self::Bucket { .. } => "bucket",
            Self::Calendar { .. } => "calendar",
            Self::Concurrent => "concurrent",
        }
    }
}

/// The decision of a policy while the store is out of reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WhenStoreDown {
    /// Every request is allowed.
    Open,
    /// Each instance limits by itself, with the same rule, in a built-in store of its own. Without the feature
    /// `embedded` there is none, and every request is allowed.
    #[default]
    Local,
    /// Every request is denied.
    Closed,
}

/// A limit and what happens around it.
///
/// ```
/// use std::time::Duration;
/// use tidegate_desk::{PolicyName, limit::{LimitAlgorithm, Policy}};
///
/// let minute = Duration::from_secs(60);
/// let search = PolicyName::parse("search").unwrap();
/// let policy = Policy::new(Some(search), LimitAlgorithm::Sliding, 20, minute).unwrap();
/// assert_eq!(policy.limit(), 20);
/// assert!(Policy::new(None, LimitAlgorithm::Sliding, 1_001, minute).is_err(), "use a counter");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    name: Option<PolicyName>,
    algorithm: LimitAlgorithm,
    limit: u64,
    window: Duration,
    overrides: HashMap<Identity, u64>,
    shadow: bool,
    when_store_down: WhenStoreDown,
    timeout: Duration,
    prepay: u32,
}

impl Policy {
    /// Most overrides of one policy: each instance keeps all of them.
    pub const OVERRIDES_MAX: usize = 10_000;

    /// Time after which the store counts as out of reach, unless set.
    pub const TIMEOUT: Duration = Duration::from_millis(50);

    /// Creates a policy. Without a name it is the default policy, which has the bare keys of the
    /// schema.
    ///
    /// # Errors
    /// A limit of 0, a window outside 1 ms to a year, or a limit the algorithm cannot keep.
    pub fn new(
        name: Option<PolicyName>,
        algorithm: LimitAlgorithm,
        limit: u64,
        window: Duration,
    ) -> Result<Self, Error> {
        let policy = Self {
            name,
            algorithm,
            limit,
            window,
            overrides: HashMap::new(),
            shadow: false,
            when_store_down: WhenStoreDown::default(),
            timeout: Self::TIMEOUT,
            prepay: 0,
        };
        policy.validate(limit)?;
        Ok(policy)
    }

    /// Gives one identity a limit of its own.
    ///
    /// # Errors
    /// A limit the algorithm cannot keep, or more than 10,000 overrides.
    pub fn with_override(mut self, identity: Identity, limit: u64) -> Result<Self, Error> {
        self.validate(limit)?;
        self.overrides.insert(identity, limit);
        // An identity of a list may have two spellings.
        if self.overrides.len() > 2 * Self::OVERRIDES_MAX {
            return Err(Error::invalid("overrides", "at most 10,000; use a policy of their own"));
        }
        Ok(self)
    }

    /// Makes the policy decide and count, but never deny.
    #[must_use]
    pub fn in_shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Sets the decision while the store is out of reach, and the time after which it is.
    ///
    /// # Errors
    /// A timeout outside 1 ms to 10 s.
    pub fn when_store_down(
        mut self,
        then: WhenStoreDown,
        timeout: Duration,
    ) -> Result<Self, Error> {
        if timeout < Duration::from_millis(1) || timeout > Duration::from_secs(10) {
            return Err(Error::invalid("limit_timeout", "must be between 1 ms and 10 s"));
        }
        (self.when_store_down, self.timeout) = (then, timeout);
        Ok(self)
    }

    /// Draws so many units in advance and spends them in process; 0 draws none. Units that are not
    /// spent within a second are given back, so the guarantee holds over the window and that second;
    /// for a calendar it is exact.
    ///
    /// # Errors
    /// An algorithm other than `counter`, `bucket` and `calendar`, or more units than the limit.
    pub fn with_prepay(mut self, units: u32) -> Result<Self, Error> {
        let can = matches!(
            self.algorithm,
            LimitAlgorithm::Counter
                | LimitAlgorithm::Bucket { .. }
                | LimitAlgorithm::Calendar { .. }
        );
        if units > 0 && !can {
            return Err(Error::invalid("prepay", "only for counter, bucket and calendar"));
        }
        let most = self.rule_with(self.limit, Millis(0))?.most();
        if u64::from(units) > most {
            return Err(Error::invalid("prepay", "cannot be more than the limit"));
        }
        self.prepay = units;
        Ok(self)
    }

    /// Returns the name; none for the default policy.
    pub fn name(&self) -> Option<&PolicyName> {
        self.name.as_ref()
    }

    /// Returns the name as the map of counts has it.
    pub(crate) fn counted_name(&self) -> &Option<PolicyName> {
        &self.name
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> &LimitAlgorithm {
        &self.algorithm
    }

    /// Returns the limit of identities without an override.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the window.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Returns the time over which the limit counts; none for a number of requests at once.
    pub fn counted_window(&self) -> Option<Duration> {
        match &self.algorithm {
            LimitAlgorithm::Concurrent => None,
            LimitAlgorithm::Calendar { period, .. } => Some(period.longest()),
            _ => Some(self.window),
        }
    }

    /// Returns true if the policy never denies.
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    pub(crate) fn prepay(&self) -> u64 {
        u64::from(self.prepay)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn then_store_down(&self) -> WhenStoreDown {
        self.when_store_down
    }

    /// Returns the rule for an identity at `now`.
    pub(crate) fn rule(&self, identity: &Identity, now: Millis) -> Result<Rule, Error> {
        self.rule_with(self.overrides.get(identity).copied().unwrap_or(self.limit), now)
    }

    fn rule_with(&self, limit: u64, now: Millis) -> Result<Rule, Error> {
        let small = || {
            u32::try_from(limit)
                .map_err(|_| Error::invalid("limit", "too large: use calendar for more than 2^32"))
        };
        let window = self.window;
        Ok(match &self.algorithm {
            LimitAlgorithm::Fixed => Rule::Fixed { limit: small()?, window },
            LimitAlgorithm::Sliding => Rule::Sliding { limit: small()?, window },
            LimitAlgorithm::Counter => Rule::Counter { limit: small()?, window },
            LimitAlgorithm::Bucket { burst } => {
                let count = small()?;
                Rule::Bucket { burst: burst.unwrap_or(count), count, per: window }
            }
            LimitAlgorithm::Calendar { period, zone } => {
                let (start, end) = period.bounds(now, zone)?;
                Rule::Calendar { limit, start, end }
            }
            LimitAlgorithm::Concurrent => Rule::Concurrent { limit: small()?, lease: window },
        })
    }

    fn validate(&self, limit: u64) -> Result<(), Error> {
        let rule = self.rule_with(limit, Millis(0))?;
        rule.validate().map_err(|error| Error::invalid("limit", error.to_string()))
    }
}
