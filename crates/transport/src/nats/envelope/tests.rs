//! What is accepted, and what is rejected and why.

use std::time::Instant;

use async_nats::StatusCode;
use async_trait::async_trait;
use parking_lot::Mutex;
use remuda_domain::{
    BusKeyId,
    bus::{BusKey, BusSigner},
};

use super::*;
use crate::bus_signing::{KeySource, SignsAs, new_bus_secret};

const SUBJECT: &str = "remuda.ends.x";
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[derive(Default)]
struct Keys(Mutex<Vec<BusKey>>);

#[async_trait]
impl KeySource for Keys {
    async fn keys(&self) -> Result<Vec<BusKey>> {
        Ok(self.0.lock().clone())
    }
}

struct Fixture {
    keys: Arc<Keys>,
}

impl Fixture {
    fn new() -> Self {
        let key = BusKey { signer: BusSigner::Installation(BusKeyId::new()), secret: new_bus_secret() };
        Self { keys: Arc::new(Keys(Mutex::new(vec![key]))) }
    }

    async fn envelope(&self, signing: Signing, signs_as: SignsAs) -> Envelope {
        let keys = Arc::clone(&self.keys) as Arc<dyn KeySource>;
        Envelope::new(Some(BusSigning { signing, signs_as, keys }), TaskTracker::new()).await.unwrap()
    }

    async fn requiring(&self) -> Envelope {
        self.envelope(Signing::Require, SignsAs::Installation).await
    }
}

fn message(subject: &str, sealed: Sealed) -> Message {
    Message {
        subject: subject.into(),
        reply: None,
        length: sealed.payload.len(),
        payload: sealed.payload,
        headers: sealed.headers,
        status: None::<StatusCode>,
        description: None,
    }
}

fn sealed(envelope: &Envelope) -> Message {
    message(SUBJECT, envelope.seal(SUBJECT, Bytes::from_static(b"payload"), TRACE.parse().ok()))
}

async fn verdict(envelope: &Envelope, message: &Message) -> Result<Sender, Rejection> {
    envelope.verify(message, &mut ReplayWindow::default()).await
}

#[tokio::test]
async fn signed_message_is_opened_with_its_sender_and_trace() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.requiring().await, fixture.requiring().await);
    let mut received = ReplayWindow::default();
    let opened = other.open(Kind::Ends, sealed(&one), &mut received).await.unwrap();
    assert_eq!((opened.sender, &opened.payload[..]), (Some(Sender::Installation), &b"payload"[..]));
    assert_eq!(opened.origin, TRACE.parse().ok());

    let (worker, secret) = (WorkerId::new(), new_bus_secret());
    let of_worker = fixture.envelope(Signing::Require, SignsAs::Worker).await;
    of_worker.sign_as(worker, &secret);
    assert_eq!(verdict(&other, &sealed(&of_worker)).await, Err(Rejection::UnknownKey), "not registered yet");
    fixture.keys.0.lock().push(BusKey { signer: BusSigner::Worker(worker), secret });
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(verdict(&other, &sealed(&of_worker)).await, Ok(Sender::Worker(worker)));
}

#[tokio::test]
async fn altered_moved_and_repeated_messages_are_rejected() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.requiring().await, fixture.requiring().await);
    let genuine = sealed(&one);
    let mut received = ReplayWindow::default();
    assert_eq!(other.verify(&genuine, &mut received).await, Ok(Sender::Installation));
    assert_eq!(other.verify(&genuine, &mut received).await, Err(Rejection::Replayed));
    let payload = Message { payload: Bytes::from_static(b"Payload"), ..genuine.clone() };
    assert_eq!(verdict(&other, &payload).await, Err(Rejection::Altered));
    let moved = Message { subject: "remuda.ends.y".into(), ..genuine.clone() };
    assert_eq!(verdict(&other, &moved).await, Err(Rejection::Altered));
    let mut retraced = genuine.clone();
    retraced.headers.as_mut().unwrap().insert(TRACEPARENT, TRACE.replace("b7ad", "b7ae").as_str());
    assert_eq!(verdict(&other, &retraced).await, Err(Rejection::Altered));
    let mut garbage = genuine.clone();
    garbage.headers.as_mut().unwrap().insert(PROOF, "x");
    assert_eq!(verdict(&other, &garbage).await, Err(Rejection::Malformed));
    let stranger = Fixture::new().requiring().await;
    assert_eq!(verdict(&other, &sealed(&stranger)).await, Err(Rejection::UnknownKey));
}

