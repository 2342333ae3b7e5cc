//! A headless Chromium, driven over its protocol for developer tools.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// Time after which something that does not come is an error.
const LIMIT: Duration = Duration::from_secs(60);

/// A tab of a browser of its own.
pub(crate) struct Tab {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    session: String,
    last: u64,
    events: VecDeque<Value>,
    // Killed when it is dropped.
    _browser: Child,
    _profile: Profile,
}

/// Folder of a browser's profile.
struct Profile(PathBuf);

impl Drop for Profile {
    fn drop(&mut self) {
        // The browser may still write; the folder is below the build's own.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Folder for what tests write.
pub(crate) fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

impl Tab {
    /// Starts a browser that can reach nothing but this machine.
    pub(crate) async fn open() -> Self {
        let profile =
            Profile(folder().join(format!("chromium-{}-{:08x}", std::process::id(), fastrand::u32(..))));
        let mut command = Command::new("chromium");
        command.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]);
        command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
        command
            .args(["--remote-debugging-port=0", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]);
        command.arg(format!("--user-data-dir={}", profile.0.display())).arg("about:blank");
        command.stderr(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
        let mut browser =
            command.spawn().expect("Chromium is missing: `cargo xtask test` says how to get it");
        let mut lines = BufReader::new(browser.stderr.take().expect("a pipe")).lines();
        let find = async {
            while let Some(line) = lines.next_line().await.expect("text") {
                if let Some(url) = line.strip_prefix("DevTools listening on ") {
                    return url.trim().to_owned();
                }
            }
            panic!("Chromium ended at once");
        };
        let url = timeout(LIMIT, find).await.expect("Chromium starts");
        // What it writes from now on is of no interest, but its pipe must not fill.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let (socket, _) = connect_async(url).await.expect("it listens");
        let (session, events) = (String::new(), VecDeque::new());
        let mut tab = Self { socket, session, last: 0, events, _browser: browser, _profile: profile };
        let target = tab.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = tab.call("Target.attachToTarget", attach).await;
        tab.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            tab.call(&format!("{domain}.enable"), json!({})).await;
        }
        let watch = "window.violations = []; document.addEventListener('securitypolicyviolation', \
                     (it) => window.violations.push(`${it.violatedDirective} ${it.blockedURI} ${it.sample}`));";
        tab.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": watch})).await;
        tab
    }

    /// Calls a method and returns its result.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let id = self.last;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        self.socket.send(Message::text(message.to_string())).await.expect("sent");
        loop {
            let message = self.receive().await;
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push_back(message);
        }
    }

    async fn receive(&mut self) -> Value {
        loop {
            let message =
                timeout(LIMIT, self.socket.next()).await.expect("Chromium answers").expect("it runs");
            if let Message::Text(text) = message.expect("a message") {
                return serde_json::from_str(text.as_str()).expect("JSON");
            }
        }
    }

    /// Waits for an event that has come since the last call of this or of [`take`](Self::take), or comes now.
    pub(crate) async fn event(&mut self, name: &str) -> Value {
        loop {
            if let Some(at) = self.events.iter().position(|event| event["method"] == name) {
                return self.events.remove(at).expect("it is there")["params"].take();
            }
            let message = self.receive().await;
            self.events.push_back(message);
        }
    }

    /// Returns all events of a name that have come, and forgets them.
    pub(crate) fn take(&mut self, name: &str) -> Vec<Value> {
        let (taken, rest): (Vec<_>, Vec<_>) =
            self.events.drain(..).partition(|event| event["method"] == name);
        self.events = rest.into();
        taken
    }

    /// Goes to an address and waits until the page and its script are loaded.
    pub(crate) async fn go(&mut self, url: &str) {
        self.take("Page.loadEventFired");
        let went = self.call("Page.navigate", json!({"url": url})).await;
        assert!(went["errorText"].is_null(), "{url}: {went}");
        self.event("Page.loadEventFired").await;
    }

    /// Evaluates an expression in the page; a promise is awaited.
    pub(crate) async fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let result = self.call("Runtime.evaluate", params).await;
        assert!(result["exceptionDetails"].is_null(), "{}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Does something that leads to another page, and waits for that.
    pub(crate) async fn follow(&mut self, expression: &str) {
        self.take("Page.loadEventFired");
        self.eval(expression).await;
        self.event("Page.loadEventFired").await;
    }

    /// Waits until an element has the focus: a browser gives it to a field when it draws the page, not when it loads it.
    pub(crate) async fn focused(&mut self) {
        let look = "new Promise((done) => { const look = () => \
                    document.activeElement === document.body ? requestAnimationFrame(look) : done(true); look(); })";
        self.eval(look).await;
    }

    /// Returns the text of the page.
    pub(crate) async fn text(&mut self) -> String {
        self.eval("document.body.innerText").await.as_str().expect("text").to_owned()
    }

    /// Sets the colour scheme that the user prefers.
    pub(crate) async fn scheme(&mut self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    /// Sets the width of the window.
    pub(crate) async fn width(&mut self, width: u32) {
        let metrics = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
    }
}
