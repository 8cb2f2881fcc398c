//! Changes that are made to their end, whether or not their callers wait for it.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use remuda_domain::error::{Error, Result};
use tokio::runtime::Handle;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};
use tracing::{Instrument as _, Span};

type Change<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// A change that becomes a task of its own when whoever waits for it goes away. As long as somebody waits it needs none.
pub(super) struct ToTheEnd<T: 'static> {
    /// Missing once it is over.
    change: Option<Change<T>>,
    span: Span,
    tasks: TaskTracker,
    /// Whoever waits for all tasks waits for this one, too.
    _awaited: TaskTrackerToken,
}

impl<T> ToTheEnd<T> {
    pub(super) fn new(tasks: &TaskTracker, change: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        let change: Change<T> = Box::pin(change);
        Self { change: Some(change), span: Span::current(), tasks: tasks.clone(), _awaited: tasks.token() }
    }
}

impl<T> Future for ToTheEnd<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let Some(change) = &mut self.change else { return Poll::Pending };
        // One that panics is over, and its connection is everybody's.
        let polled = catch_unwind(AssertUnwindSafe(|| change.as_mut().poll(context)));
        let polled = polled.unwrap_or_else(|_| Poll::Ready(Err(Error::internal("a change was cut short"))));
        if polled.is_ready() {
            self.change = None;
        }
        polled
    }
}

impl<T> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        let (Some(change), Ok(runtime)) = (self.change.take(), Handle::try_current()) else { return };
        let rest = async move { drop(change.await) };
        self.tasks.spawn_on(rest.instrument(self.span.clone()), &runtime);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_change_goes_on_without_its_caller() {
        let tasks = TaskTracker::new();
        let (go_on, waits) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let mut change = Box::pin(ToTheEnd::new(&tasks, async move {
            waits.await.ok();
            done.send(()).ok();
            Ok(())
        }));
        assert!(futures::poll!(&mut change).is_pending());
        tasks.close();
        assert!(!tasks.is_empty(), "whoever shuts down waits for it");
        drop(change);
        go_on.send(()).unwrap();
        is_done.await.unwrap();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn what_is_over_leaves_nothing() {
        let tasks = TaskTracker::new();
        assert_eq!(ToTheEnd::new(&tasks, async { Ok(7) }).await.unwrap(), 7);
        let cut_short = ToTheEnd::<()>::new(&tasks, async { panic!("for once") }).await.unwrap_err();
        assert_eq!(cut_short.code(), remuda_domain::Code::Internal);
        // One that nobody ever waited for is made all the same.
        let (done, is_done) = oneshot::channel();
        drop(ToTheEnd::new(&tasks, async move {
            done.send(()).ok();
            Ok(())
        }));
        is_done.await.unwrap();
        tasks.close();
        tasks.wait().await;
    }
}
