use super::*;
use remuda_domain::MessageId;

struct Talk {
    speech: Speech,
    message: MessageId,
}

impl Talk {
    fn new() -> Self {
        Self { speech: Speech::default(), message: MessageId::new() }
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

    /// What comes of a piece: offset and text of what is told.
    fn hear(&mut self, offset: u64, text: &str) -> Option<(u64, String)> {
        match self.speech.hear(self.piece(offset, text)) {
            Heard::News(delta) => Some((delta.offset, delta.text)),
            Heard::Nothing => None,
            Heard::Gap => panic!("a gap"),
        }
    }

    fn so_far(&mut self) -> Vec<(u64, String)> {
        self.speech.so_far().iter().map(|delta| (delta.offset, delta.text.clone())).collect()
    }
}

fn told(offset: u64, text: &str) -> Option<(u64, String)> {
    Some((offset, text.to_owned()))
}

#[test]
fn pieces_are_told_once_and_a_late_one_hears_all() {
    let mut talk = Talk::new();
    assert_eq!(talk.so_far(), []);
    assert_eq!(talk.hear(0, "Hel"), told(0, "Hel"));
    assert_eq!(talk.hear(3, "lo"), told(3, "lo"));
    assert_eq!(talk.so_far(), [(0, "Hello".to_owned())]);
    // Told again for someone else: nothing new, then with what came since.
    assert_eq!(talk.hear(0, "Hello"), None);
    assert_eq!(talk.hear(0, "Hello, yöu"), told(5, ", yöu"));
    assert_eq!(talk.hear(11, "!"), told(11, "!"));
    assert_eq!(talk.so_far(), [(0, "Hello, yöu!".to_owned())]);
}

#[test]
fn a_new_beginning_is_told_as_it_is() {
    let mut talk = Talk::new();
    talk.hear(0, "Hello");
    assert_eq!(talk.hear(0, ""), told(0, ""), "all of it is to be forgotten");
    assert_eq!(talk.hear(0, "Hello"), told(0, "Hello"));
    assert_eq!(talk.hear(0, "Hel"), told(0, "Hel"), "shorter than what was told, so no retelling");
    assert_eq!(talk.hear(3, "p me"), told(3, "p me"));
    assert_eq!(talk.hear(0, "Other words"), told(0, "Other words"));
    assert_eq!(talk.hear(5, "!"), told(5, "!"));
    assert_eq!(talk.so_far(), [(0, "Other!".to_owned())]);
    // An offset within a character is nobody's fault here.
    talk.hear(0, "éé");
    assert_eq!(talk.hear(1, "x"), told(1, "x"));
    assert_eq!(talk.so_far(), [(1, "x".to_owned())]);
}

#[test]
fn what_is_missing_is_asked_for_and_at_last_done_without() {
    let mut talk = Talk::new();
    let gap = |talk: &mut Talk, offset| talk.speech.hear(talk.piece(offset, "x"));
    assert_eq!(gap(&mut talk, 5), Heard::Gap, "it began before anybody listened");
    talk.speech.note_asked();
    assert_eq!(talk.hear(0, "Hellox"), told(0, "Hellox"));
    assert_eq!(gap(&mut talk, 9), Heard::Gap, "lost on the way");
    assert_eq!(talk.hear(0, "Hellox, x"), told(6, ", x"));
    for _ in 0..MAX_ASKS {
        assert_eq!(gap(&mut talk, 20), Heard::Gap);
        talk.speech.note_asked();
    }
    assert_eq!(talk.hear(21, "late"), told(21, "late"), "nobody answers");
    assert_eq!(talk.so_far(), [(21, "late".to_owned())]);
    // An answer that comes after all makes it whole.
    let whole = "Hellox, x and so on, late";
    assert_eq!(talk.hear(0, whole), told(0, whole));
    assert_eq!(talk.so_far(), [(0, whole.to_owned())]);
}

#[test]
fn complete_messages_and_ended_runs_are_forgotten() {
    use remuda_domain::{EventId, SessionId, Timestamp, message::Role};
    let event = |run, body| Event {
        id: EventId::new(),
        cursor: 1,
        session: SessionId::new(),
        run,
        at: Timestamp::UNIX_EPOCH,
        body,
    };
    let mut talk = Talk::new();
    talk.hear(0, "Hello");
    let message = talk.message;
    let complete =
        EventBody::MessageCompleted { message, role: Role::Assistant, agent: None, parts: Vec::new() };
    talk.speech.note(&event(None, complete));
    assert_eq!(talk.so_far(), []);
    assert_eq!(talk.hear(5, "late"), None);
    talk.message = MessageId::new();
    talk.hear(0, "Bye");
    talk.speech.note(&event(Some(RunId::new()), EventBody::RunCompleted));
    assert_eq!(talk.so_far().len(), 1);
    let run = talk.piece(0, "").run;
    talk.speech.note(&event(Some(run), EventBody::RunCompleted));
    assert_eq!(talk.so_far(), []);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut talk = Talk::new();
    let (mut offset, piece) = (0, "é".repeat(10_000));
    for _ in 0..100 {
        assert_eq!(talk.hear(offset, &piece), told(offset, &piece));
        offset += piece.len() as u64;
    }
    let so_far = talk.so_far();
    assert!(so_far[0].1.len() <= MAX_BYTES && so_far[0].0 > 0);
    assert_eq!(so_far[0].0 + so_far[0].1.len() as u64, offset, "the end is known");
    for _ in 0..100 {
        talk.message = MessageId::new();
        talk.hear(0, "x");
    }
    assert_eq!(talk.so_far().len(), MAX_STRANDS);
}
