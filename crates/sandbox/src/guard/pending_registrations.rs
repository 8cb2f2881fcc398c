//! Registrations that wait for the guard's reply.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader},
    process::ChildStdout,
    sync::Arc,
    thread,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::watch_state::RegistrationReply;

/// Waiting registrations by process group. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingRegistrations(Arc<Mutex<HashMap<i32, oneshot::Sender<bool>>>>);

impl PendingRegistrations {
    /// Adds a registration. The receiver yields whether the group is watched; it closes without a value if
    /// the guard ends.
    pub(super) fn add(&self, group: i32) -> oneshot::Receiver<bool> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(group, sender);
        receiver
    }

    /// Removes a registration that is no longer waited for.
    pub(super) fn remove(&self, group: i32) {
        self.lock().remove(&group);
    }

    /// Reads the guard's replies on a separate thread until the guard ends.
    pub(super) fn listen(&self, stdout: ChildStdout) -> std::io::Result<()> {
        let registrations = self.clone();
        let read = move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                match RegistrationReply::parse(&line) {
                    Some(RegistrationReply::Watched(group)) => registrations.resolve(group, true),
                    Some(RegistrationReply::Refused(group)) => registrations.resolve(group, false),
                    None => tracing::warn!("guard process sent an unknown reply"),
                }
            }
        };
        thread::Builder::new().name("guard-answers".to_owned()).spawn(read).map(drop)
    }

    fn resolve(&self, group: i32, watched: bool) {
        if let Some(waiting) = self.lock().remove(&group) {
            // The caller may have given up.
            let _ignored = waiting.send(watched);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, oneshot::Sender<bool>>> {
        self.0.lock()
    }
}
