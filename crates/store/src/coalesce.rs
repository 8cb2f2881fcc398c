//! Many callers, one transaction.
//!
//! Requests that arrive while a flush is under way wait for the next one, which takes them all. An idle coalescer
//! flushes at once and nothing ever waits on a timer, so a single caller pays no delay and a thousand callers share one
//! commit.

use std::{future::Future, sync::Arc};

use remuda_domain::{Error, error::Result};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use crate::error::is_retryable;

/// Callers beyond this wait in line for a place in the queue.
const QUEUE: usize = 8192;
const CONFLICT_RETRIES: usize = 5;

type Waiting<Request, Response> = (Request, oneshot::Sender<Result<Response>>);

#[derive(Debug)]
pub(crate) struct Coalescer<Request, Response> {
    queue: mpsc::Sender<Waiting<Request, Response>>,
}

impl<Request, Response> Coalescer<Request, Response>
where
    Request: Send + Sync + 'static,
    Response: Send + 'static,
{
    /// Starts the task that flushes. `flush` answers every request of its batch, in order; an error of its own fails them
    /// all. The task ends when the coalescer is dropped, after it has flushed what was accepted.
    pub(crate) fn start<Flush, Flushed>(tracker: &TaskTracker, max_batch: usize, flush: Flush) -> Self
    where
        Flush: Fn(Arc<Vec<Request>>) -> Flushed + Send + Sync + 'static,
        Flushed: Future<Output = Result<Vec<Result<Response>>>> + Send,
    {
        let (queue, mut waiting) = mpsc::channel(QUEUE);
        tracker.spawn(async move {
            let mut taken: Vec<Waiting<Request, Response>> = Vec::with_capacity(max_batch);
            while waiting.recv_many(&mut taken, max_batch).await > 0 {
                let (requests, callers): (Vec<_>, Vec<_>) = taken.drain(..).unzip();
                answer(callers, flush_with_retry(&flush, Arc::new(requests)).await);
            }
        });
        Self { queue }
    }

    /// Waits for the flush that carries the request. Dropping the future does not take the request back.
    pub(crate) async fn call(&self, request: Request) -> Result<Response> {
        let (sender, receiver) = oneshot::channel();
        let closed = || Error::unavailable("the store is shutting down");
        self.queue.send((request, sender)).await.map_err(|_| closed())?;
        receiver.await.map_err(|_| closed())?
    }
}

async fn flush_with_retry<Request, Response, Flush, Flushed>(
    flush: &Flush,
    requests: Arc<Vec<Request>>,
) -> Result<Vec<Result<Response>>>
where
    Flush: Fn(Arc<Vec<Request>>) -> Flushed,
    Flushed: Future<Output = Result<Vec<Result<Response>>>>,
{
    let mut retries = 0;
    loop {
        match flush(Arc::clone(&requests)).await {
            Err(error) if is_retryable(&error) && retries < CONFLICT_RETRIES => retries += 1,
            outcome => return outcome,
        }
    }
}

fn answer<Response>(callers: Vec<oneshot::Sender<Result<Response>>>, outcome: Result<Vec<Result<Response>>>) {
    // A caller that went away needs no answer: its request is done all the same.
    match outcome {
        Ok(responses) => {
            for (caller, response) in callers.into_iter().zip(responses) {
                drop(caller.send(response));
            }
        }
        Err(error) => {
            tracing::warn!(error = error.chain(), requests = callers.len(), "a flush failed");
            for caller in callers {
                drop(caller.send(Err(error.duplicate())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn requests_that_arrive_during_a_flush_share_the_next_one() {
        let flushes = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let tracker = TaskTracker::new();
        let coalescer = {
            let (flushes, gate) = (Arc::clone(&flushes), Arc::clone(&gate));
            Arc::new(Coalescer::start(&tracker, 1000, move |batch: Arc<Vec<u32>>| {
                let (flushes, gate) = (Arc::clone(&flushes), Arc::clone(&gate));
                async move {
                    flushes.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    Ok(batch.iter().map(|n| Ok(n * 2)).collect())
                }
            }))
        };
        let callers: Vec<_> = (0..100)
            .map(|n| {
                let coalescer = Arc::clone(&coalescer);
                tracker.spawn(async move { coalescer.call(n).await.unwrap() })
            })
            .collect();
        // The first flush holds the first request; everything else has to wait for the second.
        while flushes.load(Ordering::SeqCst) == 0 || coalescer.queue.capacity() > QUEUE - 99 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        for (n, caller) in callers.into_iter().enumerate() {
            assert_eq!(caller.await.unwrap() as usize, n * 2);
        }
        assert_eq!(flushes.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn one_failed_flush_fails_its_requests_only() {
        let tracker = TaskTracker::new();
        let coalescer = Coalescer::start(&tracker, 10, |batch: Arc<Vec<bool>>| async move {
            if batch[0] {
                Ok(batch.iter().map(|_| Ok(())).collect())
            } else {
                Err(Error::unavailable("down"))
            }
        });
        assert!(coalescer.call(false).await.is_err());
        assert!(coalescer.call(true).await.is_ok());
    }
}
