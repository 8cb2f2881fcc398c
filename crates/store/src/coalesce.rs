//! Coalesces requests of many callers into one transaction.
//!
//! Requests that arrive during a flush wait for the next flush, which takes them all. An idle coalescer flushes
//! immediately and uses no timer: a single caller has no delay, and a thousand callers share one commit. An [`Inbox`]
//! collects requests in the same way for a task that flushes several kinds of requests together.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt as _;
use remuda_domain::{Error, error::Result};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::task::TaskTracker;

use crate::{error::is_retryable, meters::FlushMeter};

/// Callers beyond this wait until the queue has room.
const QUEUE_CAPACITY: usize = 8192;
const CONFLICT_RETRIES: usize = 5;

/// A request and the channel for its response.
type QueuedRequest<Request, Response> = (Request, oneshot::Sender<Result<Response>>);

/// The receiving end of a coalescer: requests of one kind that wait for a flush.
#[derive(Debug)]
pub(crate) struct Inbox<Request, Response> {
    queue: mpsc::Receiver<QueuedRequest<Request, Response>>,
    buffered: Vec<QueuedRequest<Request, Response>>,
    max_batch: usize,
}

/// The requests of one flush, and the callers that wait for the responses.
#[derive(Debug)]
pub(crate) struct Batch<Request, Response> {
    pub(crate) requests: Arc<Vec<Request>>,
    callers: Vec<oneshot::Sender<Result<Response>>>,
}

impl<Request, Response> Inbox<Request, Response> {
    /// Waits for a request. Returns `false` once the coalescer was dropped and the queue is empty. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> bool {
        if self.buffered.is_empty() {
            self.buffered.extend(self.queue.recv().await);
        }
        !self.buffered.is_empty()
    }

    /// Whether no request waits at the moment.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffered.is_empty() && self.queue.is_empty()
    }

    /// Takes the waiting requests, at most `max_batch`.
    pub(crate) fn take(&mut self) -> Batch<Request, Response> {
        while self.buffered.len() < self.max_batch
            && let Ok(request) = self.queue.try_recv()
        {
            self.buffered.push(request);
        }
        let (requests, callers): (Vec<_>, Vec<_>) = self.buffered.drain(..).unzip();
        Batch { requests: Arc::new(requests), callers }
    }
}

impl<Request, Response> Batch<Request, Response> {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn answer(self, responses: Vec<Result<Response>>) {
        // A caller may have gone away; its request took effect anyway.
        for (caller, response) in self.callers.into_iter().zip(responses) {
            drop(caller.send(response));
        }
    }

    /// Fails all requests. Returns the batch of the other requests: none.
    pub(crate) fn fail(self, error: &Error) -> Self
    where
        Request: Clone,
    {
        let answers = self.requests.iter().map(|_| Some(Err(error.duplicate()))).collect();
        self.answer_ready(answers)
    }

    /// Sends the available answers and returns the batch of the other requests.
    pub(crate) fn answer_ready(self, answers: Vec<Option<Result<Response>>>) -> Self
    where
        Request: Clone,
    {
        let (mut requests, mut callers) = (Vec::new(), Vec::new());
        for ((request, caller), answer) in self.requests.iter().zip(self.callers).zip(answers) {
            match answer {
                Some(answer) => drop(caller.send(answer)),
                None => {
                    requests.push(request.clone());
                    callers.push(caller);
                }
            }
        }
        Self { requests: Arc::new(requests), callers }
    }

    /// Flushes this batch by itself and sends the responses.
    pub(crate) async fn flush_separately<Flush, Flushed>(self, flush: Flush)
    where
        Request: Clone,
        Flush: Fn(Arc<Vec<Request>>) -> Flushed,
        Flushed: Future<Output = Result<Vec<Result<Response>>>>,
    {
        if !self.is_empty() {
            let responses = flush_all(&flush, Arc::clone(&self.requests)).await;
            self.answer(responses);
        }
    }
}

/// The sending end: callers submit requests and wait for the flush that contains them.
#[derive(Debug)]
pub(crate) struct Coalescer<Request, Response> {
    queue: mpsc::Sender<QueuedRequest<Request, Response>>,
}

impl<Request, Response> Coalescer<Request, Response>
where
    Request: Clone + Send + Sync + 'static,
    Response: Send + 'static,
{
    /// Starts the flush task. `flush` must answer every request of its batch, in order. If `flush` itself fails,
    /// nothing was written: all requests fail if the database is unavailable; otherwise each request is flushed
    /// separately, so that one bad request does not fail the others. The task ends when the coalescer is dropped, after
    /// it has flushed the queued requests.
    pub(crate) fn start<Flush, Flushed>(
        tracker: &TaskTracker,
        max_batch: usize,
        meter: FlushMeter,
        flush: Flush,
    ) -> Self
    where
        Flush: Fn(Arc<Vec<Request>>) -> Flushed + Send + Sync + 'static,
        Flushed: Future<Output = Result<Vec<Result<Response>>>> + Send,
    {
        let (coalescer, mut inbox) = Self::with_inbox(max_batch);
        tracker.spawn(async move {
            while inbox.wait().await {
                let (batch, begun) = (inbox.take(), Instant::now());
                let responses = flush_all(&flush, Arc::clone(&batch.requests)).await;
                meter.flushed(batch.requests.len(), begun.elapsed());
                batch.answer(responses);
            }
        });
        coalescer
    }

    /// Creates a coalescer for a task that flushes by itself. Dropping the inbox fails all waiting callers.
    pub(crate) fn with_inbox(max_batch: usize) -> (Self, Inbox<Request, Response>) {
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        (
            Self { queue: sender },
            Inbox { queue: receiver, buffered: Vec::with_capacity(max_batch), max_batch },
        )
    }

    /// Queues the request and waits for its flush. Dropping the future does not cancel the request.
    pub(crate) async fn call(&self, request: Request) -> Result<Response> {
        let (sender, receiver) = oneshot::channel();
        let closed = || Error::unavailable("the store is shutting down");
        self.queue.send((request, sender)).await.map_err(|_| closed())?;
        receiver.await.map_err(|_| closed())?
    }
}

