//! Many callers, one transaction.
//!
//! Requests that arrive while a flush is under way wait for the next one, which takes them all. An idle coalescer
//! flushes at once and nothing ever waits on a timer, so a single caller pays no delay and a thousand callers share one
//! commit. An [`Inbox`] gathers in the same way for a task that flushes requests of several kinds together.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt as _;
use remuda_domain::{Code, Error, error::Result};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::task::TaskTracker;

use crate::{error::is_retryable, meters::Batches};

/// Callers beyond this wait in line for a place in the queue.
const QUEUE: usize = 8192;
const CONFLICT_RETRIES: usize = 5;

type Waiting<Request, Response> = (Request, oneshot::Sender<Result<Response>>);

/// Requests of one kind that wait to be flushed.
#[derive(Debug)]
pub(crate) struct Inbox<Request, Response> {
    waiting: mpsc::Receiver<Waiting<Request, Response>>,
    taken: Vec<Waiting<Request, Response>>,
    max_batch: usize,
}

/// A batch and those who wait for its answers.
#[derive(Debug)]
pub(crate) struct Gathered<Request, Response> {
    pub(crate) requests: Arc<Vec<Request>>,
    callers: Vec<oneshot::Sender<Result<Response>>>,
}

impl<Request, Response> Inbox<Request, Response> {
    /// Waits for a request. `false` when there will be none any more. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> bool {
        if self.taken.is_empty() {
            self.taken.extend(self.waiting.recv().await);
        }
        !self.taken.is_empty()
    }

    /// Whether nothing waits at the moment.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.waiting.is_empty()
    }

    /// Takes what is there.
    pub(crate) fn take(&mut self) -> Gathered<Request, Response> {
        while self.taken.len() < self.max_batch
            && let Ok(waiting) = self.waiting.try_recv()
        {
            self.taken.push(waiting);
        }
        let (requests, callers): (Vec<_>, Vec<_>) = self.taken.drain(..).unzip();
        Gathered { requests: Arc::new(requests), callers }
    }
}

impl<Request, Response> Gathered<Request, Response> {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn answer(self, responses: Vec<Result<Response>>) {
        // A caller that went away needs no answer: its request is done all the same.
        for (caller, response) in self.callers.into_iter().zip(responses) {
            drop(caller.send(response));
        }
    }

    /// Answers those who have an answer, and keeps the others.
    pub(crate) fn answer_some(self, answers: Vec<Option<Result<Response>>>) -> Self
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

    /// Answers with what a flush of this kind alone comes to.
    pub(crate) async fn flush_alone<Flush, Flushed>(self, flush: Flush)
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

#[derive(Debug)]
pub(crate) struct Coalescer<Request, Response> {
    queue: mpsc::Sender<Waiting<Request, Response>>,
}

impl<Request, Response> Coalescer<Request, Response>
where
    Request: Clone + Send + Sync + 'static,
    Response: Send + 'static,
{
    /// Starts the task that flushes. `flush` answers every request of its batch, in order. An error of its own means that
    /// nothing was written: it fails them all when the database does not answer; otherwise each request is flushed by
    /// itself, so that one that cannot be stored does not take the others with it. The task ends when the coalescer is
    /// dropped, after it has flushed what was accepted.
    pub(crate) fn start<Flush, Flushed>(
        tracker: &TaskTracker,
        max_batch: usize,
        batches: Batches,
        flush: Flush,
    ) -> Self
    where
        Flush: Fn(Arc<Vec<Request>>) -> Flushed + Send + Sync + 'static,
        Flushed: Future<Output = Result<Vec<Result<Response>>>> + Send,
    {
        let (coalescer, mut inbox) = Self::gather(max_batch);
        tracker.spawn(async move {
            while inbox.wait().await {
                let (gathered, begun) = (inbox.take(), Instant::now());
                let responses = flush_all(&flush, Arc::clone(&gathered.requests)).await;
                batches.flushed(gathered.requests.len(), begun.elapsed());
                gathered.answer(responses);
            }
        });
        coalescer
    }

    /// Gathers for a task that flushes by itself. Whoever drops the inbox fails those who wait.
    pub(crate) fn gather(max_batch: usize) -> (Self, Inbox<Request, Response>) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        (Self { queue }, Inbox { waiting, taken: Vec::with_capacity(max_batch), max_batch })
    }

    /// Waits for the flush that carries the request. Dropping the future does not take the request back.
    pub(crate) async fn call(&self, request: Request) -> Result<Response> {
        let (sender, receiver) = oneshot::channel();
        let closed = || Error::unavailable("the store is shutting down");
        self.queue.send((request, sender)).await.map_err(|_| closed())?;
        receiver.await.map_err(|_| closed())?
    }
}

/// Flushes a batch. A failure that is not the database's silence is found out for each request by itself.
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
    tracing::warn!(error = error.chain(), requests = requests.len(), "a flush failed");
    if requests.len() == 1 || error.code() == Code::Unavailable {
        return requests.iter().map(|_| Err(error.duplicate())).collect();
    }
    let mut responses = Vec::with_capacity(requests.len());
    for request in requests.iter() {
        let alone = flush_once(flush, Arc::new(vec![request.clone()])).await;
        let unanswered = || Err(Error::internal("a request was not answered"));
        responses.push(alone.and_then(|mut responses| responses.pop().unwrap_or_else(unanswered)));
    }
    responses
}

/// One flush. A panic in it is its own failure and does not end the task that serves everyone.
async fn flush_once<Request, Response, Flush, Flushed>(
    flush: &Flush,
    requests: Arc<Vec<Request>>,
) -> Result<Vec<Result<Response>>>
where
    Flush: Fn(Arc<Vec<Request>>) -> Flushed,
    Flushed: Future<Output = Result<Vec<Result<Response>>>>,
{
    let flushing = AssertUnwindSafe(retrying(|| flush(Arc::clone(&requests))));
    flushing.catch_unwind().await.unwrap_or_else(|_| Err(Error::internal("a flush panicked")))
}

/// Tries a transaction again when it lost against another one.
pub(crate) async fn retrying<T, Attempt, Attempted>(attempt: Attempt) -> Result<T>
where
    Attempt: Fn() -> Attempted,
    Attempted: Future<Output = Result<T>>,
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
            Arc::new(Coalescer::start(&tracker, 1000, Batches::new("test"), move |batch: Arc<Vec<u32>>| {
                let (flushes, gate) = (Arc::clone(&flushes), Arc::clone(&gate));
                async move {
                    flushes.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    Ok(batch.iter().map(|n| Ok(n * 2)).collect())
                }
            }))
        };
        let call = |n| {
            let coalescer = Arc::clone(&coalescer);
            tracker.spawn(async move { coalescer.call(n).await.unwrap() })
        };
        // The first flush holds the first request; everything else has to wait for the second.
        let mut callers = vec![call(0)];
        while flushes.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        callers.extend((1..100).map(call));
        while coalescer.queue.capacity() > QUEUE - 99 {
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
        let coalescer =
            Coalescer::start(&tracker, 10, Batches::new("test"), |batch: Arc<Vec<bool>>| async move {
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
    async fn a_request_that_cannot_be_stored_fails_alone() {
        let tracker = TaskTracker::new();
        let coalescer =
            Coalescer::start(&tracker, 10, Batches::new("test"), |batch: Arc<Vec<u32>>| async move {
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
