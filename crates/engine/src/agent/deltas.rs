//! What a model has said so far, and telling it to whoever listens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_domain::{
    Fence, MessageId, RunId,
    event::{Delta, DeltaKind},
    message::{Part, Reasoning},
};
use remuda_models as models;
use remuda_transport::Transport;
use tokio::sync::Notify;

/// An answer on its way. Bounded by what a provider's answer may hold.
#[derive(Clone, Debug)]
pub(super) struct Utterance {
    run: RunId,
    message: MessageId,
    so_far: Arc<Mutex<SoFar>>,
    news: Arc<Notify>,
}

#[derive(Debug, Default)]
struct SoFar {
    text: Strand,
    reasoning: Strand,
    restarted: bool,
}

/// One kind of text, and how much of it was told.
#[derive(Debug, Default)]
struct Strand {
    said: String,
    told: usize,
}

impl Utterance {
    pub(super) fn new(run: RunId, message: MessageId) -> Self {
        Self { run, message, so_far: Arc::default(), news: Arc::default() }
    }

    /// Takes a piece. Never waits.
    pub(super) fn hear(&self, piece: models::Delta) {
        let mut so_far = self.lock();
        match piece {
            models::Delta::Text(text) => so_far.text.said.push_str(&text),
            models::Delta::Reasoning(text) => so_far.reasoning.said.push_str(&text),
            models::Delta::ToolRequested { .. } => return,
            models::Delta::Restarted => *so_far = SoFar { restarted: true, ..SoFar::default() },
        }
        drop(so_far);
        self.news.notify_one();
    }

    /// Waits for the answer and tells of its pieces meanwhile, to the last one.
    pub(super) async fn tell_while<T>(
        &self,
        answer: impl Future<Output = T>,
        transport: &dyn Transport,
        fence: Fence,
    ) -> T {
        let tell = async |news: Vec<Delta>| {
            if !news.is_empty() {
                transport.publish_deltas(fence.tenant, fence.session, &news).await;
            }
        };
        tokio::pin!(answer);
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut answer => break answer,
                news = self.news() => tell(news).await,
            }
        };
        tell(self.take_news()).await;
        answer
    }

    /// Waits for pieces that were not told. What arrives while they are told is told together.
    async fn news(&self) -> Vec<Delta> {
        loop {
            self.news.notified().await;
            let news = self.take_news();
            if !news.is_empty() {
                return news;
            }
        }
    }

    fn take_news(&self) -> Vec<Delta> {
        let mut so_far = self.lock();
        let restarted = std::mem::take(&mut so_far.restarted);
        let SoFar { text, reasoning, .. } = &mut *so_far;
        let strands = [(DeltaKind::Reasoning, reasoning), (DeltaKind::Text, text)];
        let news = strands.into_iter().filter_map(|(kind, strand)| {
            let offset = std::mem::replace(&mut strand.told, strand.said.len());
            // An empty piece at the beginning says that all of it is to be forgotten.
            let is_news = offset < strand.said.len() || restarted;
            is_news.then(|| Delta {
                run: self.run,
                message: self.message,
                kind,
                offset: u64::try_from(offset).unwrap_or(u64::MAX),
                text: strand.said[offset..].to_owned(),
            })
        });
        news.collect()
    }

    /// What was said until now, as parts of a message.
    pub(super) fn parts(&self, model: &str) -> Vec<Part> {
        let so_far = self.lock();
        let reasoning = Part::Reasoning {
            reasoning: Reasoning {
                text: so_far.reasoning.said.clone(),
                model: model.to_owned(),
                ..Reasoning::default()
            },
        };
        let text = Part::text(so_far.text.said.clone());
        let parts = [(so_far.reasoning.said.is_empty(), reasoning), (so_far.text.said.is_empty(), text)];
        parts.into_iter().filter(|(is_empty, _)| !is_empty).map(|(_, part)| part).collect()
    }

    fn lock(&self) -> MutexGuard<'_, SoFar> {
        self.so_far.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_have_offsets_and_a_restart_begins_anew() {
        let utterance = Utterance::new(RunId::new(), MessageId::new());
        let text = |text: &str| models::Delta::Text(text.to_owned());
        utterance.hear(text("Hel"));
        utterance.hear(text("lo"));
        utterance.hear(models::Delta::Reasoning("hm".into()));
        let told = |news: Vec<Delta>| -> Vec<(DeltaKind, u64, String)> {
            news.into_iter().map(|delta| (delta.kind, delta.offset, delta.text)).collect()
        };
        assert_eq!(
            told(utterance.news().await),
            [(DeltaKind::Reasoning, 0, "hm".into()), (DeltaKind::Text, 0, "Hello".into())]
        );
        utterance.hear(text(", you"));
        assert_eq!(told(utterance.news().await), [(DeltaKind::Text, 5, ", you".into())]);
        utterance.hear(models::Delta::Restarted);
        utterance.hear(text("Bye"));
        assert_eq!(
            told(utterance.news().await),
            [(DeltaKind::Reasoning, 0, String::new()), (DeltaKind::Text, 0, "Bye".into())]
        );
        assert_eq!(utterance.parts("platform/m"), [Part::text("Bye")]);
    }
}
