//! The console: the web page at `/`, its modules, its style and its picture, all within the program, so
//! that it works where nothing else can be reached. It has no rights of its own: it calls the API with
//! the key that its user signs in with.

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::IntoResponse;
use axum::routing::get;

/// What the page may load and do (Content Security Policy, Level 3): only what this server serves; no
/// script or style in the page itself; no text becomes a part of it in any way but as text (Trusted
/// Types).
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! file {
    ($name:literal) => {
        (concat!("/console/", $name), include_str!(concat!("../console/", $name)))
    };
}

const PAGE: &str = include_str!("../console/index.html");
const SCRIPTS: [(&str, &str); 16] = [
    file!("api.js"),
    file!("app.js"),
    file!("data.js"),
    file!("dom.js"),
    file!("events.js"),
    file!("fabric.js"),
    file!("forms.js"),
    file!("groups.js"),
    file!("hostfeed.js"),
    file!("hosts.js"),
    file!("live.js"),
    file!("networks.js"),
    file!("newvm.js"),
    file!("overview.js"),
    file!("table.js"),
    file!("vms.js"),
];

/// What serves the console.
pub fn router() -> Router<()> {
    let mut files = vec![("/", PAGE, HTML)];
    files.extend(SCRIPTS.map(|(path, text)| (path, text, SCRIPT)));
    let (path, text) = file!("style.css");
    files.push((path, text, STYLE));
    let (path, text) = file!("icon.svg");
    files.push((path, text, PICTURE));
    files.into_iter().fold(Router::new(), |router, (path, text, kind)| {
        router.route(path, get(async move || serve(text, kind)))
    })
}

fn serve(text: &'static str, kind: &'static str) -> impl IntoResponse {
    let policy = HeaderName::from_static("content-security-policy");
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (policy, HeaderValue::from_static(POLICY)),
    ];
    (headers, text)
}