/// Flushes a batch. If that fails although the database is available, flushes each request separately.
pub(crate) async fn flush_all<Request, Response, Flush, Flushed>(
    flush: &Flush,
    requests: Arc<Vec<Request>>,
) -> Vec<Result<Response>>
where
    Request: Clone,
    Flush: Fn(Arc<Vec<Request>>) -> Flushed,
    Flushed: Future<Output = Result<Vec<Result<Response>>>>,
{
    if requests.is_empty() {
        return Vec::new();
    }
    let error = match flush_once(flush, Arc::clone(&requests)).await {
        Ok(responses) => return responses,
        Err(error) => error,
    };
    tracing::warn!(error = error.chain(), requests = requests.len(), "flush failed");
    if requests.len() == 1 || error.code().is_outage() {
        return requests.iter().map(|_| Err(error.duplicate())).collect();
    }
    let mut responses = Vec::with_capacity(requests.len());
    for request in requests.iter() {
        let alone = flush_once(flush, Arc::new(vec![request.clone()])).await;
        let unanswered = || Err(Error::internal("flush returned no response for a request"));
        responses.push(alone.and_then(|mut responses| responses.pop().unwrap_or_else(unanswered)));
    }
    responses
}

/// Runs one flush. A panic fails this flush only and does not end the flush task.
async fn flush_once<Request, Response, Flush, Flushed>(
    flush: &Flush,
    requests: Arc<Vec<Request>>,
) -> Result<Vec<Result<Response>>>
where
    Flush: Fn(Arc<Vec<Request>>) -> Flushed,
    Flushed: Future<Output = Result<Vec<Result<Response>>>>,
{
    let flushing = AssertUnwindSafe(retry_on_conflict(|| flush(Arc::clone(&requests))));
    flushing.catch_unwind().await.unwrap_or_else(|_| Err(Error::internal("flush panicked")))
}

/// Retries a transaction that failed because of a conflict with another one.
pub(crate) async fn retry_on_conflict<T, Attempt, AttemptedRun>(attempt: Attempt) -> Result<T>
where
    Attempt: Fn() -> AttemptedRun,
    AttemptedRun: Future<Output = Result<T>>,
{
    let mut retries = 0;
    loop {
        match attempt().await {
            Err(error) if is_retryable(&error) && retries < CONFLICT_RETRIES => retries += 1,
            outcome => return outcome,
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
            Arc::new(Coalescer::start(
                &tracker,
                1000,
                FlushMeter::new("test"),
                move |batch: Arc<Vec<u32>>| {
                    let (flushes, gate) = (Arc::clone(&flushes), Arc::clone(&gate));
                    async move {
                        flushes.fetch_add(1, Ordering::SeqCst);
                        gate.acquire().await.unwrap().forget();
                        Ok(batch.iter().map(|n| Ok(n * 2)).collect())
                    }
                },
            ))
        };
        let call = |n| {
            let coalescer = Arc::clone(&coalescer);
            tracker.spawn(async move { coalescer.call(n).await.unwrap() })
        };
        // The first flush has the first request; all others wait for the second flush.
        let mut callers = vec![call(0)];
        while flushes.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        callers.extend((1..100).map(call));
        while coalescer.queue.capacity() > QUEUE_CAPACITY - 99 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        for (n, caller) in callers.into_iter().enumerate() {
            assert_eq!(caller.await.unwrap() as usize, n * 2);
        }
        assert_eq!(flushes.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn failed_flush_fails_only_its_own_requests() {
        let tracker = TaskTracker::new();
        let coalescer =
            Coalescer::start(&tracker, 10, FlushMeter::new("test"), |batch: Arc<Vec<bool>>| async move {
                if batch[0] {
                    Ok(batch.iter().map(|_| Ok(())).collect())
                } else {
                    Err(Error::unavailable("down"))
                }
            });
        assert!(coalescer.call(false).await.is_err());
        assert!(coalescer.call(true).await.is_ok());
    }

    #[tokio::test]
    async fn request_that_cannot_be_stored_fails_alone() {
        let tracker = TaskTracker::new();
        let coalescer =
            Coalescer::start(&tracker, 10, FlushMeter::new("test"), |batch: Arc<Vec<u32>>| async move {
                assert!(!batch.contains(&13), "unlucky");
                if batch.contains(&7) {
                    return Err(Error::internal("refused"));
                }
                Ok(batch.iter().map(|n| Ok(*n)).collect())
            });
        let outcomes = futures::future::join_all([1, 7, 2, 13, 3].map(|n| coalescer.call(n))).await;
        let stored: Vec<u32> = outcomes.into_iter().flatten().collect();
        assert_eq!(stored, [1, 2, 3]);
        assert!(coalescer.call(4).await.is_ok());
    }
}
