//! Tables, and URLs.

use millstream_core::ErrorKind;

use crate::tests::postgres::shared_url;
use crate::tests::support::{Place, on_both, operation};
use crate::{Database, Dialect, migrate, migrations};

on_both!(a_second_run_changes_nothing, the_files_can_be_run_by_hand);

async fn a_second_run_changes_nothing(place: Place) {
    assert_eq!(migrate(&place.database).await.unwrap(), Vec::<u32>::new());
    let steps = i64::try_from(migrations(place.database.dialect()).len()).unwrap();
    assert_eq!(place.number("SELECT count(*) FROM millstream_migrations").await, steps);
}

/// Somebody who knows only the files runs them, and then again.
async fn the_files_can_be_run_by_hand(place: Place) {
    for step in migrations(place.database.dialect()) {
        let mut tx = place.database.begin().await.unwrap();
        crate::tests::support::run(&mut tx, step.sql).await;
        tx.commit().await.unwrap();
    }
    assert_eq!(place.inbox().look(&operation("a")).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_start_together_make_the_tables_once() {
    for place in [Place::postgres().await, Place::sqlite().await] {
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let database = place.database.clone();
                tokio::spawn(async move { migrate(&database).await })
            })
            .collect();
        let mut applied = Vec::new();
        for task in tasks {
            applied.extend(task.await.unwrap().unwrap());
        }
        let all: Vec<_> = migrations(place.database.dialect()).iter().map(|step| step.version).collect();
        assert_eq!(applied, all);
    }
}

#[tokio::test]
async fn without_tables_the_error_names_what_to_run() {
    for place in [Place::postgres().await, Place::sqlite().await] {
        let missing = place.inbox().look(&operation("a")).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(missing.to_string().contains("migrate"), "{missing}");
        assert!(std::error::Error::source(&missing).is_some(), "the error of the client");
    }
}

#[tokio::test]
async fn no_error_and_no_debug_has_a_password() {
    let server = tokio::task::spawn_blocking(shared_url).await.unwrap();
    let port = server.rsplit_once(':').unwrap().1.split('/').next().unwrap().to_owned();
    let urls = [
        (format!("postgres://nobody:geheim@127.0.0.1:{port}/postgres"), ErrorKind::Denied),
        (format!("postgres://millstream:geheim@127.0.0.1:{port}/nowhere"), ErrorKind::NotFound),
        ("postgres://millstream:geheim@127.0.0.1:1/postgres".to_owned(), ErrorKind::Unavailable),
        ("postgres://millstream:geheim@127.0.0.1:geheim/postgres".to_owned(), ErrorKind::InvalidConfig),
        ("postgres://millstream:geheim@127.0.0.1/x?sslmode=geheim".to_owned(), ErrorKind::InvalidConfig),
        ("geheim://millstream:geheim@127.0.0.1/postgres".to_owned(), ErrorKind::InvalidConfig),
        ("sqlite:/nowhere/geheim-is-no-secret-here.db".to_owned(), ErrorKind::NotFound),
    ];
    for (url, kind) in urls {
        let error = Database::connect(&url).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(!format!("{error} {error:?}").contains("geheim"), "{error:?}");
    }
    let url = format!("postgres://millstream:geheim@127.0.0.1:{port}/postgres");
    let database = Database::connect(&url).await.unwrap();
    let place = Place { database, ..Place::sqlite().await };
    let shown = format!("{:?} {:?}", place.database, place.inbox());
    assert!(shown.contains(&port) && !shown.contains("geheim"), "{shown}");
    assert_eq!(place.database.dialect(), Dialect::Postgres);
}
