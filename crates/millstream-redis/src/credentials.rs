//! User and password, and where they come from.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use std::{fmt, fs};

use async_trait::async_trait;
use millstream_core::error::{Error, ErrorKind, Result};

/// Source of the user and password of every connection.
///
/// It is asked when a connection is opened, and again when three quarters of the time are over for which its last answer
/// is [valid](Credentials::valid_until). Connections that are open log in again then, between two requests, and never
/// inside a transaction. A reader may wait on the server for
/// [`max_wait`](https://docs.rs/millstream-runtime/latest/millstream_runtime/struct.ConsumerConfig.html#structfield.max_wait)
/// (60 s by default) between two requests: credentials should be valid for four times that, or readers of idle partitions
/// are cut off and connect again.
///
/// ```
/// use std::time::Duration;
/// use async_trait::async_trait;
/// use millstream_core::Result;
/// use millstream_redis::{Credentials, CredentialsProvider, RedisConfig};
///
/// /// Signs a token for each quarter of an hour, as the servers of cloud providers want.
/// struct Tokens;
///
/// #[async_trait]
/// impl CredentialsProvider for Tokens {
///     async fn credentials(&self) -> Result<Credentials> {
///         let token = "what the provider's SDK returns";
///         Ok(Credentials::new("orders", token).valid_for(Duration::from_secs(900)))
///     }
/// }
///
/// let config = RedisConfig::new("rediss://cache.example.com").with_credentials(Tokens);
/// assert!(config.validate().is_ok());
/// ```
#[async_trait]
pub trait CredentialsProvider: Send + Sync {
    /// Returns the credentials of now. Called by one caller at a time.
    ///
    /// # Errors
    /// Opening a connection fails with them. Open connections stay as they are, and the provider is asked again.
    async fn credentials(&self) -> Result<Credentials>;
}

/// User and password. Neither `Debug` nor any error shows the password.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// User; `None` for the server's default user.
    pub user: Option<String>,
    /// Password or token.
    pub password: String,
    /// Time at which the server refuses them; `None` if they do not end by themselves. Default: `None`.
    pub valid_until: Option<SystemTime>,
}

impl Credentials {
    /// Creates credentials of a user. They do not end by themselves.
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: password.into(), valid_until: None }
    }

    /// Creates credentials of the server's default user. They do not end by themselves.
    #[must_use]
    pub fn password(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into(), valid_until: None }
    }

    /// Sets the time at which the server refuses them.
    #[must_use]
    pub fn valid_until(self, time: SystemTime) -> Self {
        Self { valid_until: Some(time), ..self }
    }

    /// Sets the time after which the server refuses them, counted from now.
    #[must_use]
    pub fn valid_for(self, time: Duration) -> Self {
        Self { valid_until: SystemTime::now().checked_add(time), ..self }
    }
}

/// Omits the password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("valid_until", &self.valid_until)
            .finish_non_exhaustive()
    }
}

/// The same credentials every time.
#[async_trait]
impl CredentialsProvider for Credentials {
    async fn credentials(&self) -> Result<Credentials> {
        Ok(self.clone())
    }
}

/// Password in a file, which is read whenever a connection is opened: as secrets are mounted into containers. Line breaks
/// at the end do not count.
#[derive(Clone, Debug)]
pub struct PasswordFile {
    user: Option<String>,
    path: PathBuf,
}

impl PasswordFile {
    /// Names the file. It is read later, and may change.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { user: None, path: path.into() }
    }

    /// Sets the user. Default: the server's default user.
    #[must_use]
    pub fn user(self, user: impl Into<String>) -> Self {
        Self { user: Some(user.into()), ..self }
    }
}

#[async_trait]
impl CredentialsProvider for PasswordFile {
    async fn credentials(&self) -> Result<Credentials> {
        // A small file on a local disk, as a rule in memory.
        let read = fs::read_to_string(&self.path);
        let text = read.map_err(|error| {
            let why = format!("the password file {} cannot be read: {error}", self.path.display());
            Error::new(ErrorKind::InvalidConfig, why)
        })?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() {
            let why = format!("the password file {} is empty", self.path.display());
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        let password = password.to_owned();
        Ok(Credentials { user: self.user.clone(), password, valid_until: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_read_each_time_and_its_line_break_does_not_count() {
        let path = std::env::temp_dir().join(format!("millstream-password-{}", fastrand::u64(..)));
        let file = PasswordFile::new(&path).user("ann");
        assert_eq!(file.credentials().await.expect_err("no file").kind(), ErrorKind::InvalidConfig);
        for (text, password) in [("hunter2\n", "hunter2"), (" two words \r\n", " two words ")] {
            std::fs::write(&path, text).expect("written");
            let read = file.credentials().await.expect("read");
            assert_eq!((read.user.as_deref(), &*read.password), (Some("ann"), password));
            assert!(!format!("{read:?}").contains(password), "{read:?}");
        }
        std::fs::write(&path, "\n").expect("written");
        assert_eq!(file.credentials().await.expect_err("empty").kind(), ErrorKind::InvalidConfig);
        std::fs::remove_file(&path).expect("removed");
    }
}
