//! TLS: every kind of connection, and every reason to refuse one.

use std::time::Duration;

use integration_tests::cluster::Cluster;
use integration_tests::equipment::certificates::{Authority, Signed, files, self_signed};
use integration_tests::server::Server;
use millstream::{Delivery, ErrorKind, Millstream, Record, TlsConfig, Topic};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, date_time_ymd};

use crate::load::{Load, log};

const JOBS: Topic<u64> = Topic::new("jobs").partitions(2);

/// Starts a server with TLS on another port, and returns its URL there.
fn server(authority: &Authority, signed: &Signed, clients: &str) -> (Server, String) {
    let folder = files(authority, signed);
    let server = Server::builder()
        .tls(folder.path())
        .arg("--tls-auth-clients", clients)
        // Such a server refuses sessions that are resumed.
        .arg("--tls-session-caching", "no")
        .start();
    // The server has read them.
    let url = format!("rediss://localhost:{}", server.tls_port().expect("a port with TLS"));
    (server, url)
}

async fn refused(url: &str, tls: TlsConfig) -> (ErrorKind, String) {
    let error = Millstream::at(url).tls(tls).await.expect_err("refused");
    (error.kind(), error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_connection_is_encrypted() {
    let authority = Authority::new();
    // Nobody else can use the plain port: what works, works over TLS.
    let (server, url) = server(&authority, &authority.sign("localhost", |_| {}), "no");
    let mq = Millstream::at(&url).tls(TlsConfig::new().with_ca(authority.pem())).await.expect("connected");
    let producer = mq.producer(JOBS).await.expect("a producer");
    let consumer = mq.consumer(JOBS, "g").start(|delivery: Delivery<u64>| async move {
        if delivery.payload == 1 && delivery.attempt() == 1 { Err("once") } else { Ok(()) }
    });
    let consumer = consumer.await.expect("started");
    for number in 0..200 {
        producer.send(&number).await.expect("sent");
    }
    let many: Vec<u64> = (200..2_000).collect();
    assert!(producer.send_all(many.iter().map(Record::new)).await.iter().all(Result::is_ok));
    let handled = || consumer.report().acked == 2_000;
    integration_tests::eventually(async || handled(), "all is handled").await;
    let lag = mq.admin().topic(&"jobs".parse().expect("a name")).await.expect("described");
    drop(lag);
    let mut plain =
        redis::Client::open(server.url()).expect("a client").get_connection().expect("a connection");
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut plain).expect("listed");
    let ours: Vec<&str> = clients.lines().filter(|line| line.contains("name=millstream:")).collect();
    let port = url.rsplit(':').next().expect("a port");
    for role in ["messages", "leases", "reader", "producer"] {
        let of_role: Vec<_> =
            ours.iter().filter(|line| line.contains(&format!("name=millstream:{role}"))).collect();
        assert!(!of_role.is_empty(), "{role}: {clients}");
    }
    let to_port = |line: &&str| {
        line.contains(&format!("laddr=127.0.0.1:{port} ")) || line.contains(&format!("]:{port} "))
    };
    assert!(ours.iter().all(to_port), "{clients}");
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.retried, report.dead), (2_000, 1, 0));
}

/// A server that is away for longer than many attempts to connect: nobody gives up, and no attempt of a message is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_away_is_found_again_over_tls() {
    let authority = Authority::new();
    // It reads its files again when it comes back.
    let folder = files(&authority, &authority.sign("localhost", |_| {}));
    let mut server = Server::builder().appendonly(true).tls(folder.path()).start();
    let url = format!("rediss://localhost:{}", server.tls_port().expect("a port with TLS"));
    let mq = Millstream::at(&url).tls(TlsConfig::new().with_ca(authority.pem())).await.expect("connected");
    let patient = mq.producer(JOBS).await.expect("a producer");
    let hasty = mq.producer(JOBS).delivery_timeout(Duration::from_millis(700)).await.expect("a producer");
    let consumer = mq.consumer(JOBS, "g").start(|delivery: Delivery<u64>| async move {
        if delivery.attempt() == 1 { Ok(()) } else { Err("a second attempt") }
    });
    let consumer = consumer.await.expect("started");
    for number in 0..20 {
        patient.send(&number).await.expect("sent");
    }
    server.kill();
    let mut unconfirmed = 0;
    for number in 20..24 {
        let error = hasty.send(&number).await.expect_err("nobody is there");
        let kinds = [ErrorKind::Unavailable, ErrorKind::Unconfirmed];
        assert!(kinds.contains(&error.kind()), "{error}");
        unconfirmed += u64::from(error.kind() == ErrorKind::Unconfirmed);
    }
    server.restart();
    for number in 24..44 {
        patient.send(&number).await.expect("sent");
    }
    integration_tests::eventually(async || consumer.report().acked >= 40, "all is handled").await;
    let report = consumer.shutdown().await;
    assert!((40..=40 + unconfirmed).contains(&report.acked), "{report:?}");
    assert_eq!((report.retried, report.dead), (0, 0));
}

