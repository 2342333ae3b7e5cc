//! The look at the server's settings.

use millstream_core::error::ErrorKind;
use millstream_redis::{OnRisk, RedisBackend, RedisConfig};

use crate::server::Server;

async fn risks(url: String) -> Vec<&'static str> {
    let config = RedisConfig::new(url).with_on_risk(OnRisk::Ignore);
    let backend = RedisBackend::connect(config).await.expect("connected");
    backend.risks().await.expect("asked").iter().map(|risk| risk.setting).collect()
}

async fn required(url: String) -> Result<RedisBackend, millstream_core::Error> {
    RedisBackend::connect(RedisConfig::new(url).with_on_risk(OnRisk::Refuse)).await
}

#[tokio::test]
async fn a_server_that_forgets_is_refused_where_that_is_asked_for() {
    let server = Server::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    assert_eq!(risks(server.url()).await, ["appendonly", "maxmemory-policy"]);
    let error = required(server.url()).await.expect_err("it forgets");
    assert_eq!((error.kind(), error.problems().len()), (ErrorKind::InvalidConfig, 2), "{error}");
    let config = RedisConfig::new(server.url());
    RedisBackend::connect(config).await.expect("by default there are warnings only");
}

#[tokio::test]
async fn a_server_that_keeps_what_it_is_given_is_accepted() {
    let server = Server::start(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    assert!(risks(server.url()).await.is_empty());
    required(server.url()).await.expect("it keeps everything");
    let lazy = Server::start(&["--appendonly", "yes", "--appendfsync", "no"]);
    assert_eq!(risks(lazy.url()).await, ["appendfsync"]);
    let error = required(lazy.url()).await.expect_err("the system decides");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
}

#[tokio::test]
async fn info_is_asked_where_config_is_refused_and_silence_is_no_durability() {
    let server = Server::start(&[]);
    let mut raw = crate::server::raw_connection(&server.url()).await;
    let mut allow = async |user: &str, rights: &[&str]| {
        let mut acl = redis::cmd("ACL");
        acl.arg(&["SETUSER", user, "reset", "on", ">secret", "~*", "+@all"]).arg(rights);
        acl.exec_async(&mut raw).await.expect("a user");
        server.url().replace("redis://", &format!("redis://{user}:secret@"))
    };
    let without_config = allow("one", &["-config"]).await;
    assert_eq!(risks(without_config).await, ["appendonly"]);
    let without_both = allow("two", &["-config", "-info"]).await;
    assert!(risks(without_both.clone()).await.is_empty());
    let error = required(without_both.clone()).await.expect_err("not known");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    RedisBackend::connect(RedisConfig::new(without_both)).await.expect("by default there are warnings only");
}
