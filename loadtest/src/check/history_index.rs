//! An index over a history: lookups by run, key and time.

use std::collections::HashMap;

use crate::observed_history::{Effect, EventKind, FinalRun, History, Mark, Micros, ObservedEvent, Submit};

/// A history with its lookup tables.
#[derive(Debug)]
pub(crate) struct HistoryIndex<'a> {
    pub(crate) history: &'a History,
    submits: HashMap<&'a str, &'a Submit>,
    runs: HashMap<&'a str, &'a FinalRun>,
    by_key: HashMap<&'a str, &'a FinalRun>,
    effects: HashMap<&'a str, Vec<&'a Effect>>,
    ends: HashMap<&'a str, Micros>,
    takeovers: HashMap<&'a str, Vec<Takeover>>,
}

/// A later worker resumed a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Takeover {
    /// The latest possible time of the resumption.
    pub(crate) at: Micros,
    /// Whether the previous worker was lost; otherwise it handed the run over.
    pub(crate) lost: bool,
}

impl<'a> HistoryIndex<'a> {
    pub(crate) fn new(history: &'a History) -> Self {
        let mut effects: HashMap<&str, Vec<&Effect>> = HashMap::new();
        for effect in &history.effects {
            effects.entry(&effect.key).or_default().push(effect);
        }
        for effects in effects.values_mut() {
            effects.sort_by_key(|effect| effect.at);
        }
        let mut index = Self {
            history,
            submits: history.submits.iter().map(|submit| (submit.key.as_str(), submit)).collect(),
            runs: history.runs.iter().map(|run| (&*run.id, run)).collect(),
            by_key: history.runs.iter().map(|run| (run.key.as_str(), run)).collect(),
            effects,
            ends: HashMap::new(),
            takeovers: HashMap::new(),
        };
        index.index_events();
        index
    }

    /// Records when runs ended and when they were resumed.
    fn index_events(&mut self) {
        let history = self.history;
        let mut received: HashMap<(&str, i64), Micros> = HashMap::new();
        for log in &history.reader_logs {
            for seen in log.events.iter().filter(|seen| seen.kind != EventKind::Other) {
                let first = received.entry((&log.session, seen.cursor)).or_insert(seen.received);
                *first = seen.received.min(*first);
            }
        }
        for (session, stream) in &history.streams {
            // For each started run, whether its last worker was lost (`Some(true)`) or handed it over (`Some(false)`).
            let mut previous_ends: HashMap<&str, Option<bool>> = HashMap::new();
            for seen in stream {
                let first = received.get(&(&**session, seen.cursor)).copied().unwrap_or(seen.received);
                let at = self.plausible_time(seen, first);
                match seen.kind {
                    EventKind::Ended(_) => {
                        self.ends.entry(&seen.run).or_insert(at);
                    }
                    EventKind::Started => {
                        if let Some(lost) = previous_ends.insert(&seen.run, None) {
                            let lost = lost.unwrap_or(true);
                            self.takeovers.entry(&seen.run).or_default().push(Takeover { at, lost });
                        }
                    }
                    EventKind::HandedOver | EventKind::Lost => {
                        if let Some(previous_ends) = previous_ends.get_mut(&*seen.run) {
                            *previous_ends = Some(seen.kind == EventKind::Lost);
                        }
                    }
                    EventKind::Other => {}
                }
            }
        }
    }

    /// The latest possible time of an event. The server's time counts if it lies between the submit of the run and the first time
    /// at which a reader got the event.
    fn plausible_time(&self, seen: &ObservedEvent, first_received: Micros) -> Micros {
        let submit = self.runs.get(&*seen.run).and_then(|run| self.submit_of(run));
        let after_submit = submit.is_some_and(|submit| submit.sent <= seen.at);
        if after_submit && seen.at <= first_received { seen.at } else { first_received }
    }

    pub(crate) fn run(&self, id: &str) -> Option<&'a FinalRun> {
        self.runs.get(id).copied()
    }

    /// The run that a submit created, whatever its outcome.
    pub(crate) fn run_of_key(&self, key: &str) -> Option<&'a FinalRun> {
        self.by_key.get(key).copied()
    }

    pub(crate) fn submit_of(&self, run: &FinalRun) -> Option<&'a Submit> {
        self.submits.get(run.key.as_str()).copied()
    }

    pub(crate) fn is_submitted(&self, key: &str) -> bool {
        self.submits.contains_key(key)
    }

    /// The side effects of a run's tools, in order of time.
    pub(crate) fn effects_of(&self, key: &str) -> &[&'a Effect] {
        self.effects.get(key).map_or(&[], Vec::as_slice)
    }

    /// Whether a tool of a run was executing at that time.
    pub(crate) fn is_at_work(&self, key: &str, at: Micros) -> bool {
        let before = self.effects_of(key).iter().take_while(|effect| effect.at <= at);
        before.fold(0, |running, effect| match effect.mark {
            Mark::Start => running + 1,
            Mark::Tick => running,
            Mark::End => running - 1,
        }) > 0
    }

    /// The latest possible time of a run's end, if it has ended.
    pub(crate) fn end_of(&self, run: &str) -> Option<Micros> {
        self.ends.get(run).copied()
    }

    /// The resumptions of a run by later workers.
    pub(crate) fn takeovers_of(&self, run: &str) -> &[Takeover] {
        self.takeovers.get(run).map_or(&[], Vec::as_slice)
    }

    /// How long runs paused between the last side effect under one worker and their resumption by the next, after the worker
    /// was lost or had handed the run over.
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
