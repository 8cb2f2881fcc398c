//! Buffers a streamed model response and publishes it as deltas.

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{
    Fence, MessageId, RunId,
    event::{Delta, DeltaKind, DeltaOf},
    message::{Part, Reasoning},
    step::ModelRetry,
};
use remuda_models as models;
use remuda_transport::Transport;
use tokio::{sync::Notify, time::Instant};

use crate::journal::now;

/// A resent delta has to fit into one message of the transport.
const MAX_RESENT_BYTES: usize = 512 * 1024;

/// A response that is being received. Bounded by the maximum size of a provider's response.
#[derive(Clone, Debug)]
pub(super) struct ResponseStream {
    run: RunId,
    message: MessageId,
    state: Arc<Mutex<StreamState>>,
    changed: Arc<Notify>,
    retrying: Arc<Notify>,
}

#[derive(Debug, Default)]
struct StreamState {
    text: TextBuffer,
    reasoning: TextBuffer,
    restarted: bool,
    /// When the first delta arrived.
    first_at: Option<Instant>,
    /// The last failed attempt that was not taken.
    retry: Option<ModelRetry>,
}

/// Text of one kind, and how much of it was published.
#[derive(Debug, Default)]
struct TextBuffer {
    content: String,
    published: usize,
}

impl StreamState {
    /// Notes the time of the first delta.
    fn received(&mut self) -> &mut Self {
        self.first_at.get_or_insert_with(Instant::now);
        self
    }
}

impl ResponseStream {
    pub(super) fn new(run: RunId, message: MessageId) -> Self {
        Self { run, message, state: Arc::default(), changed: Arc::default(), retrying: Arc::default() }
    }

