//! The body of a request: reserves memory as it arrives, and must not stall.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    BoxError,
    body::{Bytes, HttpBody},
};
use hyper::body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use remuda_domain::{Code, Error};
use remuda_proto::status::to_status;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::request_state;

/// Time limits of bodies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyTimes {
    /// Between two pieces.
    pub(crate) idle: Duration,
    /// For the whole body.
    pub(crate) whole: Duration,
}

pin_project! {
    /// A body that belongs to the current request. Its errors are statuses, which both protocols find again
    /// ([`body_error`]).
    #[derive(Debug)]
    pub struct MeteredBody<B> {
        #[pin]
        inner: B,
        times: BodyTimes,
        // There was no memory for the body. Its reader may go on to discard the rest.
        refused: bool,
        // When the whole body must be here. Set by the first wait: most bodies arrive with their request.
        end: Option<Instant>,
        // While a piece is awaited.
        #[pin]
        timer: Option<Sleep>,
    }
}

impl<B> MeteredBody<B> {
    pub(crate) fn new(inner: B, times: BodyTimes) -> Self {
        Self { inner, times, refused: false, end: None, timer: None }
    }
}

impl<B> HttpBody for MeteredBody<B>
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        match this.inner.poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                this.timer.set(None);
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                let reserved = if *this.refused { Ok(()) } else { request_state::reserve(bytes) };
                *this.refused |= reserved.is_err();
                Poll::Ready(Some(reserved.map(|()| frame).map_err(boxed)))
            }
            Poll::Ready(other) => Poll::Ready(other.map(|result| result.map_err(Into::into))),
            Poll::Pending => {
                if this.timer.is_none() {
                    let now = Instant::now();
                    let end = *this.end.get_or_insert(now + this.times.whole);
                    this.timer.set(Some(sleep_until(end.min(now + this.times.idle))));
                }
                let Some(timer) = this.timer.as_mut().as_pin_mut() else { return Poll::Pending };
                timer.poll(context).map(|()| {
                    this.timer.set(None);
                    let BodyTimes { idle, whole } = this.times;
                    let message = format!(
                        "the body stalled: expected a part of it every {idle:?}, and all of it in {whole:?}"
                    );
                    Some(Err(boxed(Error::new(Code::DeadlineExceeded, message).at("body"))))
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn boxed(error: Error) -> BoxError {
    to_status(&error).into()
}

/// The error of a [`MeteredBody`] among the causes of an error.
#[must_use]
pub fn body_error(error: &(dyn std::error::Error + 'static)) -> Option<Error> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|cause| cause.downcast_ref::<tonic::Status>()).map(remuda_proto::status::from_status)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use axum::body::Body;
    use futures::{StreamExt as _, stream};

    use super::*;
    use crate::{body_budget::BodyBudget, request_state::RequestState};

    const TIMES: BodyTimes = BodyTimes { idle: Duration::from_secs(20), whole: Duration::from_secs(60) };

    /// Reads a body to its end. Returns its length or its error, and the time it took.
    async fn read(body: Body) -> (Result<usize, Error>, Duration) {
        let (mut body, begun, mut length) = (Box::pin(MeteredBody::new(body, TIMES)), Instant::now(), 0);
        loop {
            match std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
                None => return (Ok(length), begun.elapsed()),
                Some(Ok(frame)) => length += frame.data_ref().map_or(0, Bytes::len),
                Some(Err(error)) => return (Err(body_error(&*error).unwrap()), begun.elapsed()),
            }
        }
    }

    /// A body of pieces of 1 KiB, each after a pause.
    fn pieces(
        count: usize,
        pause: Duration,
    ) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send {
        stream::iter(0..count).then(move |_| async move {
            tokio::time::sleep(pause).await;
            Ok(Bytes::from_static(&[0; 1024]))
        })
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_body_fails_after_the_pause_that_is_allowed() {
        let slow = Duration::from_secs(19);
        let (outcome, took) = read(Body::from_stream(pieces(3, slow))).await;
        assert_eq!((outcome.unwrap(), took), (3072, 3 * slow));
        let (outcome, took) = read(Body::from_stream(pieces(2, slow).chain(stream::pending()))).await;
        let error = outcome.unwrap_err();
        assert_eq!((error.code(), error.field()), (Code::DeadlineExceeded, Some("body")));
        assert_eq!(took, 2 * slow + TIMES.idle);
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_drips_fails_at_the_end_of_its_time() {
        let (outcome, took) = read(Body::from_stream(pieces(1000, Duration::from_secs(1)))).await;
        assert_eq!((outcome.unwrap_err().code(), took), (Code::DeadlineExceeded, TIMES.whole));
    }

    #[tokio::test]
    async fn body_of_a_request_without_a_caller_is_small_and_counted() {
        let budget = BodyBudget::new(1 << 20, 1 << 20);
        let request = |count| {
            let state = RequestState::new(IpAddr::V4(Ipv4Addr::LOCALHOST), &budget);
            let budget = budget.clone();
            state.scope(async move {
                let (outcome, _) = read(Body::from_stream(pieces(count, Duration::ZERO))).await;
                (outcome, budget.held())
            })
        };
        let (outcome, held) = request(16).await;
        assert_eq!((outcome.unwrap(), held), (16 << 10, (16 << 10) - 256));
        assert_eq!(budget.held(), 0, "the request is over");
        let (outcome, held) = request(17).await;
        assert_eq!((outcome.unwrap_err().code(), held), (Code::TooLarge, 0));
    }
}
