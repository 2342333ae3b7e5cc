//! Forms: what is refused is shown again with what was sent, filters are above their lists, and a pause is confirmed.

use axum::http::StatusCode;
use millstream_dashboard::Access;

use super::place::eventually;
use super::support::{Answer, Scene};
use super::walk::pages;

const BILLING: &str = "/topics/orders/groups/billing";

/// Value of a field of a page, as it stands in the page.
fn value<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    page.split(&format!("name=\"{name}\" value=\"")).nth(1)?.split('"').next()
}

/// Checks what each page of a refused form has.
fn is_refused(answer: &Answer, path: &str) {
    assert!(answer.status.is_client_error(), "{path}: {}", answer.status);
    let body = &answer.body;
    assert!(body.contains("notice bad") && body.contains(">Back to "), "{path}: {body}");
    assert!(!body.contains("data-live"), "{path}: what is typed is not replaced");
}

#[tokio::test]
async fn a_change_that_is_refused_keeps_what_was_sent() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let letter = format!("{BILLING}/dead/0/{}/edit", scene.place.letter);
    let fence = scene.place.fence.to_string();
    let change = |path: &str| format!("{BILLING}/{path}");
    let replay = change("dead/replay");
    let replayed = [("limit", "3"), ("rate", "5"), ("to_topic", "orders"), ("expected", "6"), ("error", "")];
    let settings = [("retention", "length"), ("keep_length", "7")];
    let create = [("name", "events"), ("partitions", "3"), ("retention", "age"), ("dead_time", "30d")];
    let edit = [("payload", "line\r\nby line"), ("key", "k"), ("breaks", "lf")];
    // A form, and the field of it that is refused.
    for (path, fields, (field, wrong), words) in [
        (&*replay, &replayed[..], ("confirm", "6"), "type 3 to confirm"),
        (
            &*replay,
            &[("confirm", "6"), ("expected", "6"), ("to_topic", "orders")],
            ("rate", "fast"),
            "rate &#34;fast&#34;",
        ),
        (
            &*replay,
            &[("confirm", "6"), ("expected", "6"), ("rate", "5")],
            ("to_topic", "no/name"),
            "to_topic",
        ),
        (&*change("dead/purge"), &[("expected", "6")], ("confirm", "5"), "type 6 to confirm"),
        (&*change("reset"), &[("to", "earliest")], ("confirm", "yes"), "type billing to confirm"),
        (
            "/topics/orders/groups/waiting/retries/kill",
            &[("expected", "5")],
            ("confirm", "x"),
            "type 5 to confirm",
        ),
        ("/create-topic", &create, ("keep_time", "soon"), "is no duration"),
        ("/create-topic", &create, ("keep_time", ""), "keep_time is missing"),
        ("/topics/orders/alter", &settings, ("confirm", "order"), "type orders to confirm"),
        ("/topics/orders/expand", &[("confirm", "orders")], ("partitions", "1"), "has 2 partitions"),
        ("/topics/orders/delete", &[("in_use", "force")], ("confirm", "x"), "type orders to confirm"),
        (
            &*scene.place.path("/topics/{topic}/batches/{partition}/{number}/cancel"),
            &[("expected", "all")],
            ("confirm", "16"),
            "type all to confirm",
        ),
        ("/queues/mails/dead/purge", &[("expected", "1")], ("confirm", "2"), "type 1 to confirm"),
        (
            "/locks/release",
            &[("name", "invoice:1"), ("fence", &*fence)],
            ("confirm", "x"),
            "type invoice:1 to",
        ),
        ("/limits/rule", &[("limit", "2")], ("pattern", "a b"), "limit"),
        ("/limits/rule", &[("pattern", "tenant")], ("limit", "1000001"), "at most 1000000"),
        ("/limits/rule", &[("pattern", "tenant")], ("limit", "5/x"), "no rate"),
        (&*letter, &edit, ("header", "nonsense"), "a header is name=value"),
    ] {
        let sent: Vec<_> = fields.iter().copied().chain([(field, wrong)]).collect();
        let answer = scene.post(path, &sent).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {field}: {}", answer.body);
        is_refused(&answer, path);
        let body = &answer.body;
        assert_eq!(body.matches("Nothing was changed: ").count(), 1, "{path} {field}: {body}");
        // The message is beside the field, which has the focus.
        let beside = body.split("<label").find(|it| it.contains("aria-invalid=\"true\" autofocus"));
        let beside = beside.unwrap_or_else(|| panic!("{path} {field}: {body}"));
        let beside = beside.split("</label>").next().unwrap_or_default();
        assert!(beside.contains(&format!("name=\"{field}\"")), "{path} {field}: {beside}");
        let error = beside.split("class=\"error\">").nth(1).and_then(|it| it.split('<').next());
        assert!(error.is_some_and(|it| it.contains(words)), "{path} {field}: {beside}");
        assert_eq!(body.matches("aria-invalid").count(), 1, "{path} {field}: {body}");
        for (name, value_sent) in sent.iter().filter(|(name, value)| *name != "payload" && !value.is_empty())
        {
            let is_choice = body.contains(&format!("<option value=\"{value_sent}\" selected>"));
            assert!(is_choice || value(body, name) == Some(value_sent), "{path} {field}: {name} in {body}");
        }
    }
    let edited =
        scene.post(&letter, &[("payload", "line\nby line"), ("header", "nonsense"), ("breaks", "lf")]);
    assert!(edited.await.body.contains(">\nline\nby line</textarea>"), "a payload is kept");
    let again = scene.post("/create-topic", &[("name", "orders"), ("partitions", "2")]).await;
    assert_eq!((again.status, value(&again.body, "name")), (StatusCode::CONFLICT, Some("orders")));
}

