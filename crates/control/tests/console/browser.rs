//! A real browser: Debian's Chromium, driven over WebDriver (W3C), which `chromedriver` speaks. It is
//! gone with the test that started it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use lanekeeper_client::{Client, Endpoint};
use lanekeeper_testbed::packages;
use serde_json::{Value, json};

/// How long the page may take to become as it should.
const PATIENCE: Duration = Duration::from_secs(60);
/// The key of an element in an answer (WebDriver, 12).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub(crate) struct Browser {
    driver: Child,
    client: Client,
    session: String,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends the browser with the session.
        let _ = self.client.delete::<Value>(&self.session);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Where the driver listens: it says so once it does.
fn port(driver: &mut Child) -> String {
    let out = BufReader::new(driver.stdout.take().expect("its output"));
    for line in out.lines() {
        let line = line.expect("text");
        if let Some(port) = line.strip_prefix("ChromeDriver was started successfully on port ") {
            return port.trim_end_matches('.').to_owned();
        }
    }
    panic!("chromedriver ended before it listened");
}

impl Browser {
    pub(crate) fn start() -> Self {
        packages::ensure(packages::BROWSER, &mut |what| println!("{what}")).expect("a browser");
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromedriver starts");
        let port = port(&mut driver);
        let client =
            Client::new(&Endpoint::new(format!("http://127.0.0.1:{port}"))).expect("a client");
        let profile = tempfile::tempdir().expect("a folder");
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--no-proxy-server",
            // The server's certificate is of its own authority.
            "--ignore-certificate-errors",
            &format!("--user-data-dir={}", profile.path().display()),
        ]
        .map(str::to_owned);
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "acceptInsecureCerts": true,
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": arguments},
        }}});
        let mut browser = Self { driver, client, session: String::new(), _profile: profile };
        let made = browser.post("/session", &wanted);
        browser.session = format!("/session/{}", made["sessionId"].as_str().expect("a session"));
        let size = json!({"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": false});
        browser.devtools("Emulation.setDeviceMetricsOverride", &size);
        browser
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let path = format!("{}{path}", self.session);
        match self.client.post::<Value>(&path, body) {
            Ok(answer) => answer.body["value"].clone(),
            Err(error) => panic!("{path} {body}: {error}"),
        }
    }

    /// A command of Chromium's own (Chrome DevTools Protocol).
    pub(crate) fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    pub(crate) fn open(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    /// Run a function's body within the page.
    pub(crate) fn script(&self, body: &str, arguments: &[Value]) -> Value {
        self.post("/execute/sync", &json!({"script": body, "args": arguments}))
    }

    /// Wait until an expression is true.
    pub(crate) fn until(&self, expression: &str) {
        let end = Instant::now() + PATIENCE;
        while self.script(&format!("return Boolean({expression})"), &[]) != true {
            let shown = || self.script("return document.body.innerText", &[]);
            assert!(
                Instant::now() < end,
                "never: {expression}; shown is: {}; {:?}",
                shown(),
                self.complaints()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Wait until a text is on the page.
    pub(crate) fn until_shown(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    pub(crate) fn until_gone(&self, text: &str) {
        self.until(&format!("!document.body.innerText.includes({})", json!(text)));
    }

    fn find(&self, using: &str, value: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let query = json!({"using": using, "value": value});
            let found = self.post("/elements", &query);
            if let Some(id) = found[0][ELEMENT].as_str() {
                return id.to_owned();
            }
            assert!(Instant::now() < end, "there is no '{value}' on the page");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Click on what is found by a CSS selector, as a hand does: whatever covers it gets the click.
    pub(crate) fn click(&self, selector: &str) {
        let element = self.find("css selector", selector);
        self.post(&format!("/element/{element}/click"), &json!({}));
    }

    /// Click on a button or a link that is called so.
    pub(crate) fn press(&self, words: &str) {
        let path = format!(
            "//*[self::button or self::a][normalize-space()='{words}' or @aria-label='{words}']"
        );
        let element = self.find("xpath", &path);
        self.post(&format!("/element/{element}/click"), &json!({}));
    }

    /// The selector of the field with a label.
    fn labelled(&self, label: &str) -> String {
        let path = format!("//*[@id=//label[normalize-space()='{label}']/@for]");
        self.find("xpath", &path)
    }

    /// Type into the field with a label, after what is in it is taken out.
    pub(crate) fn fill(&self, label: &str, text: &str) {
        let element = self.labelled(label);
        self.post(&format!("/element/{element}/clear"), &json!({}));
        self.post(&format!("/element/{element}/value"), &json!({"text": text}));
    }

    /// Press keys, whatever has the focus.
    pub(crate) fn keys(&self, text: &str) {
        let actions: Vec<_> = text
            .chars()
            .flat_map(|key| {
                [
                    json!({"type": "keyDown", "value": key.to_string()}),
                    json!({"type": "keyUp", "value": key.to_string()}),
                ]
            })
            .collect();
        self.post(
            "/actions",
            &json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}),
        );
    }

    /// What the page complained of since this was last asked: errors and refused loads.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({"type": "browser"}));
        let entries = log.as_array().cloned().unwrap_or_default();
        let severe = entries.iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// A picture of the page for the documentation, if `LANEKEEPER_SCREENSHOTS` names a folder.
    pub(crate) fn picture(&self, name: &str) {
        let Some(folder) = std::env::var_os("LANEKEEPER_SCREENSHOTS") else { return };
        let taken = self.devtools("Page.captureScreenshot", &json!({"format": "png"}));
        let text = taken["data"].as_str().expect("a picture");
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
        std::fs::write(Path::new(&folder).join(name), bytes).expect("written");
    }

    /// Show the page as to somebody whose system is dark.
    pub(crate) fn dark(&self, is: bool) {
        let scheme = if is { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features}));
    }
}
