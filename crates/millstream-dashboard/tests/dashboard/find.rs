//! What an operator looks for who has read nothing: it is named, and at most three links from the overview.

use axum::http::StatusCode;
use millstream::{Delivery, Outcome, Topic};
use millstream_dashboard::Access;

use super::place::eventually;
use super::support::Scene;

/// Follows links by their text, from the overview, and returns the last page.
async fn follow(scene: &Scene, texts: &[&str]) -> String {
    assert!(texts.len() <= 3, "{texts:?}");
    let mut path = "/overview".to_owned();
    let mut page = scene.get(&path).await;
    for text in texts {
        assert_eq!(page.status, StatusCode::OK, "{path}");
        let links = page.body.split("<a href=\"").skip(1).filter_map(|it| it.split_once("\">"));
        let named = links.filter(|(_, rest)| rest.split("</a>").next() == Some(*text)).map(|(link, _)| link);
        let link = named.into_iter().next().unwrap_or_else(|| panic!("no link {text}: {}", page.body));
        path = resolve(&path, &link.replace("&#38;", "&"));
        page = scene.get(&path).await;
    }
    assert_eq!(page.status, StatusCode::OK, "{path}: {}", page.body);
    page.body
}

/// Resolves a relative link, as a browser does.
fn resolve(page: &str, link: &str) -> String {
    let (link, query) =
        link.split_once('?').map_or((link, String::new()), |(it, query)| (it, format!("?{query}")));
    let mut path: Vec<&str> = page.split('?').next().unwrap_or_default().split('/').collect();
    path.pop();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.join("/") + &query
}

#[tokio::test]
async fn which_group_is_behind_and_since_when() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let (topic, later) = ("orders".parse().expect("a name"), "later".parse().expect("a name"));
    scene.mq.admin().create_group(&topic, &later, millstream::Start::Earliest).await.expect("created");
    let overview = follow(&scene, &[]).await;
    assert!(overview.contains("Backlog") && overview.contains("Oldest not settled"), "{overview}");
    let group = follow(&scene, &["later"]).await;
    let since = group.split("Behind since</dt>").nth(1).expect("a fact");
    let since = since.split("</dd>").next().unwrap_or_default();
    assert!(since.contains("<time datetime=\"20"), "{since}");
    let settled = follow(&scene, &["billing"]).await;
    let since = settled.split("Behind since</dt>").nth(1).and_then(|it| it.split("</dd>").next());
    assert!(since.is_some_and(|it| !it.contains("<time")), "nothing waits: {since:?}");
}

#[tokio::test]
async fn who_owns_a_partition_and_how_to_pause_a_group() {
    let scene = Scene::new(|| Access::operate("ann")).await;
    let orders = Topic::<bytes::Bytes>::raw("orders").partitions(2);
    let consumer = scene.mq.consumer(orders, "billing");
    let consumer = consumer.start(async |_: Delivery<bytes::Bytes>| Outcome::Ack).await.expect("started");
    let owned = async || {
        let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
        let owners = scene.mq.admin().owners(&topic, &group).await.expect("owners");
        owners.partitions.iter().all(|it| it.ownership.holder.is_some())
    };
    eventually("it owns both partitions", owned).await;
    let group = follow(&scene, &["orders", "Owners in billing"]).await;
    let partitions = group.find("<h2>Partitions</h2>").expect("the partitions");
    let row = group[partitions..].split("<tr>").nth(3).expect("the row of partition 1");
    assert!(row.contains(">1</td>") && row.contains(">owned</td>"), "{row}");
    let pause = group.find("Pause the group").expect("it can be paused");
    assert!(pause < partitions, "above the rows of all partitions");
    consumer.shutdown().await;
}