#[tokio::test]
async fn a_form_that_is_shown_again_can_be_sent() {
    let scene = Scene::new(|| Access::operate("ann")).await;
    let path = format!("{BILLING}/dead/replay");
    let first = scene.get(&format!("{path}?partition=0")).await.body;
    let fields = |page: &str, typed: &str| {
        let hidden =
            ["partition", "expected", "ends"].map(|name| (name, value(page, name).expect(name).to_owned()));
        hidden
            .into_iter()
            .chain([("limit", "1".to_owned()), ("confirm", typed.to_owned())])
            .collect::<Vec<_>>()
    };
    let send = async |fields: Vec<(&'static str, String)>| {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        scene.post(&path, &fields).await
    };
    let refused = send(fields(&first, "x")).await;
    is_refused(&refused, &path);
    assert_eq!(value(&refused.body, "limit"), Some("1"));
    let page = scene.ended(send(fields(&refused.body, "1")).await).await;
    assert!(page.contains("1 of 1"), "{page}");
}

#[tokio::test]
async fn a_query_that_is_refused_keeps_what_was_sent() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    for (path, kept, words) in [
        (
            "/topics/orders/messages?from=yesterday&key=k&order=oldest",
            &[("from", "yesterday"), ("key", "k")][..],
            "is no time",
        ),
        (
            &*format!("{BILLING}/dead/list?fingerprint=x&error=timeout"),
            &[("fingerprint", "x"), ("error", "timeout")],
            "fingerprint",
        ),
        (
            "/topics/orders/groups/waiting/retries?partition=x&error=e",
            &[("partition", "x"), ("error", "e")],
            "partition",
        ),
        (&*format!("{BILLING}/reset?to=time&time=never"), &[("time", "never")], "is no time"),
        (&*format!("{BILLING}/reset?to=id&id=x"), &[("id", "x")], "id &#34;x&#34;"),
        (
            "/topics/orders/alter?retention=age&keep_time=&dead_time=30d",
            &[("dead_time", "30d")],
            "keep_time is missing",
        ),
        ("/queues/mails/dead?fingerprint=x&error=e", &[("fingerprint", "x"), ("error", "e")], "fingerprint"),
    ] {
        let answer = scene.get(path).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {}", answer.body);
        is_refused(&answer, path);
        let body = &answer.body;
        for (name, sent) in kept {
            assert_eq!(value(body, name), Some(*sent), "{path}: {name} in {body}");
        }
        let error = body.split("class=\"error\">").nth(1).and_then(|it| it.split('<').next());
        assert!(error.is_some_and(|it| it.contains(words)), "{path}: {body}");
        assert!(!body.contains("<details>"), "{path}: the form is open");
        // Neither a list nor a change that is about something else.
        assert!(!body.contains("<table") && !body.contains("method=\"post\""), "{path}: {body}");
    }
    // A confirmation of a selection that is none offers nothing.
    for path in [format!("{BILLING}/dead/replay?from=yesterday"), format!("{BILLING}/dead/purge?partition=x")]
    {
        let answer = scene.get(&path).await;
        is_refused(&answer, &path);
        assert!(
            !answer.body.split("<main").nth(1).expect("a page").contains("<form")
                && answer.body.contains(">Back to group billing<"),
            "{}",
            answer.body
        );
    }
}

