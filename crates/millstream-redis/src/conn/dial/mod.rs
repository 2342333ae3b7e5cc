//! Opens connections. Every connection of the backend is dialled here, except those of the client's pool, which has none
//! over TLS.

pub(crate) mod sentinel;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind, Result};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo, RedisConnectionInfo,
    RedisError,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::address::{Address, Parsed, Place};
use crate::config::RedisConfig;
use crate::conn::dial::sentinel::Sentinels;
use crate::conn::login::Login;
use crate::conn::multiplexed::{Lost, Multiplexed, OnLost};
use crate::conn::socket::{Socket, check_primary};
use crate::conn::stream::first_words::Listening;
#[cfg(feature = "tls")]
use crate::conn::stream::tls::Tls;
use crate::conn::stream::{Stream, connect, tune};
use crate::conn::terms::{Tenure, Terms, over};
use crate::error::{Phase, translate};

/// How long refused credentials are asked for anew: a secret may be changed at the server and at its source one after the
/// other.
const CHANGING: Duration = Duration::from_secs(1);
/// Pause before the first time.
const PAUSE: Duration = Duration::from_millis(50);

/// Opens connections to one server: to one address, or to the primary that Sentinels name.
#[derive(Clone)]
pub(crate) struct Dial {
    /// Credentials, database and TCP settings, and the address unless there are Sentinels.
    info: ConnectionInfo,
    sentinels: Option<Arc<Sentinels>>,
    /// Source of the credentials, if it is not the URL.
    login: Option<Arc<Login>>,
    /// Changes when a node of a cluster is not a primary any more.
    node: Option<watch::Receiver<u64>>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    /// Name that the server's certificate must have, if it is not the host.
    #[cfg(feature = "tls")]
    name: Option<String>,
    connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
}

impl Dial {
    pub(crate) fn new(config: &RedisConfig) -> Result<(Self, Place)> {
        let Parsed { place, info } = config.parsed()?;
        #[cfg(feature = "tls")]
        let tls = match info.addr() {
            ConnectionAddr::Tcp(host, _) if config.is_encrypted() => {
                let tls = Tls::new(&config.tls.clone().unwrap_or_default())?;
                tls.check(host)?;
                Some(tls)
            }
            _ => None,
        };
        let mut dial = Self {
            info: tuned(info, config),
            sentinels: None,
            login: config.credentials.clone().map(|provider| Arc::new(Login::new(provider))),
            node: None,
            #[cfg(feature = "tls")]
            tls,
            #[cfg(feature = "tls")]
            name: None,
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
        };
        if let Place::Sentinel(addresses, service) = &place {
            let login = config.sentinel_credentials.clone().map(|provider| Arc::new(Login::new(provider)));
            let sentinel = Self { login, ..dial.anonymous() };
            let asks = addresses.iter().map(|address| Arc::new(sentinel.at(address, None)));
            dial.sentinels = Some(Arc::new(Sentinels::new(asks.collect(), service.clone())));
        }
        Ok((dial, place))
    }

    /// Returns the same without credentials and database.
    fn anonymous(&self) -> Self {
        let bare =
            redis::RedisConnectionInfo::default().set_lib_name("millstream", env!("CARGO_PKG_VERSION"));
        Self { info: self.info.clone().set_redis_settings(bare), ..self.clone() }
    }

    /// Returns the same for another server. `name` is that of its certificate, if it is not the host.
    pub(crate) fn at(&self, address: &Address, name: Option<&str>) -> Self {
        let addr = ConnectionAddr::Tcp(address.host.to_string(), address.port);
        #[cfg(not(feature = "tls"))]
        let _ = name;
        Self {
            info: self.info.clone().set_addr(addr),
            #[cfg(feature = "tls")]
            name: name.map(str::to_owned),
            ..self.clone()
        }
    }

