//! What holds for every route, whatever it does.

use axum::http::{Request, StatusCode};
use millstream::Millstream;
use millstream_dashboard::{Access, Permission, dashboard, routes};

use super::place::{NASTY, TURNED, forge};
use super::support::{Answer, Scene, ask};

/// Pages, which are HTML, with what they need in their query.
pub(crate) fn pages(scene: &Scene) -> Vec<(&'static str, String)> {
    let other = ["/", "/assets/{name}", "/actions/{id}"];
    let is_page =
        |path: &&str| !other.contains(path) && !path.ends_with("/payload") && !path.ends_with("/export");
    let gets = routes().filter(|route| route.method == "GET").map(|route| route.path);
    gets.filter(is_page).map(|path| (path, scene.place.with_query(path))).collect()
}

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers.get(name).and_then(|it| it.to_str().ok()).unwrap_or_default()
}

#[tokio::test]
async fn every_page_escapes_what_is_hostile() {
    let mut scene = Scene::unsound(|| Access::admin(NASTY)).await;
    scene.act().await;
    scene.ended(scene.post("/topics/orders/verify", &[]).await).await;
    let mut all = pages(&scene);
    all.push(("/actions/{id}", scene.place.path("/actions/{id}")));
    all.push((
        "list",
        "/topics/orders/groups/billing/dead/list?error=%3Cscript%3E%22%3E%3Cimg%20onerror".into(),
    ));
    all.push(("retries", "/topics/orders/groups/waiting/retries".into()));
    all.push(("missing", "/topics/no%22%3E%3Cscript%3E".into()));
    all.extend(forge(&scene.mq).await.into_iter().map(|path| ("forged", path)));
    let mut shown = 0;
    for (route, path) in &all {
        let answer = scene.get(path).await;
        let may_be_refused = ["missing", "forged"].contains(route) && answer.status.is_client_error();
        assert!(answer.status == StatusCode::OK || may_be_refused, "{path}: {answer:?}");
        let body = &answer.body;
        assert_eq!(header(&answer, "content-type"), "text/html; charset=utf-8", "{path}");
        for bad in ["<script>window", "<img", "onerror=\"", "\u{202e}", "\u{1b}", "\u{7}"] {
            // A field has a value as it was typed: only there it is not shown as an escape.
            let is_field = |line: &str| line.contains("<input") || line.contains("</textarea>");
            let found = body.lines().find(|line| line.contains(bad) && !is_field(line));
            assert_eq!(found, None, "{path}: {bad:?}");
        }
        assert!(!body.contains("<script>") && !body.contains("\"><img"), "{path}");
        // The one script has an address, and no element has a style or a handler of its own.
        assert_eq!(body.matches("<script").count(), 1, "{path}");
        assert!(
            !body.contains(" style=") && !body.contains(" onclick=") && !body.contains("<style"),
            "{path}"
        );
        shown += usize::from(body.contains("&#60;script&#62;") || body.contains("&lt;script&gt;"));
    }
    let verified = scene.get("/topics/orders/verify").await.body;
    assert!(verified.contains("note_stray") && verified.contains("turned\\u{202e}"), "{verified}");
    // Each of these shows a text that was forged, so the test has seen it.
    for (path, words) in [
        ("/topics/orders/groups/held", "turned"),
        ("/topics/orders/groups/shared/pending", "turned"),
        ("/topics/orders/schedules", "of-a-later-version"),
        ("/locks", "nightly"),
        ("/audit", "asked to stop"),
    ] {
        let body = scene.get(path).await.body;
        assert!(body.contains(words) && body.contains("&#60;script&#62;"), "{path}: {body}");
    }
    assert!(shown > 12, "what is hostile is shown on {shown} pages, so the test has seen it");
}

#[tokio::test]
async fn every_answer_has_the_policy_and_no_cookie() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    for route in routes() {
        let path = scene.place.with_query(route.path);
        let answer =
            if route.method == "GET" { scene.get(&path).await } else { scene.post(&path, &[]).await };
        let policy = header(&answer, "content-security-policy");
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert!(
            !policy.contains("unsafe") && !policy.contains("http:") && !policy.contains('*'),
            "{path}: {policy}"
        );
        assert_eq!(header(&answer, "x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header(&answer, "cache-control"), "no-store", "{path}");
        assert!(!answer.headers.contains_key("set-cookie"), "{path}");
        assert!(
            !answer.body.contains("http://") && !answer.body.contains("https://"),
            "{path}: another host"
        );
    }
}

#[tokio::test]
async fn who_may_only_read_changes_nothing() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let mut changes = 0;
    for route in routes() {
        let path = scene.place.with_query(route.path);
        let answer =
            if route.method == "GET" { scene.get(&path).await } else { scene.post(&path, &[]).await };
        let (is_change, is_read) = (route.method != "GET", route.needs == Permission::Read);
        if route.path.starts_with("/actions") {
            // There is no action to look at, since none can be begun.
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        } else if is_change || !is_read {
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{} {path}: {}", route.method, answer.body);
        } else {
            assert!(
                answer.status.is_success() || answer.status.is_redirection() || path.contains("assets"),
                "{path}"
            );
            assert!(!answer.body.contains("method=\"post\""), "{path}: it offers what is refused");
        }
        changes += usize::from(is_change);
    }
    assert!(changes > 15, "{changes} routes change something");
}