#[tokio::test]
async fn every_failure_has_a_way_back() {
    let scene = Scene::new(|| Access::operate("ann")).await;
    for (path, way) in [
        ("/nowhere", "the overview"),
        ("/topics/nothing", "the overview"),
        ("/topics/or%20ders", "the overview"),
        ("/topics/orders/groups/nothing", "the overview"),
        ("/topics/orders/delete", "topic orders"),
        ("/topics/orders/groups/billing/reset", "group billing"),
        ("/queues/mails/task", "delay queue mails"),
        ("/locks/release", "the overview"),
    ] {
        let answer = scene.get(path).await;
        assert!(answer.status.is_client_error(), "{path}: {}", answer.status);
        assert!(answer.body.contains(&format!(">Back to {way}</a>")), "{path}: {}", answer.body);
    }
}

#[tokio::test]
async fn filters_are_above_their_lists() {
    let scene = Scene::new(|| Access::read("ann")).await;
    for path in [
        "/overview?find=o",
        "/topics/orders/messages",
        "/topics/orders/groups/billing/dead/list",
        "/topics/orders/groups/billing/pending",
        "/queues/mails/dead",
    ] {
        let body = scene.get(path).await.body;
        let body = body.split("<main").nth(1).expect("a page");
        let (form, list) =
            (body.find("<form method=\"get\""), body.find("<table").or(body.find("class=\"empty\"")));
        assert!(form.is_some() && form < list, "{path}: {body}");
    }
    // What is looked at more often than searched is above.
    for path in ["/topics/orders/delayed", "/queues/mails"] {
        let body = scene.get(path).await.body;
        let body = body.split("<main").nth(1).expect("a page");
        let (form, list) = (body.find("<h2>Find"), body.find("<table"));
        assert!(list.is_some() && list < form, "{path}: {body}");
    }
    // One that is set is open.
    let list = "/topics/orders/groups/billing/dead/list";
    let (all, some) = (scene.get(list).await.body, scene.get(&format!("{list}?reason=exhausted")).await.body);
    assert!(all.contains("<details>") && some.contains("<details open>"), "{some}");
}

#[tokio::test]
async fn a_pause_is_confirmed_and_shows_since_when_and_by_whom() {
    let scene = Scene::new(|| Access::operate("ann")).await;
    let topic = "orders".parse().expect("a name");
    // Not by a dashboard.
    scene.mq.admin().pause_group(&topic, &"waiting".parse().expect("a name")).await.expect("paused");
    let page = scene.get(BILLING).await.body;
    assert!(
        page.contains("Pause the group…")
            && !page.contains("action=\"../../../topics/orders/groups/billing/pause")
    );
    let confirm = scene.get(&format!("{BILLING}/pause")).await.body;
    assert!(confirm.contains("start no further handler") && confirm.contains(">Pause</button>"), "{confirm}");
    let action = scene.ended(scene.post(&format!("{BILLING}/pause"), &[]).await).await;
    assert!(action.contains("group pause"), "{action}");
    let who = |page: &str| {
        let fact = page.split("<dt>Paused by</dt>").nth(1)?.split("</dd>").next()?;
        Some(fact.split('>').nth(1)?.to_owned())
    };
    let page = scene.get(BILLING).await.body;
    assert_eq!(who(&page).as_deref(), Some("ann"), "{page}");
    assert!(page.contains("<dt>Paused since</dt>") && page.contains(">Resume</button>"), "{page}");
    assert!(page.contains("notice warn\">paused since 20") && page.contains(" UTC by ann"), "{page}");
    let page = scene.get("/topics/orders/groups/waiting").await.body;
    assert_eq!(who(&page).as_deref(), Some("not in the audit log"), "{page}");
    for path in ["/overview", "/topics/orders"] {
        let body = scene.get(path).await.body;
        assert!(
            body.contains(" UTC by ann") && body.matches("paused since 20").count() > 1,
            "{path}: {body}"
        );
    }
    let confirm = scene.get(&format!("{BILLING}/pause")).await.body;
    assert!(confirm.contains("paused already") && !confirm.contains(">Pause</button>"), "{confirm}");
    scene.ended(scene.post(&format!("{BILLING}/resume"), &[]).await).await;
    eventually("it is resumed", async || who(&scene.get(BILLING).await.body).is_none()).await;
}

#[tokio::test]
async fn numbers_are_clamped() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    for (_, path) in pages(&scene) {
        for number in ["99999999999999999999999999", "0", "-1", "x", ""] {
            let and = if path.contains('?') { '&' } else { '?' };
            let path = format!("{path}{and}limit={number}&page={number}&idle={number}");
            let answer = scene.get(&path).await;
            assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
            assert!(answer.body.len() < 400_000, "{path}: {} bytes", answer.body.len());
        }
    }
    let long = format!("/topics/orders/messages?key={}", "k".repeat(2_000));
    assert_eq!(scene.get(&long).await.status, StatusCode::BAD_REQUEST);
}
