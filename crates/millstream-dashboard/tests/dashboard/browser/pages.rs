//! What holds for every page: on a queue where everything is hostile.

use std::process::Command;

use millstream_dashboard::routes;
use serde_json::Value;

use super::place;
use super::site::Site;
use crate::browser::chromium::{Tab, folder};

/// Version of axe-core, which finds what is inaccessible.
const AXE: &str = "axe-core@4.14.1";

/// Returns the source of axe-core, which is fetched once into the folder of the build.
fn axe() -> String {
    let file = folder().join(format!("{AXE}.js"));
    if !file.exists() {
        // Tests are processes, and npm does not share a folder with itself: each fetches into its own, and the file comes whole.
        let own = folder().join(format!("axe-{}", std::process::id()));
        let args = ["install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"];
        let done = Command::new("npm").args(args).arg(&own).arg(AXE).output();
        let done = done.expect("npm is missing: `cargo xtask test` says how to get it");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        std::fs::rename(own.join("node_modules/axe-core/axe.min.js"), &file).expect("axe-core");
        let _ = std::fs::remove_dir_all(own);
    }
    std::fs::read_to_string(file).expect("axe-core")
}

/// Runs axe-core, which the page has, and returns what it finds, in a form that is read.
async fn violations(tab: &mut Tab) -> Vec<String> {
    let run = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}) \
               .then((found) => found.violations.map((it) => `${it.id}: ${it.help}: ` + \
               it.nodes.slice(0, 3).map((node) => node.html + ' ' + node.failureSummary).join(' | ')))";
    let found = tab.eval(run).await;
    found.as_array().expect("a list").iter().map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_hostile_runs_and_nothing_is_inaccessible() {
    let site = Site::unsound().await;
    let mut place = place::fill(&site.mq).await;
    let (mut tab, axe) = (Tab::open().await, super::AXE.then(axe));
    let is_page = |path: &&str| {
        *path != "/"
            && !path.ends_with("/payload")
            && !path.ends_with("/export")
            && !path.starts_with("/assets")
    };
    // The page of an action exists after one.
    tab.go(&site.url("/topics/orders/groups/billing/pause")).await;
    tab.follow("document.querySelector('form[action$=pause] button').click()").await;
    let action = tab.eval("location.pathname.split('/').at(-1)").await;
    action.as_str().expect("text").clone_into(&mut place.action);
    tab.go(&site.url("/topics/orders/verify")).await;
    tab.follow("document.querySelector('form[action$=verify] button').click()").await;
    let gets = routes().filter(|route| route.method == "GET").map(|route| route.path).filter(is_page);
    let mut paths: Vec<String> = gets.map(|path| place.with_query(path)).collect();
    paths.push("/topics/orders/groups/waiting/retries".into());
    paths.push("/topics/nothing".into());
    // Those that show the same again are not examined for access.
    let examined = paths.len();
    paths.extend(place::forge(&site.mq).await);
    assert!(paths.len() > 25, "{paths:?}");
    let (mut problems, mut dialogs) = (Vec::new(), 0);
    for (at, path) in paths.iter().enumerate() {
        // One load for both: the style follows the scheme and the width.
        tab.scheme("light").await;
        tab.width(1_280).await;
        tab.go(&site.url(path)).await;
        let axe = axe.as_ref().filter(|_| at < examined);
        if let Some(axe) = axe {
            tab.eval(axe).await;
        }
        for (scheme, width) in [("light", 1_280), ("dark", 360)] {
            tab.scheme(scheme).await;
            tab.width(width).await;
            dialogs += tab.take("Page.javascriptDialogOpening").len();
            let seen = tab.eval("[window.owned === undefined, window.violations, document.documentElement.scrollWidth <= innerWidth + 1, \
                                 document.querySelectorAll('main script, main img, main iframe, [onerror]').length, \
                                 innerWidth > 360 || [...document.querySelectorAll('.wide')].every((it) => it.scrollWidth <= it.clientWidth), \
                                 document.title]").await;
            let ok = seen[0] == true
                && seen[1].as_array().is_some_and(Vec::is_empty)
                && seen[2] == true
                && seen[3] == 0
                // On a telephone no column is behind a scroll bar.
                && seen[4] == true;
            if !ok {
                problems.push(format!("{scheme} {path}: {seen}"));
            }
            if axe.is_some() {
                let found = violations(&mut tab).await;
                problems.extend(found.into_iter().map(|it| format!("{scheme} {path}: {it}")));
            }
        }
        // The answer to a page that is missing is logged as an error, too.
        let logged = tab.take("Log.entryAdded");
        let logged = logged.iter().map(|it| &it["params"]["entry"]).filter(|it| it["source"] != "network");
        problems.extend(logged.map(|it| format!("{path}: {it}")));
        problems.extend(tab.take("Runtime.exceptionThrown").iter().map(|it| format!("{path}: {it}")));
    }
    let foreign = |it: &Value| {
        let url = it["params"]["request"]["url"].as_str().unwrap_or_default();
        (!url.starts_with(&site.url("/")) && !url.starts_with("data:"))
            .then(|| format!("another host: {url}"))
    };
    problems.extend(tab.take("Network.requestWillBeSent").iter().filter_map(foreign));
    assert_eq!(dialogs, 0);
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_form_is_accessible_and_keeps_what_was_typed() {
    let site = Site::start().await;
    place::fill(&site.mq).await;
    let (mut tab, axe) = (Tab::open().await, super::AXE.then(axe));
    let billing = "/topics/orders/groups/billing";
    let mut problems = Vec::new();
    // A change and a query.
    for (path, field, value, button) in [
        (format!("{billing}/dead/replay"), "rate", "fast", "main form[method=post] button"),
        (format!("{billing}/dead/list"), "from", "yesterday", "main form[method=get] button"),
    ] {
        tab.go(&site.url(&path)).await;
        tab.eval("document.querySelectorAll('details').forEach((it) => { it.open = true; })").await;
        let fill = format!(
            "document.querySelector('input[name={field}]').value = '{value}'; \
             document.querySelectorAll('input[name=confirm]').forEach((it) => {{ it.value = '6'; }})"
        );
        tab.eval(&fill).await;
        tab.follow(&format!("document.querySelector('{button}').click()")).await;
        tab.focused().await;
        let seen = "(() => { const it = document.activeElement; \
                    return [it.name, it.value, it.matches(':invalid, [aria-invalid=true]'), it.labels[0].querySelector('.error').offsetHeight > 0, \
                    getComputedStyle(it.labels[0].querySelector('.error')).color !== getComputedStyle(it.labels[0]).color]; })()";
        let seen = tab.eval(seen).await;
        assert_eq!(seen, serde_json::json!([field, value, true, true, true]), "{path}");
        assert!(tab.text().await.contains("Back to group billing"), "{path}");
        let Some(axe) = &axe else { continue };
        tab.eval(axe).await;
        for (scheme, width) in [("light", 1_280), ("dark", 360)] {
            tab.scheme(scheme).await;
            tab.width(width).await;
            let found = violations(&mut tab).await;
            problems.extend(found.into_iter().map(|it| format!("{scheme} {path}: {it}")));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Counts what a page is for assistive technology: tables, rows, headers of columns, cells.
async fn accessible(tab: &mut Tab) -> [usize; 4] {
    let tree = tab.call("Accessibility.getFullAXTree", serde_json::json!({})).await;
    let nodes = tree["nodes"].as_array().expect("a tree");
    let is_seen = |node: &&Value| node["ignored"] != true;
    let count = |role: &str| nodes.iter().filter(is_seen).filter(|it| it["role"]["value"] == role).count();
    ["table", "row", "columnheader", "cell"].map(count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_cards_on_a_telephone_and_still_tables() {
    let site = Site::start().await;
    place::fill(&site.mq).await;
    let mut tab = Tab::open().await;
    for path in ["/overview", "/topics/orders/groups/billing", "/topics/orders/groups/billing/dead/list"] {
        tab.width(1_280).await;
        tab.go(&site.url(path)).await;
        let wide = accessible(&mut tab).await;
        assert!(wide.iter().all(|count| *count > 0), "{path}: {wide:?}");
        tab.width(360).await;
        assert_eq!(accessible(&mut tab).await, wide, "{path}");
        // Each value is below the one before, beside its label, and within the window.
        let seen = "[...document.querySelectorAll('.cards tbody tr')].map((row) => { \
                    const cells = [...row.cells].filter((it) => it.offsetHeight > 0); \
                    const boxes = cells.map((it) => it.getBoundingClientRect()); \
                    return cells.length > 3 \
                    && boxes.every((it, at) => it.right <= innerWidth && (at === 0 || it.top >= boxes[at - 1].bottom - 1)) \
                    && cells.every((it) => getComputedStyle(it, '::before').content.includes(it.dataset.label)); })";
        let seen = tab.eval(seen).await;
        let rows = seen.as_array().expect("a list");
        assert!(!rows.is_empty() && rows.iter().all(|it| it == true), "{path}: {seen}");
    }
}

/// Goes to an address and returns the HTML of the page's main part, without a script in the page.
async fn read(tab: &mut Tab, url: &str) -> String {
    tab.go(url).await;
    let document = tab.call("DOM.getDocument", serde_json::json!({"depth": 0})).await;
    let html = tab.call("DOM.getOuterHTML", serde_json::json!({"nodeId": document["root"]["nodeId"]})).await;
    html["outerHTML"].as_str().and_then(|html| html.split("<main").nth(1)).expect("a page").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_read_without_javascript() {
    let site = Site::start().await;
    place::fill(&site.mq).await;
    let mut tab = Tab::open().await;
    tab.call("Emulation.setScriptExecutionDisabled", serde_json::json!({"value": true})).await;
    for (path, words) in [
        ("/overview", "billing"),
        ("/topics/orders/groups/billing/dead", "replay…"),
        ("/topics/orders/messages", "<table"),
        ("/redis", "What the doctor finds"),
    ] {
        // Letters are counted behind the page, which says so until they are.
        let began = tokio::time::Instant::now();
        let mut body = read(&mut tab, &site.url(path)).await;
        while !body.contains(words) && began.elapsed() < std::time::Duration::from_secs(60) {
            body = read(&mut tab, &site.url(path)).await;
        }
        assert!(body.contains(words), "{path}: {body}");
        assert!(body.contains("<h1>"), "{path}: {body}");
    }
}
