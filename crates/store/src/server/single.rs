//! One server at one address.

use futures_util::future::BoxFuture;
use redis::{AsyncConnectionConfig, Client, RedisResult, aio::PubSub};

use crate::{
    Error, Options,
    link::{Connector, FreshConnection},
    server,
};

/// Connects to one address.
#[derive(Debug)]
pub(crate) struct Single {
    client: Client,
}

impl Single {
    pub(crate) fn new(url: &str, options: &Options) -> Result<Self, Error> {
        Ok(Self { client: server::client(url, options)? })
    }
}

impl Connector for Single {
    fn connect(
        &self,
        config: AsyncConnectionConfig,
        _slot: Option<u16>,
    ) -> BoxFuture<'_, RedisResult<FreshConnection>> {
        Box::pin(async move {
            let connection =
                self.client.get_multiplexed_async_connection_with_config(&config).await?;
            let address = server::shown(self.client.get_connection_info());
            Ok(FreshConnection { connection, address })
        })
    }

    fn pubsub(&self) -> BoxFuture<'_, RedisResult<(PubSub, String)>> {
        Box::pin(async move {
            let pubsub = self.client.get_async_pubsub().await?;
            Ok((pubsub, server::shown(self.client.get_connection_info())))
        })
    }
}
