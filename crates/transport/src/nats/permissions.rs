//! What each role may publish and subscribe to.
//!
//! A worker executes foreign code, so it is trusted least: it publishes events but cannot read them, and it cannot change
//! the token stream, because a stream that also stored events would let it read them.

use super::subjects::Subjects;
use crate::bus_role::BusRole;

/// Subjects, with wildcards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permissions {
    pub(super) publish: Vec<String>,
    pub(super) subscribe: Vec<String>,
}

impl Permissions {
    /// What the role needs. `None` if it may do everything. `inbox` is the prefix of the subjects at which it receives
    /// responses.
    pub(super) fn of(role: BusRole, subjects: &Subjects, inbox: &str) -> Option<Self> {
        let (publish, subscribe): (Vec<String>, Vec<&str>) = match role {
            BusRole::ControlPlane => (
                [
                    subjects.kinds(&["ready.>", "grants.*", "control.*", "events.>", "ends.*", "notices"]),
                    // Creates the stream, repairs it, and removes tokens that will never be delivered.
                    stream_api(subjects, &["STREAM.CREATE", "STREAM.UPDATE", "CONSUMER.NAMES"], ""),
                    stream_api(subjects, &["STREAM.MSG.GET", "STREAM.MSG.DELETE"], ""),
                    consumer_management(subjects),
                ]
                .concat(),
                vec!["offers", "ends.*", "notices", "events.>", "deltas.>"],
            ),
            BusRole::Worker => (
                [
                    subjects.kinds(&["ready.>", "control.*", "events.>", "deltas.>", "ends.*"]),
                    subjects.kinds(&["offers", "notices"]),
                    consumer_management(subjects),
                    stream_api(subjects, &["CONSUMER.MSG.NEXT"], ".*"),
                    acknowledgements(subjects),
                ]
                .concat(),
                vec!["control.*", "grants.*", "notices"],
            ),
            BusRole::Stream => {
                (subjects.kinds(&["control.*", "notices"]), vec!["events.>", "deltas.>", "notices"])
            }
            BusRole::Admin => return None,
        };
        let mut subscribe = subjects.kinds(&subscribe);
        subscribe.push(format!("{inbox}.>"));
        Some(Self { publish: [publish, health(subjects)].concat(), subscribe })
    }
}

/// Whether the server responds, and what `remuda doctor` reports.
fn health(subjects: &Subjects) -> Vec<String> {
    let mut health = vec![subjects.no_responders(), "$JS.API.INFO".to_owned()];
    health.extend(stream_api(subjects, &["STREAM.INFO", "CONSUMER.LIST"], ""));
    health.extend(stream_api(subjects, &["CONSUMER.INFO"], ".*"));
    health
}

/// Creating a pool's consumer, and creating it again when it is broken.
fn consumer_management(subjects: &Subjects) -> Vec<String> {
    // The subject ends with the name and the filter of the consumer; for old clients with the name alone.
    let mut api = stream_api(subjects, &["CONSUMER.CREATE"], ".>");
    api.extend(stream_api(subjects, &["CONSUMER.DURABLE.CREATE", "CONSUMER.DELETE"], ".*"));
    api
}

fn stream_api(subjects: &Subjects, calls: &[&str], rest: &str) -> Vec<String> {
    calls.iter().map(|call| format!("$JS.API.{call}.{}{rest}", subjects.stream())).collect()
}

/// Newer servers put a domain and an account before the stream.
fn acknowledgements(subjects: &Subjects) -> Vec<String> {
    let stream = subjects.stream();
    vec![format!("$JS.ACK.{stream}.>"), format!("$JS.ACK.*.*.{stream}.>")]
}