#[tokio::test]
async fn message_of_another_time_is_rejected() {
    let fixture = Fixture::new();
    let envelope = fixture.requiring().await;
    let own = envelope.keyring.as_ref().unwrap().own().unwrap();
    let at = |sent_at| {
        let claims = Claims { signer: own.signer, process: 1, sent_at, count: 1 };
        let proof = claims.prove(&own.key, Signed { subject: SUBJECT, trace: "", payload: b"" });
        let mut headers = HeaderMap::new();
        headers.insert(PROOF, proof);
        message(SUBJECT, Sealed { headers: Some(headers), payload: Bytes::new() })
    };
    let now = milliseconds(SystemTime::now());
    for (sent_at, expected) in [
        (now - 50_000, Ok(Sender::Installation)),
        (now + 50_000, Ok(Sender::Installation)),
        (now - 62_000, Err(Rejection::Stale)),
        (now + 62_000, Err(Rejection::Stale)),
        (0, Err(Rejection::Stale)),
        (u64::MAX, Err(Rejection::Stale)),
    ] {
        assert_eq!(verdict(&envelope, &at(sent_at)).await, expected, "{sent_at} at {now}");
    }
}

#[tokio::test]
async fn signing_is_introduced_without_losing_messages() {
    use Signing::{Off, Require, Sign};
    let fixture = Fixture::new();
    let unsigned = Err(Rejection::Unsigned);
    for (from, to, expected) in [
        (Off, Off, Ok(Sender::Assumed)),
        (Off, Sign, Ok(Sender::Assumed)),
        (Sign, Off, Ok(Sender::Assumed)),
        (Sign, Sign, Ok(Sender::Installation)),
        (Sign, Require, Ok(Sender::Installation)),
        (Require, Sign, Ok(Sender::Installation)),
        (Off, Require, unsigned),
    ] {
        let sender = fixture.envelope(from, SignsAs::Installation).await;
        let receiver = fixture.envelope(to, SignsAs::Installation).await;
        assert_eq!(verdict(&receiver, &sealed(&sender)).await, expected, "{from:?} to {to:?}");
    }
    // Once signing has begun, a wrong signature is not taken for none.
    let stranger = Fixture::new().requiring().await;
    let receiver = fixture.envelope(Sign, SignsAs::Installation).await;
    assert_eq!(verdict(&receiver, &sealed(&stranger)).await, Err(Rejection::UnknownKey));
}

#[tokio::test]
async fn keys_rotate_without_a_rejected_message() {
    let fixture = Fixture::new();
    let (before, other) = (fixture.requiring().await, fixture.requiring().await);
    let key = BusKey { signer: BusSigner::Installation(BusKeyId::new()), secret: new_bus_secret() };
    fixture.keys.0.lock().insert(0, key);
    // Reads the keys after the rotation.
    let after = fixture.requiring().await;
    tokio::time::sleep(Duration::from_millis(250)).await;
    for (from, to) in [(&before, &other), (&after, &other), (&before, &after)] {
        assert_eq!(verdict(to, &sealed(from)).await, Ok(Sender::Installation));
    }
    // The old key retires.
    fixture.keys.0.lock().pop();
    let newest = fixture.requiring().await;
    assert_eq!(verdict(&newest, &sealed(&before)).await, Err(Rejection::UnknownKey));
    assert_eq!(verdict(&newest, &sealed(&after)).await, Ok(Sender::Installation));
}

#[tokio::test]
async fn rejected_messages_are_hints_of_bounded_number() {
    let fixture = Fixture::new();
    let envelope = fixture.requiring().await;
    let unsigned = || message(SUBJECT, Sealed::hint(Bytes::from_static(b"forged"), TRACE.parse().ok()));
    let mut received = ReplayWindow::default();
    let begun = Instant::now();
    let mut hints = 0;
    for _ in 0..10 * HINTS_PER_SECOND {
        if let Some(hint) = envelope.open(Kind::Events, unsigned(), &mut received).await {
            assert_eq!((hint.sender, hint.origin), (None, None));
            hints += 1;
        }
        assert!(envelope.open(Kind::Deltas, unsigned(), &mut received).await.is_none());
    }
    let seconds = begun.elapsed().as_secs() + 1;
    assert!(
        hints >= HINTS_PER_SECOND && u64::from(hints) <= seconds * u64::from(HINTS_PER_SECOND),
        "{hints}"
    );
}

#[tokio::test]
async fn headers_fit_into_the_room_that_is_reserved_for_them() {
    let envelope = Fixture::new().requiring().await;
    let headers = sealed(&envelope).headers.unwrap();
    let size: usize = headers
        .iter()
        .map(|(name, values)| {
            // `name: value` and the end of the line.
            values.iter().map(|value| name.to_string().len() + value.as_str().len() + 4).sum::<usize>()
        })
        .sum();
    assert!("NATS/1.0\r\n\r\n".len() + size <= MAX_HEADERS, "{size}");
}
