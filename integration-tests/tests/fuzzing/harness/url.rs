//! URLs and configurations: any text is a configuration or an error, and no password is shown.
//!
//! Input: a scheme, timeouts and a pool size, then texts with a line break between: what stands around a password in a
//! URL.

use std::time::Duration;

use millstream_core::error::ErrorKind;
use millstream_redis::{RedisConfig, fuzzing};

use super::Input;

const SCHEMES: [&str; 16] = [
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "redis+unix",
    "valkey+unix",
    "redis+cluster",
    "valkey+cluster",
    "redis+cluster+tls",
    "valkey+cluster+tls",
    "redis+sentinel",
    "valkey+sentinel",
    "redis+sentinel+tls",
    "valkey+sentinel+tls",
    "http",
];

/// The first and the last part of a password: neither may be shown, whatever stands between.
const SECRETS: [&str; 2] = ["hunter2", "swordfish"];

pub(crate) fn check(input: &[u8]) {
    let mut input = Input(input);
    let scheme = SCHEMES[usize::from(input.byte()) % SCHEMES.len()];
    let timeouts = [0; 2].map(|_| Duration::from_micros(input.number()));
    let pool_size = usize::from(input.byte());
    let text = String::from_utf8_lossy(input.0);
    let mut texts = text.split('\n');
    let mut next = || texts.next().unwrap_or_default();
    let (user, between, host, rest) = (next(), next(), next(), next());
    let [first, last] = SECRETS;
    // A text that has the word itself may show it elsewhere.
    let secrets = if SECRETS.iter().any(|secret| text.contains(secret)) { &[][..] } else { &SECRETS };
    let urls = [
        text.to_string(),
        format!("{scheme}://{text}"),
        format!("{scheme}://{user}:{first}{between}{last}@{host}/{rest}"),
        format!("{scheme}://{host}/{rest}?user={user}&pass={first}{between}{last}"),
        format!("{scheme}://{host}?pass={first}{between}{last}&{rest}"),
        format!("{user}:{first}{between}{last}@{host}"),
    ];
    for url in urls {
        let config =
            RedisConfig::new(&url).with_connect_timeout(timeouts[0]).with_response_timeout(timeouts[1]);
        shown(&config.with_pool_size(pool_size), &url, secrets);
        let _ = fuzzing::is_encrypted(&url);
    }
    if let Some(address) = fuzzing::address(&text) {
        // As it is shown, it is parsed again.
        assert_eq!(fuzzing::address(&address).as_deref(), Some(address.as_str()), "{text:?}");
    }
}

fn shown(config: &RedisConfig, url: &str, secrets: &[&str]) {
    let mut shown = vec![format!("{config:?}"), fuzzing::redacted(url)];
    if let Err(error) = config.validate() {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url:?}: {error}");
        shown.extend([error.to_string(), format!("{error:?}")]);
    }
    for text in shown {
        for secret in secrets {
            assert!(!text.contains(secret), "{url:?} is shown as {text}");
        }
    }
}