#[tokio::test]
async fn a_server_name_stands_for_the_host_of_the_address() {
    let ours = Authority::new();
    let (_server, url) = server(&ours, &ours.sign("queue.internal", |_| {}), "no");
    let url = url.replace("localhost", "127.0.0.1");
    let named = |name: &str| TlsConfig::new().with_ca(ours.pem()).with_server_name(name);
    let mq = Millstream::at(&url).tls(named("queue.internal")).await.expect("connected");
    mq.producer(JOBS).await.expect("a producer").send(&1).await.expect("sent");
    let (kind, text) = refused(&url, named("another.internal")).await;
    assert!(kind == ErrorKind::Denied && text.contains("not valid for"), "{text}");
    let (kind, text) = refused(&url, named("no name")).await;
    assert!(kind == ErrorKind::InvalidConfig, "{text}");
}

/// The nodes of a cluster are named by their IP addresses: certificates have to be valid for these, or the client names them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_followed_over_tls() {
    let ours = Authority::new();
    for (name, by_name) in [("127.0.0.1", false), ("queue.internal", true)] {
        let folder = files(&ours, &ours.sign(name, |_| {}));
        let path = folder.path().to_owned();
        let replicas = usize::from(by_name);
        let start = move || Cluster::start_tls(3, replicas, &path, |builder| builder);
        let mut cluster = tokio::task::spawn_blocking(start).await.expect("a cluster");
        let trusted = TlsConfig::new().with_ca(ours.pem());
        let tls = if by_name { trusted.with_server_name(name) } else { trusted };
        let mq = Millstream::at(cluster.tls_url()).tls(tls).await.expect("connected");
        let load = Load::on(mq).await;
        load.goes_on("messages of all keys").await;
        let mut lost = Vec::new();
        tokio::task::block_in_place(|| {
            let slot = cluster.slot(&log(0));
            let owner = cluster.owner(slot).expect("an owner");
            cluster.migrate(slot, (owner + 1) % 3, || {});
            if by_name {
                let (primary, replica) = cluster.pairs(3)[0];
                cluster.nodes[primary].kill();
                lost.push(std::time::Instant::now());
                cluster.wait_primary(replica);
            }
        });
        load.goes_on("messages of all keys, after a slot has moved or a primary has died").await;
        for node in cluster.nodes.iter().filter(|node| node.is_running()) {
            let plain: Vec<_> = node
                .cli(&["CLIENT", "LIST"])
                .lines()
                .filter(|line| {
                    line.contains("name=millstream:") && line.contains(&format!(":{} ", node.port()))
                })
                .map(str::to_owned)
                .collect();
            assert!(plain.is_empty(), "without TLS: {plain:?}");
        }
        load.end(&lost, |log| {
            let owner = cluster.owner(cluster.slot(log)).expect("an owner");
            cluster.nodes[owner].cli(&["XRANGE", log, "-", "+"])
        })
        .await;
    }
}

#[tokio::test]
async fn what_is_not_trusted_is_refused_with_the_reason() {
    let (ours, other) = (Authority::new(), Authority::new());
    let trusted = || TlsConfig::new().with_ca(ours.pem());
    let (_server, url) = server(&ours, &ours.sign("localhost", |_| {}), "no");
    let (kind, text) = refused(&url, TlsConfig::new().with_ca(other.pem())).await;
    assert!(kind == ErrorKind::Denied && text.contains("not trusted"), "{text}");
    let (kind, text) = refused(&url.replace("localhost", "127.0.0.1"), trusted()).await;
    assert!(kind == ErrorKind::Denied && text.contains("not valid for"), "{text}");
    let (kind, text) = refused(&url, TlsConfig::new().with_ca("no certificate")).await;
    assert!(kind == ErrorKind::InvalidConfig && text.contains("ca"), "{text}");
    let (kind, text) = refused(&format!("{url}/#insecure"), trusted()).await;
    assert!(kind == ErrorKind::InvalidConfig && text.contains("always checked"), "{text}");
    let (plain, _) = server(&ours, &ours.sign("localhost", |_| {}), "no");
    let (kind, text) = refused(&plain.url(), trusted()).await;
    assert!(kind == ErrorKind::InvalidConfig && text.contains("rediss://"), "{text}");
}

type Change = fn(&mut CertificateParams);

/// In the past, or in the future.
const PAST: Change = |params| {
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
};
const FUTURE: Change = |params| {
    (params.not_before, params.not_after) = (date_time_ymd(2120, 1, 1), date_time_ymd(2121, 1, 1));
};
const FOR_CLIENTS: Change = |params| params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
const NO_NAMES: Change = |params| params.subject_alt_names.clear();
const AS_IS: Change = |_| {};

