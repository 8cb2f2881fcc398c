//! Expected settings of the stream and consumers, and comparison with the actual ones.

use std::time::Duration;

use async_nats::jetstream::{
    consumer::{self, AckPolicy, DeliverPolicy, pull},
    stream::{self, DiscardPolicy, RetentionPolicy, StorageType},
};
use remuda_domain::Pool;

use super::{NatsOptions, subjects::Subjects};

/// Enough for some ten million tokens of about 100 bytes on disk.
const MAX_BYTES: i64 = 1 << 30;
/// A token is a subject; its payload is empty.
const MAX_MESSAGE_SIZE: i32 = 4096;
/// The shortest the server allows. Tokens carry no message id, so nothing is deduplicated.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(100);
/// Pull requests that may wait concurrently, of all workers of a pool. The server's default of 512 is too low.
const MAX_WAITING: i64 = 16_384;

/// One token per session, a second one is rejected. A token lives until it is finished.
pub(super) fn stream(subjects: &Subjects, options: &NatsOptions) -> stream::Config {
    stream::Config {
        name: subjects.stream(),
        subjects: vec![subjects.all_tokens()],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        num_replicas: options.replicas,
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        discard_new_per_subject: true,
        max_messages: -1,
        max_bytes: MAX_BYTES,
        max_message_size: MAX_MESSAGE_SIZE,
        max_consumers: -1,
        max_age: Duration::ZERO,
        duplicate_window: DUPLICATE_WINDOW,
        ..Default::default()
    }
}

/// Attempts are counted in the store, so the server never stops redelivering. A pool without workers keeps its
/// consumer.
pub(super) fn consumer(subjects: &Subjects, pool: &Pool, options: &NatsOptions) -> pull::Config {
    pull::Config {
        durable_name: Some(subjects.consumer(pool)),
        filter_subject: subjects.pool_tokens(pool),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: options.ack_wait,
        max_deliver: -1,
        max_ack_pending: options.max_ack_pending,
        max_waiting: MAX_WAITING,
        ..Default::default()
    }
}

/// Collects differences as `name is actual, want expected`.
struct ConfigDiff(Vec<String>);

impl ConfigDiff {
    fn compare<T: PartialEq + std::fmt::Debug>(&mut self, name: &str, actual: &T, expected: &T) {
        if actual != expected {
            self.0.push(format!("{name} is {actual:?}, want {expected:?}"));
        }
    }

    fn require_absent(&mut self, present: bool, text: &str) {
        if present {
            self.0.push(text.to_owned());
        }
    }
}

/// What makes the actual stream unsuitable. A larger `max_bytes` is fine.
pub(super) fn stream_differences(actual: &stream::Config, expected: &stream::Config) -> Vec<String> {
    let mut diff = ConfigDiff(Vec::new());
    diff.compare("subjects", &actual.subjects, &expected.subjects);
    diff.compare("retention", &actual.retention, &expected.retention);
    diff.compare("storage", &actual.storage, &expected.storage);
    diff.compare("num_replicas", &actual.num_replicas, &expected.num_replicas);
    diff.compare(
        "max_msgs_per_subject",
        &actual.max_messages_per_subject,
        &expected.max_messages_per_subject,
    );
    diff.compare("discard", &actual.discard, &expected.discard);
    diff.compare(
        "discard_new_per_subject",
        &actual.discard_new_per_subject,
        &expected.discard_new_per_subject,
    );
    diff.compare("max_msgs", &actual.max_messages, &expected.max_messages);
    if actual.max_bytes != -1 && actual.max_bytes < expected.max_bytes {
        diff.compare("max_bytes", &actual.max_bytes, &expected.max_bytes);
    }
    diff.compare("max_msg_size", &actual.max_message_size, &expected.max_message_size);
    diff.compare("max_consumers", &actual.max_consumers, &expected.max_consumers);
    diff.compare("max_age", &actual.max_age, &expected.max_age);
    diff.compare("no_ack", &actual.no_ack, &expected.no_ack);
    diff.compare("sealed", &actual.sealed, &expected.sealed);
    diff.compare("deny_delete", &actual.deny_delete, &expected.deny_delete);
    diff.compare("deny_purge", &actual.deny_purge, &expected.deny_purge);
    diff.require_absent(actual.mirror.is_some(), "mirror is set, want none");
    diff.require_absent(
        actual.sources.as_ref().is_some_and(|sources| !sources.is_empty()),
        "sources are set, want none",
    );
    diff.require_absent(actual.subject_transform.is_some(), "subject_transform is set, want none");
    diff.0
}

/// The expected settings, with the actual `max_bytes` if that is larger.
pub(super) fn repaired_stream(actual: &stream::Config, expected: &stream::Config) -> stream::Config {
    let larger = actual.max_bytes == -1 || actual.max_bytes > expected.max_bytes;
    let max_bytes = if larger { actual.max_bytes } else { expected.max_bytes };
    stream::Config { max_bytes, ..expected.clone() }
}

/// What makes the actual consumer unsuitable.
pub(super) fn consumer_differences(actual: &consumer::Config, expected: &pull::Config) -> Vec<String> {
    let mut diff = ConfigDiff(Vec::new());
    diff.require_absent(actual.deliver_subject.is_some(), "deliver_subject is set, want a pull consumer");
    diff.compare("filter_subject", &actual.filter_subject, &expected.filter_subject);
    diff.compare("filter_subjects", &actual.filter_subjects, &expected.filter_subjects);
    diff.compare("deliver_policy", &actual.deliver_policy, &expected.deliver_policy);
    diff.compare("ack_policy", &actual.ack_policy, &expected.ack_policy);
    diff.compare("ack_wait", &actual.ack_wait, &expected.ack_wait);
    diff.compare("max_deliver", &actual.max_deliver, &expected.max_deliver);
    diff.compare("max_ack_pending", &actual.max_ack_pending, &expected.max_ack_pending);
    if actual.max_waiting < expected.max_waiting {
        diff.compare("max_waiting", &actual.max_waiting, &expected.max_waiting);
    }
    diff.compare("backoff", &actual.backoff, &expected.backoff);
    diff.compare("inactive_threshold", &actual.inactive_threshold, &expected.inactive_threshold);
    diff.0
}
