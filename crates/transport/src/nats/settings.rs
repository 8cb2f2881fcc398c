//! The settings of stream and consumers, and how live ones may differ.

use std::time::Duration;

use async_nats::jetstream::{
    consumer::{self, AckPolicy, DeliverPolicy, pull},
    stream::{self, DiscardPolicy, RetentionPolicy, StorageType},
};
use remuda_domain::Pool;

use super::{NatsOptions, names::Names};

/// Room for some ten million tokens of about 100 bytes on disk.
const MAX_BYTES: i64 = 1 << 30;
/// A token is a subject; its payload is empty.
const MAX_MESSAGE_SIZE: i32 = 4096;
/// The shortest the server allows. Tokens carry no message id, so nothing is remembered.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(100);
/// Pull requests that may wait at once, of all workers of a pool; the server's own default of 512 is too few.
const MAX_WAITING: i64 = 16_384;

/// One token per session, and a second one refused; a token lives until it is finished.
pub(super) fn stream(names: &Names, options: &NatsOptions) -> stream::Config {
    stream::Config {
        name: names.stream(),
        subjects: vec![names.all_tokens()],
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

/// Deliveries are counted in the store, so the server never gives up; and a pool without workers keeps its consumer.
pub(super) fn consumer(names: &Names, pool: &Pool, options: &NatsOptions) -> pull::Config {
    pull::Config {
        durable_name: Some(names.consumer(pool)),
        filter_subject: names.pool_tokens(pool),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: options.ack_wait,
        max_deliver: -1,
        max_ack_pending: options.max_ack_pending,
        max_waiting: MAX_WAITING,
        ..Default::default()
    }
}

/// Collects `name is live, want wanted`.
struct Differences(Vec<String>);

impl Differences {
    fn compare<T: PartialEq + std::fmt::Debug>(&mut self, name: &str, live: &T, wanted: &T) {
        if live != wanted {
            self.0.push(format!("{name} is {live:?}, want {wanted:?}"));
        }
    }

    fn refuse(&mut self, present: bool, text: &str) {
        if present {
            self.0.push(text.to_owned());
        }
    }
}

/// What makes the live stream unfit. More room than wanted is no fault.
pub(super) fn stream_differences(live: &stream::Config, wanted: &stream::Config) -> Vec<String> {
    let mut found = Differences(Vec::new());
    found.compare("subjects", &live.subjects, &wanted.subjects);
    found.compare("retention", &live.retention, &wanted.retention);
    found.compare("storage", &live.storage, &wanted.storage);
    found.compare("num_replicas", &live.num_replicas, &wanted.num_replicas);
    found.compare("max_msgs_per_subject", &live.max_messages_per_subject, &wanted.max_messages_per_subject);
    found.compare("discard", &live.discard, &wanted.discard);
    found.compare("discard_new_per_subject", &live.discard_new_per_subject, &wanted.discard_new_per_subject);
    found.compare("max_msgs", &live.max_messages, &wanted.max_messages);
    if live.max_bytes != -1 && live.max_bytes < wanted.max_bytes {
        found.compare("max_bytes", &live.max_bytes, &wanted.max_bytes);
    }
    found.compare("max_msg_size", &live.max_message_size, &wanted.max_message_size);
    found.compare("max_consumers", &live.max_consumers, &wanted.max_consumers);
    found.compare("max_age", &live.max_age, &wanted.max_age);
    found.compare("no_ack", &live.no_ack, &wanted.no_ack);
    found.compare("sealed", &live.sealed, &wanted.sealed);
    found.compare("deny_delete", &live.deny_delete, &wanted.deny_delete);
    found.compare("deny_purge", &live.deny_purge, &wanted.deny_purge);
    found.refuse(live.mirror.is_some(), "mirror is set, want none");
    found.refuse(
        live.sources.as_ref().is_some_and(|sources| !sources.is_empty()),
        "sources are set, want none",
    );
    found.refuse(live.subject_transform.is_some(), "subject_transform is set, want none");
    found.0
}

/// The live stream with the wanted settings, and with what room it has beyond them.
pub(super) fn repaired(live: &stream::Config, wanted: &stream::Config) -> stream::Config {
    let roomy = live.max_bytes == -1 || live.max_bytes > wanted.max_bytes;
    let max_bytes = if roomy { live.max_bytes } else { wanted.max_bytes };
    stream::Config { max_bytes, ..wanted.clone() }
}

/// What makes the live consumer unfit.
pub(super) fn consumer_differences(live: &consumer::Config, wanted: &pull::Config) -> Vec<String> {
    let mut found = Differences(Vec::new());
    found.refuse(live.deliver_subject.is_some(), "deliver_subject is set, want a pull consumer");
    found.compare("filter_subject", &live.filter_subject, &wanted.filter_subject);
    found.compare("filter_subjects", &live.filter_subjects, &wanted.filter_subjects);
    found.compare("deliver_policy", &live.deliver_policy, &wanted.deliver_policy);
    found.compare("ack_policy", &live.ack_policy, &wanted.ack_policy);
    found.compare("ack_wait", &live.ack_wait, &wanted.ack_wait);
    found.compare("max_deliver", &live.max_deliver, &wanted.max_deliver);
    found.compare("max_ack_pending", &live.max_ack_pending, &wanted.max_ack_pending);
    if live.max_waiting < wanted.max_waiting {
        found.compare("max_waiting", &live.max_waiting, &wanted.max_waiting);
    }
    found.compare("backoff", &live.backoff, &wanted.backoff);
    found.compare("inactive_threshold", &live.inactive_threshold, &wanted.inactive_threshold);
    found.0
}