    /// Appends a delta. Never waits.
    pub(super) fn push(&self, delta: models::Delta) {
        let mut state = self.lock();
        match delta {
            models::Delta::Text(text) => state.received().text.content.push_str(&text),
            models::Delta::Reasoning(text) => state.received().reasoning.content.push_str(&text),
            models::Delta::ToolRequested { .. } => {
                state.received();
                return;
            }
            models::Delta::Restarted => *state = StreamState { restarted: true, ..StreamState::default() },
            models::Delta::Retrying { attempt, failure, delay } => {
                state.retry = Some(ModelRetry { attempt, failure, next_at: now() + delay });
                self.retrying.notify_one();
                return;
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for the next failed attempt that is attempted again.
    pub(super) async fn next_retry(&self) -> ModelRetry {
        loop {
            if let Some(retry) = self.lock().retry.take() {
                return retry;
            }
            self.retrying.notified().await;
        }
    }

    /// Time from the request to the first delta.
    pub(super) fn time_to_first_delta(&self, sent_at: Instant) -> Option<Duration> {
        self.lock().first_at.map(|first| first.saturating_duration_since(sent_at))
    }

    /// Waits for the response and publishes its deltas meanwhile, to the last one. On `resend`, publishes the whole
    /// text again.
    pub(super) async fn publish_while<T>(
        &self,
        response: impl Future<Output = T>,
        transport: &dyn Transport,
        fence: Fence,
        resend: &Notify,
    ) -> T {
        let publish = async |deltas: Vec<Delta>| {
            if !deltas.is_empty() {
                transport.publish_deltas(fence.tenant, fence.session, &deltas).await;
            }
        };
        tokio::pin!(response);
        let response = loop {
            tokio::select! {
                biased;
                response = &mut response => break response,
                () = resend.notified() => publish(self.full_deltas()).await,
                deltas = self.next_deltas() => publish(deltas).await,
            }
        };
        publish(self.take_deltas()).await;
        response
    }

    /// Waits for text that was not published. Text that arrives during a publication is batched.
    async fn next_deltas(&self) -> Vec<Delta> {
        loop {
            self.changed.notified().await;
            let deltas = self.take_deltas();
            if !deltas.is_empty() {
                return deltas;
            }
        }
    }

    fn take_deltas(&self) -> Vec<Delta> {
        let mut state = self.lock();
        let restarted = std::mem::take(&mut state.restarted);
        let StreamState { text, reasoning, .. } = &mut *state;
        let buffers = [(DeltaKind::Reasoning, reasoning), (DeltaKind::Text, text)];
        let deltas = buffers.into_iter().filter_map(|(kind, buffer)| {
            let offset = std::mem::replace(&mut buffer.published, buffer.content.len());
            // After a restart, an empty delta at offset 0 tells clients to discard their text.
            let has_new_text = offset < buffer.content.len() || restarted;
            has_new_text.then(|| self.new_delta(kind, offset, &buffer.content))
        });
        deltas.collect()
    }

    /// The whole text so far, as one delta of each kind. Of a very long text, only the end.
    fn full_deltas(&self) -> Vec<Delta> {
        let mut state = self.lock();
        let mut resent = Vec::new();
        // After a restart, clients have to discard their text first.
        if state.restarted {
            drop(state);
            return self.take_deltas();
        }
        let StreamState { text, reasoning, .. } = &mut *state;
        for (kind, buffer) in [(DeltaKind::Reasoning, reasoning), (DeltaKind::Text, text)] {
            buffer.published = buffer.content.len();
            let offset =
                buffer.content.ceil_char_boundary(buffer.content.len().saturating_sub(MAX_RESENT_BYTES));
            if !buffer.content.is_empty() {
                resent.push(self.new_delta(kind, offset, &buffer.content));
            }
        }
        resent
    }

    fn new_delta(&self, kind: DeltaKind, offset: usize, text: &str) -> Delta {
        let text = text.get(offset..).unwrap_or_default().to_owned();
        let offset = u64::try_from(offset).unwrap_or(u64::MAX);
        Delta { run: self.run, of: DeltaOf::Message(self.message), kind, offset, text }
    }

    /// The text so far, as parts of a message.
    pub(super) fn parts(&self, model: &str) -> Vec<Part> {
        let state = self.lock();
        let reasoning = Part::Reasoning {
            reasoning: Reasoning {
                text: state.reasoning.content.clone(),
                model: model.to_owned(),
                ..Reasoning::default()
            },
        };
        let text = Part::text(state.text.content.clone());
        let parts = [(state.reasoning.content.is_empty(), reasoning), (state.text.content.is_empty(), text)];
        parts.into_iter().filter(|(is_empty, _)| !is_empty).map(|(_, part)| part).collect()
    }

    fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn deltas_have_offsets_and_a_restart_begins_at_zero() {
        let stream = ResponseStream::new(RunId::new(), MessageId::new());
        let text = |text: &str| models::Delta::Text(text.to_owned());
        stream.push(text("Hel"));
        stream.push(text("lo"));
        stream.push(models::Delta::Reasoning("hm".into()));
        let published = |deltas: Vec<Delta>| -> Vec<(DeltaKind, u64, String)> {
            deltas.into_iter().map(|delta| (delta.kind, delta.offset, delta.text)).collect()
        };
        assert_eq!(
            published(stream.next_deltas().await),
            [(DeltaKind::Reasoning, 0, "hm".into()), (DeltaKind::Text, 0, "Hello".into())]
        );
        stream.push(text(", you"));
        assert_eq!(published(stream.next_deltas().await), [(DeltaKind::Text, 5, ", you".into())]);
        stream.push(models::Delta::Restarted);
        stream.push(text("Bye"));
        assert_eq!(
            published(stream.next_deltas().await),
            [(DeltaKind::Reasoning, 0, String::new()), (DeltaKind::Text, 0, "Bye".into())]
        );
        assert_eq!(stream.parts("platform/m"), [Part::text("Bye")]);
    }

    #[tokio::test]
    async fn late_subscriber_gets_the_whole_text_on_resend() {
        use remuda_domain::{SessionId, TenantId, WorkerId};
        let (transport, resend) = (remuda_transport::Memory::new(), Notify::new());
        let fence =
            Fence { tenant: TenantId::new(), session: SessionId::new(), worker: WorkerId::new(), epoch: 1 };
        let stream = ResponseStream::new(RunId::new(), MessageId::new());
        let response = async {
            stream.push(models::Delta::Text("Hello".to_owned()));
            // Published without a subscriber.
            tokio::task::yield_now().await;
            let mut late = transport.subscribe_deltas(fence.tenant, fence.session).await.unwrap();
            resend.notify_one();
            late.next().await.unwrap()
        };
        let received = stream.publish_while(response, &transport, fence, &resend).await;
        assert_eq!((received[0].offset, received[0].text.as_str()), (0, "Hello"));
    }

    #[test]
    fn resend_publishes_the_text_as_one_bounded_delta() {
        let stream = ResponseStream::new(RunId::new(), MessageId::new());
        let text = |text: &str| models::Delta::Text(text.to_owned());
        assert_eq!(stream.full_deltas(), []);
        stream.push(text("Hel"));
        stream.take_deltas();
        stream.push(text("lo"));
        let resent = stream.full_deltas();
        assert_eq!(resent.len(), 1);
        assert_eq!((resent[0].offset, resent[0].text.as_str()), (0, "Hello"));
        assert_eq!(stream.take_deltas(), [], "everything was published");
        stream.push(models::Delta::Restarted);
        stream.push(text("Bye"));
        let resent = stream.full_deltas();
        let published: Vec<_> = resent.iter().map(|delta| (delta.offset, delta.text.as_str())).collect();
        assert_eq!(published, [(0, ""), (0, "Bye")], "the restart comes first");
        stream.push(text(&"é".repeat(MAX_RESENT_BYTES)));
        let resent = stream.full_deltas();
        assert!(resent[0].text.len() <= MAX_RESENT_BYTES && resent[0].offset > 0);
    }
}
