//! The script: it refreshes pages that are seen, and asks for nothing otherwise.

use millstream::Topic;
use serde_json::json;

use super::site::Site;
use crate::browser::chromium::Tab;

/// Lets the time of the page pass, without waiting for it.
async fn pass(tab: &mut Tab, ms: u64) {
    tab.take("Emulation.virtualTimeBudgetExpired");
    let policy = json!({"policy": "pauseIfNetworkFetchesPending", "budget": ms});
    tab.call("Emulation.setVirtualTimePolicy", policy).await;
    tab.event("Emulation.virtualTimeBudgetExpired").await;
}

/// Lets the page be refreshed until an expression is true.
async fn refreshed(tab: &mut Tab, expression: &str) {
    let began = tokio::time::Instant::now();
    while tab.eval(expression).await != true {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{expression}: {}", tab.text().await);
        pass(tab, 3_000).await;
    }
}

const HIDE: &str = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => true}); \
                    document.dispatchEvent(new Event('visibilitychange'))";
const SHOW: &str = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => false}); \
                    document.dispatchEvent(new Event('visibilitychange'))";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_is_seen_is_refreshed_and_a_hidden_one_asks_for_nothing() {
    let site = Site::start().await;
    let mut tab = Tab::open().await;
    tab.go(&site.url("/overview")).await;
    assert!(tab.text().await.contains("There is no topic yet."));
    site.mq.producer(Topic::<u64>::new("created-later")).await.expect("a topic");
    pass(&mut tab, 20_000).await;
    let refreshed = site.requests();
    assert!((4..=10).contains(&refreshed), "{refreshed} requests in 20 s");

    tab.eval(HIDE).await;
    let before = site.requests();
    pass(&mut tab, 120_000).await;
    assert_eq!(site.requests(), before, "a hidden tab");
    tab.eval(SHOW).await;
    pass(&mut tab, 3_000).await;
    assert!(site.requests() > before);

    tab.eval("document.querySelector('[data-pause]').click()").await;
    let before = site.requests();
    pass(&mut tab, 60_000).await;
    assert_eq!(site.requests(), before, "a page that is paused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_typed_stays() {
    let site = Site::start().await;
    super::place::fill(&site.mq).await;
    let mut tab = Tab::open().await;
    tab.go(&site.url("/topics/orders/groups/billing/pending")).await;
    tab.eval("document.querySelector('input[name=limit]').value = '7'").await;
    let before = site.requests();
    pass(&mut tab, 20_000).await;
    assert_eq!(tab.eval("document.querySelector('input[name=limit]').value").await, "7");
    assert_eq!(site.requests(), before, "a page in which somebody types is left alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refresh_keeps_what_is_unfolded_and_the_focus_on_its_topic() {
    let site = Site::start().await;
    super::place::fill(&site.mq).await;
    let mut tab = Tab::open().await;
    tab.go(&site.url("/topics/orders/groups/waiting/retries")).await;
    tab.eval("document.querySelector('summary').click()").await;
    let (topic, waiting) = ("orders".parse().expect("a name"), "waiting".parse().expect("a name"));
    let retries = site.mq.admin().retries(&topic, &waiting).await.expect("retries");
    let (all, kill) = (millstream::admin::ShelfFilter::default(), millstream::admin::ShelfAction::Drop);
    let acting = retries.act(&all, None, kill, None).await.expect("selected");
    acting.run().await.expect("given up");
    refreshed(&mut tab, "document.body.innerText.includes('Nothing waits for a retry.')").await;
    assert_eq!(tab.eval("document.querySelector('details').open").await, true);

    // In another tab: the time of this one stands still. The page gets a part more while the row moves.
    let site = Site::start().await;
    let mut tab = Tab::open().await;
    for name in ["a-quiet", "z-urgent"] {
        site.mq.producer(Topic::<u64>::new("t").named(name)).await.expect("a topic");
    }
    tab.go(&site.url("/overview")).await;
    tab.eval("[...document.querySelectorAll('td a')].find((it) => it.textContent === 'a-quiet').focus()")
        .await;
    let (topic, group) = ("z-urgent".parse().expect("a name"), "work".parse().expect("a name"));
    site.mq.admin().create_group(&topic, &group, millstream::Start::Earliest).await.expect("created");
    site.mq.admin().pause_group(&topic, &group).await.expect("paused");
    millstream::delay::DelayQueue::<u64>::new("mails").open(site.mq.backend()).await.expect("a queue");
    let order = "document.body.innerText.indexOf('z-urgent') < document.body.innerText.indexOf('a-quiet') \
                 && document.body.innerText.includes('mails')";
    refreshed(&mut tab, order).await;
    assert_eq!(tab.eval("document.activeElement.textContent").await, "a-quiet");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_are_ages_or_follow_the_zone() {
    let site = Site::start().await;
    super::place::fill(&site.mq).await;
    let mut tab = Tab::open().await;
    tab.call("Emulation.setTimezoneOverride", json!({"timezoneId": "Asia/Kolkata"})).await;
    tab.go(&site.url("/topics/orders/messages")).await;
    let first = "document.querySelector('main time').textContent";
    let ago = tab.eval(first).await;
    assert!(ago.as_str().is_some_and(|it| it.ends_with(" ago") || it == "now"), "{ago}");
    let title = tab.eval("document.querySelector('main time').title").await;
    assert!(title.as_str().is_some_and(|it| it.contains(" UTC") && it.contains(" +05:30")), "{title}");
    tab.eval("document.querySelector('[data-zone]').click()").await;
    let utc = tab.eval(first).await;
    assert!(utc.as_str().expect("text").ends_with(" UTC"), "{utc}");
    tab.eval("document.querySelector('[data-zone]').click()").await;
    let local = tab.eval(first).await;
    assert!(local.as_str().expect("text").ends_with(" +05:30"), "{local}");
    tab.go(&site.url("/topics/orders/messages")).await;
    assert_eq!(tab.eval(first).await, local, "the choice is kept");
    assert_eq!(tab.eval("document.cookie").await, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_is_copied_where_there_is_no_clipboard() {
    let site = Site::start().await;
    let place = super::place::fill(&site.mq).await;
    let mut tab = Tab::open().await;
    tab.go(&site.url(&place.path("/topics/{topic}/messages/{partition}/{id}"))).await;
    // As on a host without TLS.
    tab.eval(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined}); \
              document.addEventListener('copy', () => { window.copied = document.activeElement.value; })",
    )
    .await;
    tab.eval("[...document.querySelectorAll('[data-copy]')].at(-1).click()").await;
    let copied = tab.eval("window.copied").await;
    assert!(copied.as_str().is_some_and(|text| text.contains("window.owned=1")), "{copied}");
}