#[tokio::test]
async fn every_change_needs_the_right_of_its_route() {
    for route in routes().filter(|route| route.method != "GET") {
        assert!(route.needs >= Permission::Operate, "{}", route.path);
    }
    let losing = [
        "purge", "cancel", "close", "kill", "reset", "release", "edit", "alter", "expand", "delete", "repair",
    ];
    for route in routes().filter(|route| losing.iter().any(|word| route.path.ends_with(word))) {
        let is_stop = route.path == "/actions/{id}/cancel";
        assert_eq!(route.needs == Permission::Admin, !is_stop, "{} may lose messages", route.path);
    }
    let scene = Scene::new(|| Access::operate("ann")).await;
    for route in routes().filter(|route| route.needs == Permission::Admin) {
        let path = scene.place.with_query(route.path);
        let answer =
            if route.method == "GET" { scene.get(&path).await } else { scene.post(&path, &[]).await };
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
    }
}

#[tokio::test]
async fn other_sites_change_nothing() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    for route in routes().filter(|route| route.method != "GET") {
        let path = scene.place.path(route.path);
        let request = || Request::post(&path).header("content-type", "application/x-www-form-urlencoded");
        let forged = [
            request().header("sec-fetch-site", "cross-site"),
            request().header("sec-fetch-site", "same-site"),
            request().header("host", "mq.example").header("origin", "https://evil.example"),
            request().header("host", "mq.example").header("origin", "null"),
            request(),
        ];
        for request in forged {
            let answer = ask(&scene.router, request).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
        }
    }
    let actions = scene.get("/audit").await;
    assert!(actions.body.contains("Nothing was changed yet"), "{actions:?}");
}