#[tokio::test]
async fn each_certificate_that_is_refused_is_told_with_the_cause_and_the_cure() {
    let (ours, other) = (Authority::new(), Authority::new());
    let (from_ours, from_other) = (ours.pem(), other.pem());
    let cases: [(&str, Change, &str, &str); 6] = [
        ("localhost", PAST, &from_ours, "it has expired: renew it"),
        ("localhost", FUTURE, &from_ours, "not valid yet: set the clocks"),
        ("another.internal", AS_IS, &from_ours, "or --tls-server-name"),
        ("localhost", NO_NAMES, &from_ours, "a common name does not count"),
        ("localhost", AS_IS, &from_other, "or --tls-ca"),
        ("localhost", FOR_CLIENTS, &from_ours, "not made for servers"),
    ];
    for (name, change, ca, cure) in cases {
        let (_server, url) = server(&ours, &ours.sign(name, change), "no");
        let (kind, text) = refused(&url, TlsConfig::new().with_ca(ca)).await;
        assert_eq!(kind, ErrorKind::Denied, "{cure}: {text}");
        assert!(text.contains("certificate is not trusted: ") && text.contains(cure), "{cure}: {text}");
    }
}

/// As OpenSSL takes it: what `openssl req -x509` makes is the server's certificate and its own CA.
#[tokio::test]
async fn a_self_signed_certificate_is_trusted_if_exactly_it_is_given() {
    let ours = Authority::new();
    let no_ca: Change = |params| params.is_ca = IsCa::NoCa;
    for (what, change) in [("marked as a CA", AS_IS), ("not marked", no_ca)] {
        let signed = self_signed("localhost", change);
        let (_server, url) = server(&ours, &signed, "no");
        // Alone, or among others.
        for ca in [signed.certificate.clone(), format!("{}{}", ours.pem(), signed.certificate)] {
            let mq = Millstream::at(&url).tls(TlsConfig::new().with_ca(ca)).await.expect(what);
            mq.producer(JOBS).await.expect("a producer").send(&1).await.expect("sent");
        }
    }
    let cases: [(&str, Change, &str); 4] = [
        ("localhost", PAST, "it has expired: renew it"),
        ("localhost", FUTURE, "not valid yet"),
        ("another.internal", AS_IS, "it has another name"),
        ("localhost", NO_NAMES, "it has another name"),
    ];
    for (name, change, cure) in cases {
        let signed = self_signed(name, change);
        let (_server, url) = server(&ours, &signed, "no");
        let (kind, text) = refused(&url, TlsConfig::new().with_ca(signed.certificate)).await;
        assert!(kind == ErrorKind::Denied && text.contains(cure), "{cure}: {text}");
    }
    // Another one of the same name, and none at all.
    let (_server, url) = server(&ours, &self_signed("localhost", AS_IS), "no");
    let twin = self_signed("localhost", AS_IS).certificate;
    for tls in [TlsConfig::new().with_ca(twin), TlsConfig::new().with_ca(ours.pem())] {
        let (kind, text) = refused(&url, tls).await;
        assert!(kind == ErrorKind::Denied && text.contains("name exactly this one by"), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_it() {
    let (ours, other) = (Authority::new(), Authority::new());
    let (_server, url) = server(&ours, &ours.sign("localhost", |_| {}), "yes");
    let tls = || TlsConfig::new().with_ca(ours.pem());
    let with = |signed: Signed| tls().with_client(signed.certificate, signed.key);
    let mq = Millstream::at(&url).tls(with(ours.sign("client", |_| {}))).await.expect("connected");
    let producer = mq.producer(JOBS).await.expect("a producer");
    for number in 0..20 {
        producer.send(&number).await.expect("sent");
        // Each opens a connection of its own.
        let topics = mq.admin().topics().await.expect("listed");
        assert_eq!(topics.len(), 1);
    }
    let (past, future) = (ours.sign("client", PAST), ours.sign("client", FUTURE));
    for tls in [tls(), with(other.sign("client", AS_IS)), with(past), with(future)] {
        // The session is refused after the client takes it for open, and the server hangs up: whatever comes first, the error has the reason.
        for _ in 0..20 {
            let (kind, text) = refused(&url, tls.clone()).await;
            let told = text.contains("refuses the TLS session") && text.contains("client certificate");
            assert!(kind == ErrorKind::Denied && told, "{text}");
        }
    }
}

#[tokio::test]
async fn no_error_quotes_a_key() {
    let ours = Authority::new();
    let good = ours.sign("client", |_| {});
    let keys = [
        "-----BEGIN PRIVATE KEY-----\\nhunter2\\n-----END PRIVATE KEY-----\\n",
        "-----BEGIN PRIVATE KEY----- hunter2 -----END PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2!\n-----END PRIVATE KEY-----\n",
        "hunter2",
    ];
    // As a parser quotes bytes.
    let quoted = format!("{:?}", b"hunter2");
    let quoted = quoted.trim_matches(['[', ']']);
    for key in keys {
        let tls = || TlsConfig::new().with_ca(ours.pem());
        let wrong =
            [tls().with_client(good.certificate.clone(), key), tls().with_client(key, good.key.clone())];
        for tls in wrong.into_iter().chain([TlsConfig::new().with_ca(key)]) {
            let (kind, text) = refused("rediss://localhost:1", tls).await;
            assert_eq!(kind, ErrorKind::InvalidConfig, "{text}");
            assert!(!text.contains("hunter2") && !text.contains(quoted), "{text}");
        }
    }
    let named = TlsConfig::new().with_ca(ours.pem());
    assert_eq!(refused("memory://", named).await.0, ErrorKind::InvalidConfig, "there is nothing to encrypt");
}
