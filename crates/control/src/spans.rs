//! What is traced: one span a request, and one for each thing that the lifecycle sees to, with what it
//! waited for beneath. They are of the level and the target that only an exporter asks for, so that
//! without one they cost a look at a flag and logs are as they were. No secret is in them, nor anything
//! that a tenant wrote but names.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use tracing::Span;

/// The target of every span that is to be exported; their level is TRACE.
pub const TARGET: &str = "lanekeeper::spans";

/// The header that names a request, as its caller chose it or as the server did.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A request's own name, or one that is made for it: hexadecimal digits.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
    let shown = headers
        .get(REQUEST_ID)
        .filter(|value| (1..=128).contains(&value.len()) && value.as_bytes().iter().all(is_plain));
    shown.cloned().unwrap_or_else(|| {
        let mut bytes = [0; 8];
        // Without random numbers requests have one name; nothing depends on it.
        let _ = getrandom::fill(&mut bytes);
        let text = format!("{:016x}", u64::from_be_bytes(bytes));
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("0"))
    })
}

/// Within the path of a request the region, if its route names one.
pub(crate) fn region_of<'p>(route: &str, path: &'p str) -> Option<&'p str> {
    let mut both = route.split('/').zip(path.split('/'));
    both.find_map(|(route, path)| (route == "{region}").then_some(path))
}

/// The span of a request.
pub(crate) fn request(method: &Method, route: &'static str, path: &str, id: &HeaderValue) -> Span {
    let span = tracing::trace_span!(
        target: TARGET,
        "request",
        otel.name = tracing::field::Empty,
        otel.kind = "server",
        otel.status_code = tracing::field::Empty,
        http.request.method = %method,
        http.route = route,
        http.response.status_code = tracing::field::Empty,
        lanekeeper.request_id = id.to_str().unwrap_or_default(),
        lanekeeper.organization = tracing::field::Empty,
        lanekeeper.region = tracing::field::Empty,
    );
    if !span.is_disabled() {
        span.record("otel.name", format!("{method} {route}"));
        if let Some(region) = region_of(route, path) {
            span.record("lanekeeper.region", region);
        }
    }
    span
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_its_name_if_that_is_one() {
        let mut headers = HeaderMap::new();
        let made = request_id(&headers);
        assert!(made.len() == 16 && made != request_id(&headers));
        headers.insert(REQUEST_ID, HeaderValue::from_static("mine-7"));
        assert_eq!(request_id(&headers), "mine-7");
        for bad in ["", "a b", "<script>"] {
            headers.insert(REQUEST_ID, HeaderValue::from_static(bad));
            assert_eq!(request_id(&headers).len(), 16, "{bad}");
        }
    }

    #[test]
    fn a_region_is_found_where_the_route_has_it() {
        let route = "/v1/regions/{region}/hosts/{host}";
        assert_eq!(region_of(route, "/v1/regions/north/hosts/h1"), Some("north"));
        assert_eq!(region_of("/v1/vms/{id}", "/v1/vms/7"), None);
    }
}
