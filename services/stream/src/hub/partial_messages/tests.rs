use super::*;
use remuda_domain::MessageId;

struct Fixture {
    partial_messages: PartialMessages,
    message: MessageId,
}

impl Fixture {
    fn new() -> Self {
        Self { partial_messages: PartialMessages::default(), message: MessageId::new() }
    }

    fn piece(&self, offset: u64, text: &str) -> Delta {
        let run = RunId::from_uuid(self.message.as_uuid());
        Delta {
            run,
            of: DeltaOf::Message(self.message),
            kind: DeltaKind::Text,
            offset,
            text: text.to_owned(),
        }
    }

    /// Applies a delta and returns the offset and text that readers get.
    fn apply(&mut self, offset: u64, text: &str) -> Option<(u64, String)> {
        match self.partial_messages.apply(self.piece(offset, text)) {
            DeltaOutcome::New(delta) => Some((delta.offset, delta.text)),
            DeltaOutcome::Ignored => None,
            DeltaOutcome::Missing => panic!("unexpected gap"),
        }
    }

    fn snapshot(&mut self) -> Vec<(u64, String)> {
        self.partial_messages.snapshot().iter().map(|delta| (delta.offset, delta.text.clone())).collect()
    }
}

fn expected(offset: u64, text: &str) -> Option<(u64, String)> {
    Some((offset, text.to_owned()))
}

#[test]
fn deltas_are_delivered_once_and_the_snapshot_has_all_text() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.snapshot(), []);
    assert_eq!(fixture.apply(0, "Hel"), expected(0, "Hel"));
    assert_eq!(fixture.apply(3, "lo"), expected(3, "lo"));
    assert_eq!(fixture.snapshot(), [(0, "Hello".to_owned())]);
    // Resent for another process: nothing new, then with text added since.
    assert_eq!(fixture.apply(0, "Hello"), None);
    assert_eq!(fixture.apply(0, "Hello, yöu"), expected(5, ", yöu"));
    assert_eq!(fixture.apply(11, "!"), expected(11, "!"));
    assert_eq!(fixture.snapshot(), [(0, "Hello, yöu!".to_owned())]);
}

#[test]
fn restarted_message_is_delivered_from_its_new_start() {
    let mut fixture = Fixture::new();
    fixture.apply(0, "Hello");
    assert_eq!(fixture.apply(0, ""), expected(0, ""), "all text is discarded");
    assert_eq!(fixture.apply(0, "Hello"), expected(0, "Hello"));
    assert_eq!(fixture.apply(0, "Hel"), expected(0, "Hel"), "shorter than the known text, so not a resend");
    assert_eq!(fixture.apply(3, "p me"), expected(3, "p me"));
    assert_eq!(fixture.apply(0, "Other words"), expected(0, "Other words"));
    assert_eq!(fixture.apply(5, "!"), expected(5, "!"));
    assert_eq!(fixture.snapshot(), [(0, "Other!".to_owned())]);
    // An offset within a character must not panic.
    fixture.apply(0, "éé");
    assert_eq!(fixture.apply(1, "x"), expected(1, "x"));
    assert_eq!(fixture.snapshot(), [(1, "x".to_owned())]);
}

#[test]
fn missing_text_is_requested_and_finally_skipped() {
    let mut fixture = Fixture::new();
    let gap = |fixture: &mut Fixture, offset| fixture.partial_messages.apply(fixture.piece(offset, "x"));
    assert_eq!(gap(&mut fixture, 5), DeltaOutcome::Missing, "it started before the subscription");
    fixture.partial_messages.resend_requested();
    assert_eq!(fixture.apply(0, "Hellox"), expected(0, "Hellox"));
    assert_eq!(gap(&mut fixture, 9), DeltaOutcome::Missing, "lost in transit");
    assert_eq!(fixture.apply(0, "Hellox, x"), expected(6, ", x"));
    for _ in 0..MAX_RESEND_REQUESTS {
        assert_eq!(gap(&mut fixture, 20), DeltaOutcome::Missing);
        fixture.partial_messages.resend_requested();
    }
    assert_eq!(fixture.apply(21, "late"), expected(21, "late"), "the worker does not respond");
    assert_eq!(fixture.snapshot(), [(21, "late".to_owned())]);
    // A resend that comes after all completes the text.
    let whole = "Hellox, x and so on, late";
    assert_eq!(fixture.apply(0, whole), expected(0, whole));
    assert_eq!(fixture.snapshot(), [(0, whole.to_owned())]);
}

#[test]
fn text_of_completed_messages_and_ended_runs_is_dropped() {
    use remuda_domain::{EventId, SessionId, Timestamp, message::Role};
    let event = |run, body| Event {
        id: EventId::new(),
        cursor: 1,
        session: SessionId::new(),
        run,
        at: Timestamp::UNIX_EPOCH,
        body,
    };
    let mut fixture = Fixture::new();
    fixture.apply(0, "Hello");
    let message = fixture.message;
    let complete =
        EventBody::MessageCompleted { message, role: Role::Assistant, agent: None, parts: Vec::new() };
    fixture.partial_messages.apply_event(&event(None, complete));
    assert_eq!(fixture.snapshot(), []);
    assert_eq!(fixture.apply(5, "late"), None);
    fixture.message = MessageId::new();
    fixture.apply(0, "Bye");
    fixture.partial_messages.apply_event(&event(Some(RunId::new()), EventBody::RunCompleted));
    assert_eq!(fixture.snapshot().len(), 1);
    let run = fixture.piece(0, "").run;
    fixture.partial_messages.apply_event(&event(Some(run), EventBody::RunCompleted));
    assert_eq!(fixture.snapshot(), []);
}

#[test]
fn kept_text_is_bounded() {
    let mut fixture = Fixture::new();
    let (mut offset, piece) = (0, "é".repeat(10_000));
    for _ in 0..100 {
        assert_eq!(fixture.apply(offset, &piece), expected(offset, &piece));
        offset += piece.len() as u64;
    }
    let snapshot = fixture.snapshot();
    assert!(snapshot[0].1.len() <= MAX_BYTES && snapshot[0].0 > 0);
    assert_eq!(snapshot[0].0 + snapshot[0].1.len() as u64, offset, "the end is kept");
    for _ in 0..100 {
        fixture.message = MessageId::new();
        fixture.apply(0, "x");
    }
    assert_eq!(fixture.snapshot().len(), MAX_TEXTS);
}
