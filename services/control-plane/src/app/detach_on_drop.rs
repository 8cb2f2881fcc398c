//! Runs a change to completion even if its caller disconnects.

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

/// A future that is polled in place and moves to a task of its own when it is dropped unfinished. A caller that stays
/// pays for no task.
pub(super) struct DetachOnDrop<T: 'static> {
    /// `None` once it has finished.
    change: Option<Change<T>>,
    span: Span,
    tasks: TaskTracker,
    /// Makes the tracker wait for this future, too.
    _tracked: TaskTrackerToken,
}

impl<T> DetachOnDrop<T> {
    pub(super) fn new(tasks: &TaskTracker, change: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        let change: Change<T> = Box::pin(change);
        Self { change: Some(change), span: Span::current(), tasks: tasks.clone(), _tracked: tasks.token() }
    }
}

impl<T> Future for DetachOnDrop<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let Some(change) = &mut self.change else { return Poll::Pending };
        // Other requests share this connection: a panic must not take them down.
        let polled = catch_unwind(AssertUnwindSafe(|| change.as_mut().poll(context)));
        let polled = polled.unwrap_or_else(|_| Poll::Ready(Err(Error::internal("the change panicked"))));
        if polled.is_ready() {
            self.change = None;
        }
        polled
    }
}

impl<T> Drop for DetachOnDrop<T> {
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
    async fn dropped_change_continues_as_a_task() {
        let tasks = TaskTracker::new();
        let (go_on, waits) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let mut change = Box::pin(DetachOnDrop::new(&tasks, async move {
            waits.await.ok();
            done.send(()).ok();
            Ok(())
        }));
        assert!(futures::poll!(&mut change).is_pending());
        tasks.close();
        assert!(!tasks.is_empty(), "shutdown waits for it");
        drop(change);
        go_on.send(()).unwrap();
        is_done.await.unwrap();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn finished_or_panicked_change_leaves_no_task() {
        let tasks = TaskTracker::new();
        assert_eq!(DetachOnDrop::new(&tasks, async { Ok(7) }).await.unwrap(), 7);
        let panicked = DetachOnDrop::<()>::new(&tasks, async { panic!("for once") }).await.unwrap_err();
        assert_eq!(panicked.code(), remuda_domain::Code::Internal);
        // A change that was never polled runs all the same.
        let (done, is_done) = oneshot::channel();
        drop(DetachOnDrop::new(&tasks, async move {
            done.send(()).ok();
            Ok(())
        }));
        is_done.await.unwrap();
        tasks.close();
        tasks.wait().await;
    }
}
