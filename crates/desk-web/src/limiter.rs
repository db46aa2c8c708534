//! The product's own limits: logins, and public calls that have no limit of their own.

use std::sync::Arc;

use arc_swap::ArcSwap;
use desk::PolicyName;
use desk::limit::{BookDecision, LimitedParty, PolicyBook};
use futures_util::future::BoxFuture;
use web::rate_limit::{HeaderStyle, LimitReport, LimitSubject, LimitVerdict, RequestLimiter};

/// Charges requests of the product to policies of the book.
#[derive(Debug, Clone)]
pub(crate) struct DeskLimiter {
    pub(crate) book: PolicyBook,
    pub(crate) style: Arc<ArcSwap<HeaderStyle>>,
}

impl RequestLimiter for DeskLimiter {
    fn charge<'a>(
        &'a self,
        policy: &'a str,
        subject: LimitSubject<'a>,
    ) -> BoxFuture<'a, Option<LimitVerdict>> {
        Box::pin(async move {
            let policy = self.book.find(&PolicyName::parse(policy).ok()?)?;
            match self.book.check(&party(subject), &[policy], 1, None).await {
                Ok(decision) => Some(verdict(&decision)),
                Err(error) => {
                    // The store being away is no error here, so this is a fault of ours.
                    tracing::error!(%error, "a request of the product was not limited");
                    None
                }
            }
        })
    }

    fn forgive<'a>(&'a self, policy: &'a str, subject: LimitSubject<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Ok(name) = PolicyName::parse(policy) else { return };
            let Some(policy) = self.book.find(&name) else { return };
            if let Err(error) = self.book.reset(&party(subject), &policy).await {
                tracing::warn!(%error, policy = %name, "not forgiven; it frees itself in time");
            }
        })
    }

    fn header_style(&self) -> HeaderStyle {
        **self.style.load()
    }
}

fn party(subject: LimitSubject<'_>) -> LimitedParty {
    match subject {
        LimitSubject::Address(address) => LimitedParty::ip(address),
        LimitSubject::Key(key) => LimitedParty::key(key),
    }
}

/// The decision as the headers tell it.
pub(crate) fn verdict(decision: &BookDecision) -> LimitVerdict {
    LimitVerdict { allowed: decision.allowed, limits: reports(decision) }
}

/// Each policy as the headers tell it; one that never denies is not told.
pub(crate) fn reports(decision: &BookDecision) -> Vec<LimitReport> {
    let told = decision.limits.iter().filter(|limit| !limit.state.shadow);
    told.map(|limit| LimitReport {
        policy: name_of(limit.state.policy.as_ref()).to_owned(),
        limit: limit.state.limit,
        window: limit.window,
        remaining: limit.state.remaining,
        reset: limit.state.reset,
        retry_after: limit.state.retry_after,
    })
    .collect()
}

/// The name of a policy in answers; the default policy has one there, too.
pub(crate) fn name_of(name: Option<&PolicyName>) -> &str {
    name.map_or("default", PolicyName::as_str)
}
