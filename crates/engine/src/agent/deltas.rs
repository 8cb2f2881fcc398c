//! What a model has said so far, and telling it to whoever listens.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use remuda_domain::{
    Fence, MessageId, RunId,
    event::{Delta, DeltaKind, DeltaOf},
    message::{Part, Reasoning},
};
use remuda_models as models;
use remuda_transport::Transport;
use tokio::{sync::Notify, time::Instant};

/// What is told again in one piece has to fit into a message of the transport.
const LONGEST_RETOLD: usize = 512 * 1024;

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
    /// When the first piece came.
    first_at: Option<Instant>,
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
        if piece != models::Delta::Restarted {
            so_far.first_at.get_or_insert_with(Instant::now);
        }
        match piece {
            models::Delta::Text(text) => so_far.text.said.push_str(&text),
            models::Delta::Reasoning(text) => so_far.reasoning.said.push_str(&text),
            models::Delta::ToolRequested { .. } => return,
            models::Delta::Restarted => *so_far = SoFar { restarted: true, ..SoFar::default() },
        }
        drop(so_far);
        self.news.notify_one();
    }

    /// How long after the question the first piece came.
    pub(super) fn first_after(&self, asked: Instant) -> Option<Duration> {
        self.lock().first_at.map(|first| first.saturating_duration_since(asked))
    }

    /// Waits for the answer and tells of its pieces meanwhile, to the last one; of all of them again when asked to.
    pub(super) async fn tell_while<T>(
        &self,
        answer: impl Future<Output = T>,
        transport: &dyn Transport,
        fence: Fence,
        again: &Notify,
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
                () = again.notified() => tell(self.tell_again()).await,
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
            is_news.then(|| self.piece(kind, offset, &strand.said))
        });
        news.collect()
    }

    /// All of the text so far, as one piece of each kind. Of a very long one, the end.
    fn tell_again(&self) -> Vec<Delta> {
        let mut so_far = self.lock();
        let mut retold = Vec::new();
        // What has just begun anew is to be forgotten first.
        if so_far.restarted {
            drop(so_far);
            return self.take_news();
        }
        let SoFar { text, reasoning, .. } = &mut *so_far;
        for (kind, strand) in [(DeltaKind::Reasoning, reasoning), (DeltaKind::Text, text)] {
            strand.told = strand.said.len();
            let offset = strand.said.ceil_char_boundary(strand.said.len().saturating_sub(LONGEST_RETOLD));
            if !strand.said.is_empty() {
                retold.push(self.piece(kind, offset, &strand.said));
            }
        }
        retold
    }

    fn piece(&self, kind: DeltaKind, offset: usize, said: &str) -> Delta {
        let text = said.get(offset..).unwrap_or_default().to_owned();
        let offset = u64::try_from(offset).unwrap_or(u64::MAX);
        Delta { run: self.run, of: DeltaOf::Message(self.message), kind, offset, text }
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

    #[tokio::test]
    async fn who_comes_in_the_middle_has_it_told_again() {
        use remuda_domain::{SessionId, TenantId, WorkerId};
        let (transport, again) = (remuda_transport::Memory::new(), Notify::new());
        let fence =
            Fence { tenant: TenantId::new(), session: SessionId::new(), worker: WorkerId::new(), epoch: 1 };
        let utterance = Utterance::new(RunId::new(), MessageId::new());
        let answer = async {
            utterance.hear(models::Delta::Text("Hello".to_owned()));
            // Told to nobody.
            tokio::task::yield_now().await;
            let mut late = transport.subscribe_deltas(fence.tenant, fence.session).await.unwrap();
            again.notify_one();
            late.next().await.unwrap()
        };
        let heard = utterance.tell_while(answer, &transport, fence, &again).await;
        assert_eq!((heard[0].offset, heard[0].text.as_str()), (0, "Hello"));
    }

    #[test]
    fn what_was_said_is_told_again_as_one_piece() {
        let utterance = Utterance::new(RunId::new(), MessageId::new());
        let text = |text: &str| models::Delta::Text(text.to_owned());
        assert_eq!(utterance.tell_again(), []);
        utterance.hear(text("Hel"));
        utterance.take_news();
        utterance.hear(text("lo"));
        let retold = utterance.tell_again();
        assert_eq!(retold.len(), 1);
        assert_eq!((retold[0].offset, retold[0].text.as_str()), (0, "Hello"));
        assert_eq!(utterance.take_news(), [], "it was all told");
        utterance.hear(models::Delta::Restarted);
        utterance.hear(text("Bye"));
        let retold = utterance.tell_again();
        let told: Vec<_> = retold.iter().map(|delta| (delta.offset, delta.text.as_str())).collect();
        assert_eq!(told, [(0, ""), (0, "Bye")], "a beginning is told as such");
        utterance.hear(text(&"é".repeat(LONGEST_RETOLD)));
        let retold = utterance.tell_again();
        assert!(retold[0].text.len() <= LONGEST_RETOLD && retold[0].offset > 0);
    }
}