#[tokio::test]
async fn other_methods_change_nothing() {
    let mut scene = Scene::new(|| Access::admin("ann")).await;
    scene.act().await;
    for route in routes() {
        let path = scene.place.path(route.path);
        for method in ["PUT", "DELETE", "PATCH"] {
            let request =
                Request::builder().method(method).uri(&path).header("sec-fetch-site", "same-origin");
            let answer = ask(&scene.router, request).await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_topic_that_is_hidden_is_not_found_anywhere() {
    let topic = || "orders".parse().expect("a name");
    let scene = Scene::new(move || Access::admin("ann").topic(topic(), None)).await;
    scene.mq.producer(millstream::Topic::<u64>::new("mails")).await.expect("a topic");
    for route in routes().filter(|route| route.path.starts_with("/topics/")) {
        let path = scene.place.with_query(route.path);
        let answer =
            if route.method == "GET" { scene.get(&path).await } else { scene.post(&path, &[]).await };
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
    }
    for path in ["/overview", "/schedules", "/audit"] {
        let answer = scene.get(path).await;
        assert!(
            answer.status == StatusCode::OK && !answer.body.contains("orders"),
            "{path}: {}",
            answer.body
        );
    }
    assert!(scene.get("/overview").await.body.contains("mails"));
    let only = Scene::new(move || Access::none("bob").topic(topic(), Some(Permission::Operate))).await;
    assert_eq!(only.get("/topics/orders").await.status, StatusCode::OK);
    for path in ["/queues", "/locks", "/redis", "/queues/mails"] {
        assert_eq!(only.get(path).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(only.post("/topics/orders/groups/billing/pause", &[]).await.status, StatusCode::SEE_OTHER);
    let nobody = Scene::new(|| Access::none("eve")).await;
    for route in routes().filter(|route| route.method == "GET" && !route.path.starts_with("/assets")) {
        let answer = nobody.get(&nobody.place.with_query(route.path)).await;
        assert!(
            answer.status == StatusCode::FORBIDDEN || route.path.starts_with("/actions"),
            "{}",
            route.path
        );
    }
}

#[tokio::test]
async fn links_hold_under_any_prefix() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let nested = axum::Router::new().nest("/admin/mq", scene.router.clone());
    let root = ask(&nested, Request::get("/admin/mq")).await;
    assert_eq!((root.status, root.location()), (StatusCode::SEE_OTHER, "mq/overview"));
    let root = ask(&scene.router, Request::get("/")).await;
    assert_eq!(root.location(), "overview");
    // With a slash at its end the path is not one of `nest`, but one of `nest_service`.
    let service = axum::Router::new().nest_service("/admin/mq", scene.router.clone());
    for (path, to) in [("/admin/mq/", "overview"), ("/admin/mq", "mq/overview")] {
        let root = ask(&service, Request::get(path)).await;
        assert_eq!((root.status, root.location()), (StatusCode::SEE_OTHER, to), "{path}");
        assert_eq!(resolve(path, to), "/admin/mq/overview");
    }
    let mut checked = 0;
    for (_, path) in pages(&scene) {
        let answer = ask(&nested, Request::get(format!("/admin/mq{path}"))).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        let same = ask(&service, Request::get(format!("/admin/mq{path}"))).await;
        assert_eq!(same.status, StatusCode::OK, "{path}");
        for link in answer.body.split(" href=\"").skip(1).chain(answer.body.split(" src=\"").skip(1)) {
            let link = link.split('"').next().unwrap_or_default();
            if link.starts_with('#') || link.starts_with("data:") {
                continue;
            }
            let to = resolve(&format!("/admin/mq{path}"), link);
            assert!(to.starts_with("/admin/mq/"), "{path}: {link} leads to {to}");
            checked += 1;
            if link.contains("assets") {
                assert_eq!(ask(&nested, Request::get(&to)).await.status, StatusCode::OK, "{to}");
            }
        }
    }
    assert!(checked > 300, "{checked} links");
}

/// Resolves a relative link, as a browser does.
fn resolve(page: &str, link: &str) -> String {
    let page = page.split('?').next().unwrap_or_default();
    let mut path: Vec<&str> = page.split('/').collect();
    path.pop();
    for part in link.split('?').next().unwrap_or_default().split('/') {
        match part {
            "." => {}
            ".." => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.join("/")
}

#[tokio::test]
async fn every_link_leads_to_a_page() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let (mut queue, mut seen) = (vec!["/overview".to_owned()], std::collections::BTreeSet::new());
    while let Some(path) = queue.pop() {
        if !seen.insert(path.clone()) || seen.len() > 400 {
            continue;
        }
        let answer = scene.get(&path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
        if !header(&answer, "content-type").starts_with("text/html") {
            continue;
        }
        for link in answer.body.split(" href=\"").skip(1) {
            let link = link.split('"').next().unwrap_or_default().replace("&#38;", "&").replace("&amp;", "&");
            // An order of each column leads to the same page.
            if !link.starts_with('#') && !link.starts_with("data:") && !link.contains("sort=") {
                let query = link.split_once('?').map(|(_, query)| format!("?{query}")).unwrap_or_default();
                queue.push(resolve(&path, &link) + &query);
            }
        }
    }
    for needed in [
        "/topics/orders/groups/billing/dead",
        "/topics/orders/batches",
        "/limits",
        "/locks",
        "/queues/mails/schedules",
        "/redis",
    ] {
        assert!(seen.contains(needed), "{needed} is not linked: {seen:?}");
    }
    assert!(seen.iter().any(|path| path.contains("/dead/0/")), "no letter is linked: {seen:?}");
    assert!(!TURNED.is_empty() && seen.iter().any(|path| path.contains("/task?id=turned")), "{seen:?}");
}

#[tokio::test]
async fn without_authentication_only_this_machine_is_answered() {
    use axum::extract::ConnectInfo;
    use std::net::SocketAddr;
    let mq = Millstream::connect("memory://").await.expect("a queue");
    let router = dashboard(mq.clone()).router();
    let from = |peer: &str, host: &str| {
        let peer: SocketAddr = peer.parse().expect("an address");
        Request::get("/overview").header("host", host).extension(ConnectInfo(peer))
    };
    assert_eq!(ask(&router, from("127.0.0.1:9", "localhost:9465")).await.status, StatusCode::OK);
    let far = ask(&router, from("10.0.0.9:9", "localhost:9465")).await;
    assert_eq!(far.status, StatusCode::FORBIDDEN);
    assert!(far.body.contains("no authentication is configured"), "{}", far.body);
    let rebound = ask(&router, from("127.0.0.1:9", "evil.example:9465")).await;
    assert_eq!(rebound.status, StatusCode::FORBIDDEN);
    assert_eq!(
        ask(&router, Request::get("/overview").header("host", "localhost")).await.status,
        StatusCode::FORBIDDEN
    );

    let refused = dashboard(mq).serve("0.0.0.0:0".parse().expect("an address")).await;
    assert!(refused.expect_err("it refuses").to_string().contains("no authentication"));
}

#[tokio::test]
async fn what_does_not_exist_is_a_page_that_says_so() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let unknown = "/topics/orders/groups/unknown";
    let mut paths =
        vec!["/nothing".to_owned(), "/topics/orders/nothing/at/all".to_owned(), unknown.to_owned()];
    let of_group = [
        "dead",
        "dead/list",
        "dead/replay",
        "dead/purge",
        "dead/export",
        "pending",
        "retries",
        "retries/now",
    ];
    paths.extend(of_group.map(|page| format!("{unknown}/{page}")));
    let batch = format!("/topics/orders/batches/0/{:032x}", 99);
    paths.extend(["", "/cancel", "/close"].map(|page| format!("{batch}{page}")));
    paths.push("/topics/unknown/batches".to_owned());
    for path in &paths {
        let answer = scene.get(path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}: {}", answer.body);
        assert!(answer.body.contains("<h1>Not found</h1>"), "{path}: {}", answer.body);
        let style =
            answer.body.split("rel=\"stylesheet\" href=\"").nth(1).and_then(|it| it.split('"').next());
        let style = resolve(path, style.expect("a style"));
        assert_eq!(scene.get(&style).await.status, StatusCode::OK, "{path}: {style}");
    }
    let nobody = dashboard(scene.mq.clone()).router();
    assert_eq!(ask(&nobody, Request::get("/nothing")).await.status, StatusCode::FORBIDDEN);
    let (topic, later) = ("orders".parse().expect("a name"), "unknown".parse().expect("a name"));
    scene.mq.admin().create_group(&topic, &later, millstream::Start::Earliest).await.expect("created");
    assert_eq!(scene.get(&format!("{unknown}/pending")).await.status, StatusCode::OK, "it exists now");
}

#[tokio::test]
async fn what_is_not_valid_is_refused_with_a_sentence() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let billing = "/topics/orders/groups/billing";
    for (path, words) in [
        ("/topics/orders/messages?partition=x".to_owned(), "partition &#34;x&#34;"),
        ("/topics/orders/messages?from=yesterday".to_owned(), "is no time"),
        ("/topics/orders/messages?after=x".to_owned(), "after"),
        (format!("{billing}/dead/list?fingerprint=x"), "fingerprint"),
        (format!("{billing}/dead/x/1-1"), "partition"),
        (format!("{billing}/reset?to=there"), "is no position"),
        ("/topics/or%20ders".to_owned(), "only A-Z a-z 0-9"),
        ("/topics/orders/batches/0/7".to_owned(), "is no id of a batch"),
        ("/topics/orders/batches/x/7".to_owned(), "partition"),
        ("/topics/orders/batches?id=7".to_owned(), "is no id of a batch"),
        ("/queues/mails/task".to_owned(), "id is missing"),
        ("/locks/release?name=a&fence=x".to_owned(), "fence"),
    ] {
        let answer = scene.get(&path).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {}", answer.body);
        assert!(answer.body.contains(words), "{path}: {}", answer.body);
    }
    let form = Request::post(format!("{billing}/pause")).header("sec-fetch-site", "same-origin");
    let answer = ask(&scene.router, form.header("content-type", "application/json")).await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert!(answer.body.contains("<h1>"), "{}", answer.body);
}

#[tokio::test]
async fn names_that_are_steps_of_a_path_have_links_that_work() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    for name in [".", ".."] {
        let (topic, group) = (name.parse().expect("a name"), name.parse().expect("a name"));
        // Of an earlier version, which could still create them.
        let spec = millstream::TopicSpec::new(topic, 1).expect("a topic");
        let catalog = scene.mq.backend().catalog();
        catalog.restore_topic(&spec).await.expect("a topic");
        let partition = millstream::TopicPartition::new(spec.name.clone(), 0);
        catalog.restore_group(&partition, &group, millstream::MessageId::ZERO).await.expect("a group");
    }
    for (path, title) in [
        ("/topics/~.", "Topic ."),
        ("/topics/~..", "Topic .."),
        ("/topics/~../groups/~..", "Group .."),
        ("/topics/~./groups/~./pending", "Pending messages of ."),
    ] {
        let answer = scene.get(path).await;
        assert!(answer.body.contains(&format!("<h1>{title}</h1>")), "{path}: {}", answer.body);
        let links = answer.body.split(" href=\"").skip(1).map(|it| it.split('"').next().unwrap_or_default());
        for link in links.filter(|link| link.contains("topics/")) {
            let to = resolve(path, &link.replace("&#38;", "&"));
            assert_eq!(scene.get(&to).await.status, StatusCode::OK, "{path}: {link} leads to {to}");
        }
    }
}
