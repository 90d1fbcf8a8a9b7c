//! Bodies that nobody reads: a call that is refused before its body was read leaves it on the connection,
//! where the next call's head would be looked for (RFC 9112, 9.3). So what is left is read and thrown
//! away; where that takes too long, the client is told that the connection ends.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};

use super::route::MOST_BYTES;

/// How long a client may take to send what nobody reads.
const PATIENCE: Duration = Duration::from_secs(2);

/// A body that is read in one place and finished in another.
#[derive(Clone)]
struct Shared(Arc<Mutex<Body>>);

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut Body) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl HttpBody for Shared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.with(|body| Pin::new(body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.with(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.with(|body| body.size_hint())
    }
}

/// Serve a call, and see that nothing of it is left on the connection.
pub(crate) async fn finish_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let body = Shared(Arc::new(Mutex::new(body)));
    let rest = body.clone();
    let mut response = next.run(Request::from_parts(parts, Body::new(body))).await;
    if rest.is_end_stream() {
        return response;
    }
    let read = axum::body::to_bytes(Body::new(rest), MOST_BYTES);
    if !matches!(tokio::time::timeout(PATIENCE, read).await, Ok(Ok(_))) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::post;
    use futures_util::stream;
    use tower::ServiceExt;

    use super::*;

    /// Posts chunks to a handler that reads none of them; gives back the answer, and how many were read.
    async fn post_unread(chunks: usize) -> (Response, usize) {
        let refuse = async || StatusCode::FORBIDDEN;
        let router =
            Router::new().route("/", post(refuse)).layer(axum::middleware::from_fn(finish_body));
        let read = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&read);
        let body = Body::from_stream(stream::iter((0..chunks).map(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>(vec![0; 65_536])
        })));
        let request = Request::post("/").body(body).expect("a request");
        let response = router.oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        (response, read.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn what_a_refused_call_brought_is_read_to_its_end() {
        let (response, read) = post_unread(10).await;
        assert_eq!(read, 10);
        assert_eq!(response.headers().get(header::CONNECTION), None);
    }

    #[tokio::test]
    async fn a_body_without_end_ends_the_connection() {
        let (response, read) = post_unread(usize::MAX).await;
        assert!(read * 65_536 <= 2 * MOST_BYTES, "{read}");
        assert_eq!(response.headers()[header::CONNECTION], "close");
    }
}
