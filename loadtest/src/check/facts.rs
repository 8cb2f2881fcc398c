//! A history with its cross-references.

use std::collections::HashMap;

use crate::history::{Effect, EventKind, FoundRun, History, Mark, Micros, Seen, Submit};

/// Finds things in a history.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) history: &'a History,
    submits: HashMap<&'a str, &'a Submit>,
    runs: HashMap<&'a str, &'a FoundRun>,
    by_key: HashMap<&'a str, &'a FoundRun>,
    effects: HashMap<&'a str, Vec<&'a Effect>>,
    ends: HashMap<&'a str, Micros>,
    takeovers: HashMap<&'a str, Vec<Takeover>>,
}

/// A worker after the first goes on with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Takeover {
    /// When it had done so at the latest.
    pub(crate) at: Micros,
    /// Whether the worker before it was lost, or gave the run up.
    pub(crate) lost: bool,
}

impl<'a> Facts<'a> {
    pub(crate) fn new(history: &'a History) -> Self {
        let mut effects: HashMap<&str, Vec<&Effect>> = HashMap::new();
        for effect in &history.effects {
            effects.entry(&effect.key).or_default().push(effect);
        }
        for effects in effects.values_mut() {
            effects.sort_by_key(|effect| effect.at);
        }
        let mut facts = Self {
            history,
            submits: history.submits.iter().map(|submit| (submit.key.as_str(), submit)).collect(),
            runs: history.runs.iter().map(|run| (&*run.id, run)).collect(),
            by_key: history.runs.iter().map(|run| (run.key.as_str(), run)).collect(),
            effects,
            ends: HashMap::new(),
            takeovers: HashMap::new(),
        };
        facts.date_events();
        facts
    }

    /// Finds when runs ended and when they were started again.
    fn date_events(&mut self) {
        let history = self.history;
        let mut received: HashMap<(&str, i64), Micros> = HashMap::new();
        for reading in &history.readings {
            for seen in reading.seen.iter().filter(|seen| seen.kind != EventKind::Other) {
                let first = received.entry((&reading.session, seen.cursor)).or_insert(seen.received);
                *first = seen.received.min(*first);
            }
        }
        for (session, stream) in &history.streams {
            // How each run that had started was parted from its worker.
            let mut parted: HashMap<&str, Option<bool>> = HashMap::new();
            for seen in stream {
                let first = received.get(&(&**session, seen.cursor)).copied().unwrap_or(seen.received);
                let at = self.believable(seen, first);
                match seen.kind {
                    EventKind::Ended(_) => {
                        self.ends.entry(&seen.run).or_insert(at);
                    }
                    EventKind::Started => {
                        if let Some(lost) = parted.insert(&seen.run, None) {
                            let lost = lost.unwrap_or(true);
                            self.takeovers.entry(&seen.run).or_default().push(Takeover { at, lost });
                        }
                    }
                    EventKind::HandedOver | EventKind::Lost => {
                        if let Some(parted) = parted.get_mut(&*seen.run) {
                            *parted = Some(seen.kind == EventKind::Lost);
                        }
                    }
                    EventKind::Other => {}
                }
            }
        }
    }

    /// When an event happened at the latest. The server's word counts if it lies between the submit of the run and
    /// the first time that anybody was told of the event.
    fn believable(&self, seen: &Seen, first_received: Micros) -> Micros {
        let submit = self.runs.get(&*seen.run).and_then(|run| self.submit_of(run));
        let after_submit = submit.is_some_and(|submit| submit.sent <= seen.at);
        if after_submit && seen.at <= first_received { seen.at } else { first_received }
    }

    pub(crate) fn run(&self, id: &str) -> Option<&'a FoundRun> {
        self.runs.get(id).copied()
    }

    /// The run that a submit made, however it was answered.
    pub(crate) fn run_of_key(&self, key: &str) -> Option<&'a FoundRun> {
        self.by_key.get(key).copied()
    }

    pub(crate) fn submit_of(&self, run: &FoundRun) -> Option<&'a Submit> {
        self.submits.get(run.key.as_str()).copied()
    }

    pub(crate) fn is_submitted(&self, key: &str) -> bool {
        self.submits.contains_key(key)
    }

    /// What tools of a run did, in the order of time.
    pub(crate) fn effects_of(&self, key: &str) -> &[&'a Effect] {
        self.effects.get(key).map_or(&[], Vec::as_slice)
    }

    /// Whether a tool of a run had begun, and not come to its end, at that moment.
    pub(crate) fn is_at_work(&self, key: &str, at: Micros) -> bool {
        let before = self.effects_of(key).iter().take_while(|effect| effect.at <= at);
        before.fold(0, |running, effect| match effect.mark {
            Mark::Start => running + 1,
            Mark::Tick => running,
            Mark::End => running - 1,
        }) > 0
    }

    /// When a run had ended at the latest, if it has.
    pub(crate) fn end_of(&self, run: &str) -> Option<Micros> {
        self.ends.get(run).copied()
    }

    /// The workers after the first that went on with a run.
    pub(crate) fn takeovers_of(&self, run: &str) -> &[Takeover] {
        self.takeovers.get(run).map_or(&[], Vec::as_slice)
    }

    /// How long runs stood still between the last thing a tool did for one worker and the moment the next went on, after a
    /// worker was lost or gave the run up.
    pub(crate) fn pauses(&self, lost: bool) -> impl Iterator<Item = Micros> {
        self.history.runs.iter().flat_map(move |run| {
            let takeovers = self.takeovers_of(&run.id).iter().filter(move |takeover| takeover.lost == lost);
            takeovers.filter_map(|takeover| {
                let before = self.effects_of(&run.key).iter().rfind(|effect| effect.at < takeover.at)?;
                Some(takeover.at - before.at)
            })
        })
    }
}