    /// Returns the same, with connections that end when this number changes.
    pub(crate) fn until(self, node: watch::Receiver<u64>) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Whether a server's certificate is checked against its name.
    pub(crate) fn checks_names(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    /// Returns the address, if it is one of TCP and always the same.
    pub(crate) fn address(&self) -> Option<Address> {
        if self.sentinels.is_some() { None } else { Address::of(self.info.addr()) }
    }

    /// Returns what the client needs to open the same connections by itself; `None` if it cannot.
    pub(crate) fn plain(&self) -> Option<&ConnectionInfo> {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return None;
        }
        (self.sentinels.is_none() && self.login.is_none()).then_some(&self.info)
    }

    /// Opens a connection for a user with many requests, without the client's background task and parser.
    ///
    /// Boxed, as is everything that opens a connection: it is rare, and large.
    pub(crate) fn socket<'a>(&'a self, role: &'a str) -> BoxFuture<'a, Result<Socket>> {
        let checked = self.sentinels.is_some();
        Box::pin(self.within(move || async move {
            let (primary, settings, terms) = self.terms().await?;
            let opening = async {
                let stream = self.stream(primary.as_ref()).await?;
                Socket::open(stream, &settings, role, (checked, terms.clone())).await
            };
            let socket = while_primary(&terms, opening).await?;
            self.confirm(primary.as_ref()).await?;
            Ok(socket)
        }))
    }

