//! One server at one address.

use futures_util::future::BoxFuture;
use redis::{AsyncConnectionConfig, Client, RedisResult, aio::PubSub};

use crate::{
    Error,
    link::{Connected, Connector},
    server,
};

/// Connects to one address.
#[derive(Debug)]
pub(crate) struct Single {
    client: Client,
}

impl Single {
    pub(crate) fn new(url: &str) -> Result<Self, Error> {
        let client = Client::open(server::connection_info(url)?)?;
        Ok(Self { client })
    }
}

impl Connector for Single {
    fn connect(&self, config: AsyncConnectionConfig) -> BoxFuture<'_, RedisResult<Connected>> {
        Box::pin(async move {
            let connection =
                self.client.get_multiplexed_async_connection_with_config(&config).await?;
            let address = server::shown(self.client.get_connection_info());
            Ok(Connected { connection, address })
        })
    }

    fn pubsub(&self) -> BoxFuture<'_, RedisResult<PubSub>> {
        Box::pin(self.client.get_async_pubsub())
    }
}
