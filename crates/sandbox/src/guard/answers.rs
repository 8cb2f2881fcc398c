//! Registrations that wait for the guard's answer.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader},
    process::ChildStdout,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use tokio::sync::oneshot;

use super::ledger::Answer;

/// Who waits for the answer about which group. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers(Arc<Mutex<HashMap<i32, oneshot::Sender<bool>>>>);

impl Answers {
    /// Gives the answer about a group: whether it is watched. Ends without one if the guard does.
    pub(super) fn expect(&self, group: i32) -> oneshot::Receiver<bool> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(group, sender);
        receiver
    }

    /// Nobody waits any more.
    pub(super) fn forget(&self, group: i32) {
        self.lock().remove(&group);
    }

    /// Hands out what a guard says, on a thread of its own, until the guard is gone.
    pub(super) fn listen(&self, stdout: ChildStdout) -> std::io::Result<()> {
        let answers = self.clone();
        let hear = move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                match Answer::parse(&line) {
                    Some(Answer::Watched(group)) => answers.resolve(group, true),
                    Some(Answer::Refused(group)) => answers.resolve(group, false),
                    None => tracing::warn!("the guard process said something that nobody understands"),
                }
            }
        };
        thread::Builder::new().name("guard-answers".to_owned()).spawn(hear).map(drop)
    }

    fn resolve(&self, group: i32, watched: bool) {
        if let Some(waiting) = self.lock().remove(&group) {
            // Whoever asked may have given up.
            let _gone = waiting.send(watched);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, oneshot::Sender<bool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
