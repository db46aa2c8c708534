//! One server at one address.

use futures_util::future::BoxFuture;
use redis::{Client, RedisResult};

use crate::{
    Error, Options, Timeouts,
    link::{Connected, Connector},
    server,
};

/// Connects to one address.
#[derive(Debug)]
pub(crate) struct Single {
    client: Client,
    timeouts: Timeouts,
}

impl Single {
    pub(crate) fn new(url: &str, options: &Options) -> Result<Self, Error> {
        let client = Client::open(server::connection_info(url)?)?;
        Ok(Self { client, timeouts: options.timeouts })
    }
}

impl Connector for Single {
    fn connect(&self) -> BoxFuture<'_, RedisResult<Connected>> {
        Box::pin(async move {
            let config = server::calls(self.timeouts);
            let connection =
                self.client.get_multiplexed_async_connection_with_config(&config).await?;
            let address = server::shown(self.client.get_connection_info());
            Ok(Connected { connection, address })
        })
    }
}