    /// Opens a connection for a blocking command. It has no response timeout of its own: the caller sets one per
    /// request.
    pub(crate) async fn waiting(&self, role: &str) -> Result<Multiplexed> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let opening: BoxFuture<'_, _> = Box::pin(self.open(ProtocolVersion::RESP2, config, role, None));
        opening.await
    }

    /// Opens a connection for many callers. The flag is set as soon as it is cut.
    pub(crate) async fn shared(&self, role: &str) -> Result<(Multiplexed, Arc<AtomicBool>)> {
        self.telling(role, |_| {}).await
    }

    /// The same, and passes on what the server says without being asked, and at last `None`: the connection is lost.
    pub(crate) async fn telling(
        &self,
        role: &str,
        on_push: impl Fn(Option<&PushInfo>) + Send + Sync + 'static,
    ) -> Result<(Multiplexed, Arc<AtomicBool>)> {
        let lost = Lost::new(on_push);
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.response_timeout))
            .set_push_sender(lost.push_messages());
        let gone = lost.gone();
        // RESP3 reports a disconnection at once, also between two requests. So the next request opens a new connection
        // instead of failing.
        let opening: BoxFuture<'_, _> = Box::pin(self.open(ProtocolVersion::RESP3, config, role, Some(lost)));
        Ok((opening.await?, gone))
    }

    /// Opens a connection of the client's, over a stream of ours.
    async fn open(
        &self,
        protocol: ProtocolVersion,
        config: AsyncConnectionConfig,
        role: &str,
        lost: Option<Arc<dyn OnLost>>,
    ) -> Result<Multiplexed> {
        let mut name = redis::cmd("CLIENT");
        name.arg("SETNAME").arg(format!("millstream:{role}"));
        let failed = |error| translate(&error, Phase::Connecting);
        self.within(|| {
            let (name, config, lost) = (&name, config.clone(), lost.clone());
            async move {
                let (primary, settings, terms) = self.terms().await?;
                let settings = settings.set_protocol(protocol);
                let opening = async {
                    let stream = Listening::new(self.stream(primary.as_ref()).await?);
                    let (terms, first) = ((terms.clone(), self.response_timeout), stream.first.clone());
                    let opened = Multiplexed::open(stream, &settings, config, terms, lost).await;
                    let plain = !self.checks_names();
                    let mut connection = opened.map_err(|error| first.explain(error, plain))?;
                    // The reply is ignored: a user without the permission to set a name does without one.
                    let named = connection.send_packed_command(name).await;
                    named.map_err(|error| first.explain(failed(error), plain))?;
                    if self.sentinels.is_some() {
                        let role =
                            connection.send_packed_command(&redis::cmd("ROLE")).await.map_err(failed)?;
                        check_primary(role)?;
                    }
                    Ok(connection)
                };
                let connection = while_primary(&terms, opening).await?;
                self.confirm(primary.as_ref()).await?;
                Ok(connection)
            }
        })
        .await
    }

    /// Connects to a server: to the one that Sentinels name, or the only one. The caller limits the time.
    async fn stream(&self, primary: Option<&Address>) -> Result<Stream> {
        let cannot = |error: io::Error| translate(&RedisError::from(error), Phase::Connecting);
        let (host, port) = match (primary, self.info.addr()) {
            (Some(primary), _) => (&*primary.host, primary.port),
            (None, ConnectionAddr::Tcp(host, port)) => (&**host, *port),
            #[cfg(unix)]
            (None, ConnectionAddr::Unix(path)) => {
                return Ok(Stream::Unix(tokio::net::UnixStream::connect(path).await.map_err(cannot)?));
            }
            (None, other) => {
                return Err(Error::new(ErrorKind::InvalidConfig, format!("{other} cannot be connected to")));
            }
        };
        let stream = connect(host, port).await.map_err(cannot)?;
        tune(&stream, self.info.tcp_settings()).map_err(cannot)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let name = self.name.as_deref().unwrap_or(host);
            return Ok(Stream::Tls(Box::new(tls.handshake(stream, name).await.map_err(cannot)?)));
        }
        Ok(Stream::Tcp(stream))
    }

    /// Opens a connection in time. With refused credentials it tries again for [`CHANGING`], if they may have changed.
    async fn within<T, F: Future<Output = Result<T>>>(&self, open: impl Fn() -> F) -> Result<T> {
        let opening = async {
            let Some(login) = &self.login else { return open().await };
            let (begun, mut pause) = (Instant::now(), PAUSE);
            loop {
                let opened = open().await;
                let denied = opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::Denied);
                if !denied || begun.elapsed() >= CHANGING {
                    return opened;
                }
                login.refused();
                sleep(pause).await;
                pause *= 2;
            }
        };
        timeout(self.connect_timeout, opening).await.unwrap_or_else(|_| {
            let why =
                format!("the server cannot be reached: no connection within {:?}", self.connect_timeout);
            Err(Error::new(ErrorKind::Unavailable, why))
        })
    }

    /// Checks that Sentinels still name a server.
    async fn confirm(&self, primary: Option<&Address>) -> Result<()> {
        match (&self.sentinels, primary) {
            (Some(sentinels), Some(primary)) => sentinels.confirm(primary).await,
            _ => Ok(()),
        }
    }

    /// Returns the primary that Sentinels name, the settings of a connection with its credentials, and what it depends on.
    async fn terms(&self) -> Result<(Option<Address>, RedisConnectionInfo, Terms)> {
        let mut settings = self.info.redis_settings().clone();
        let mut session = None;
        if let Some(login) = &self.login {
            let (credentials, of_login) = login.credentials().await?;
            settings = settings.set_password(&credentials.password);
            if let Some(user) = &credentials.user {
                settings = settings.set_username(user);
            }
            session = Some(of_login);
        }
        let (primary, tenure) = match &self.sentinels {
            Some(sentinels) => {
                sentinels.watch();
                let (primary, tenure) = sentinels.primary_and_tenure().await?;
                (Some(primary), Some(tenure))
            }
            None => (None, self.node.clone().map(Tenure::new)),
        };
        Ok((primary, settings, Terms { tenure, session }))
    }
}

/// Opens a connection, as long as its server is the primary.
async fn while_primary<T>(terms: &Terms, opening: impl Future<Output = Result<T>>) -> Result<T> {
    let mut tenure = terms.tenure.clone();
    tokio::select! {
        biased;
        opened = opening => opened,
        () = over(&mut tenure) => {
            let why = "the server cannot be reached: another one has become the primary";
            Err(Error::new(ErrorKind::Unavailable, why))
        }
    }
}

/// Returns the settings with those that apply to every connection of the backend.
fn tuned(info: ConnectionInfo, config: &RedisConfig) -> ConnectionInfo {
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    // Ends a connection when sent data was not acknowledged for this long, since a peer may vanish without closing it.
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(config.connect_timeout + config.response_timeout);
    let settings = info.redis_settings().clone().set_lib_name("millstream", env!("CARGO_PKG_VERSION"));
    info.set_tcp_settings(tcp).set_redis_settings(settings)
}
