//! The built-in store over RESP as `tidegate store serve` runs it, without the rest of the product
//! around it, so that the benchmarks need not build that: `served URL ADDRESS`.

use anyhow::{Context, Result};
// For its allocator.
use ::bench as _;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().context("served URL ADDRESS")?;
    let address = arguments.next().context("served URL ADDRESS")?.parse()?;
    let store = store::Store::open(&url).await?;
    let embedded = store.embedded().context("only the built-in store is served")?;
    let _listener = resp::RespListener::start(embedded.clone(), resp::Config::at(address))?;
    // Whoever started this ends it.
    std::future::pending().await
}
