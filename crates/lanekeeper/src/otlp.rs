//! Traces to a collector, by OTLP over HTTP (protobuf): off unless a server is told of one. Spans wait in
//! a queue of their own and a thread of its own sends them; when the collector is slow or gone they are
//! dropped, and no request waits or fails.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Where a collector takes spans, below its address.
const PATH: &str = "/v1/traces";
/// How long a sending may take. It delays nothing but the next one.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the last spans may take when the server ends.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often what waits is sent.
const EVERY: Duration = Duration::from_secs(1);

/// A collector's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Collector(String);

impl std::str::FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is no collector's address; use one like http://127.0.0.1:4318, to \
                     which {PATH} is added"
            )
        };
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_plain = uri.query().is_none()
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        if !is_plain || !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(wrong());
        }
        let text = text.trim_end_matches('/');
        let path = if text.ends_with(PATH) { "" } else { PATH };
        Ok(Self(format!("{text}{path}")))
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What sends spans to a collector. The last of them are sent when it is dropped.
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// Begin: nothing is sent before there are spans.
    ///
    /// # Errors
    /// The address is none.
    pub(crate) fn start(collector: &Collector) -> Result<Self, String> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Post::new())
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(collector.0.clone())
            .with_timeout(PATIENCE)
            .build()
            .map_err(|error| format!("{collector}: {error}"))?;
        let config = BatchConfigBuilder::default().with_scheduled_delay(EVERY).build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        let resource = Resource::builder_empty()
            .with_service_name("lanekeeper-server")
            .with_attribute(opentelemetry::KeyValue::new(
                "service.version",
                env!("CARGO_PKG_VERSION"),
            ))
            .build();
        let provider = SdkTracerProvider::builder().with_span_processor(processor);
        Ok(Self(provider.with_resource(resource).build()))
    }

    /// What takes the spans up that are to be exported, and no other.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span>,
    {
        let targets = Targets::new().with_target(lanekeeper_control::spans::TARGET, Level::TRACE);
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("lanekeeper"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(targets)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // Those that a collector does not take within that time are lost, as ever.
        let _ = self.0.shutdown_with_timeout(FAREWELL);
    }
}

/// Sends what the exporter has made, on the exporter's own thread, where nothing else waits.
struct Post(Agent);

impl Post {
    fn new() -> Self {
        let found = rustls_native_certs::load_native_certs().certs;
        let roots = found.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(std::sync::Arc::new(roots)))
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_global(Some(PATIENCE))
            .tls_config(tls);
        Self(config.build().new_agent())
    }
}

impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Post")
    }
}

#[async_trait]
impl HttpClient for Post {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let request = Request::from_parts(parts, body.to_vec());
        let (parts, mut body) = self.0.run(request)?.into_parts();
        let body = body.read_to_vec()?;
        Ok(Response::from_parts(parts, body.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_an_address_to_which_the_path_is_added_once() {
        let read = |text: &str| text.parse::<Collector>().map(|collector| collector.0);
        let whole = Ok("http://127.0.0.1:4318/v1/traces".to_owned());
        for text in
            ["http://127.0.0.1:4318", "http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"]
        {
            assert_eq!(read(text), whole, "{text}");
        }
        assert_eq!(read("https://c.example/in"), Ok("https://c.example/in/v1/traces".to_owned()));
        for text in ["", "127.0.0.1:4318", "ftp://a", "http://u:p@a", "http://a/?b=c"] {
            assert!(read(text).is_err_and(|why| why.contains("http://127.0.0.1:4318")), "{text}");
        }
    }
}
