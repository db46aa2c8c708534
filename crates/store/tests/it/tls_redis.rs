//! Servers behind TLS. On a server only: the built-in store needs none.

use store::{Error, Options, Store, redis::AsyncCommands};
use testkit::{RedisServer, tls::Certificates};

fn server(certificates: &Certificates) -> RedisServer {
    let file = |name: &str| certificates.folder().join(name).display().to_string();
    let (ca, certificate, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
    // The plain port stays for the test kit; the store uses the other.
    let port = testkit::reserve_port().to_string();
    let args = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
        "--tls-auth-clients",
        "no",
    ];
    RedisServer::start_with(&args)
}

fn url(server: &RedisServer, host: &str) -> String {
    let (_, port): (String, u16) = server.query(&["CONFIG", "GET", "tls-port"]).unwrap();
    format!("rediss://{host}:{port}/")
}

#[tokio::test]
async fn a_server_is_trusted_by_its_authority_and_nobody_else_is() {
    let certificates = Certificates::make().unwrap();
    let server = server(&certificates);
    let trusting = Options { tls_ca: Some(certificates.ca().unwrap()), ..Options::default() };
    for host in ["localhost", "127.0.0.1"] {
        let mut store = Store::open_with(&url(&server, host), trusting.clone()).await.unwrap();
        store.set::<_, _, ()>("a", "b").await.unwrap();
        assert_eq!(store.get::<_, String>("a").await.unwrap(), "b");
        let mut listener = store.subscribe(&["c"], &[]).await.unwrap();
        store.publish::<_, _, i64>("c", "x").await.unwrap();
        assert!(listener.recv().await.is_some());
        let popped =
            store.blocking().await.unwrap().blpop::<_, Option<(String, String)>>("l", 0.01).await;
        assert_eq!(popped.unwrap(), None);
    }

    // The same by URL.
    let ca = certificates.folder().join("ca.pem");
    let by_url = format!("{}?ca={}", url(&server, "localhost"), ca.display());
    Store::open(&by_url).await.unwrap().ping().await.unwrap();
    let error = Store::open(&format!("{by_url}.not")).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");

    let stranger =
        Options { tls_ca: Some(Certificates::make().unwrap().ca().unwrap()), ..Options::default() };
    let error = Store::open_with(&url(&server, "localhost"), stranger).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let error = Store::open(&url(&server, "localhost")).await.unwrap_err();
    assert!(error.is_unavailable(), "the public authorities do not know it: {error:?}");
    let insecure = format!("{}#insecure", url(&server, "localhost"));
    let error = Store::open(&insecure).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
}
