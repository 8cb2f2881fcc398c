//! The protocol as stateright sees it: which steps are possible, and what each does.

use stateright::{Model, Property};

use crate::{
    action::{Action, Event},
    broker, fault,
    fold::fold,
    parcel, property, reconciler,
    recovery::Recovery,
    scope::{Scope, StandBy},
    state::{Evidence, Life, LifeId, Origin, Reconciler, Session, SessionIndex, State, Worker},
    store, worker,
};

const EVENTS: [Event; 5] =
    [Event::TimeUp, Event::LeaseEnds, Event::NoticeLoss, Event::SignOff, Event::Restart];

/// The token protocol within the bounds of a [`Scope`].
#[derive(Debug)]
pub struct Protocol {
    pub(crate) scope: Scope,
    checked: Vec<&'static str>,
    pub(crate) recovery: Recovery,
    pub(crate) unaided_recovery: Recovery,
}

impl Protocol {
    /// The protocol with these properties of [`property`](crate::property) to check.
    #[must_use]
    pub fn new(scope: Scope, properties: &[&'static str]) -> Self {
        Self {
            scope,
            checked: properties.to_vec(),
            recovery: Recovery::default(),
            unaided_recovery: Recovery::default(),
        }
    }

    /// What the protocol does by itself. It comes before everything else in [`Model::actions`]' order, so that a search
    /// for recovery goes straight ahead.
    pub(crate) fn own_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, life) in lives(state) {
            for (index, task) in life.tasks.iter().enumerate() {
                let steps = worker::steps(&self.scope, life, task);
                actions.extend(steps.map(|step| Action::Work(id, index, step)));
            }
        }
        actions.extend(sessions(state).filter(|(_, it)| it.wakes > 0).map(|(index, _)| Action::Wake(index)));
        for (id, life) in lives(state) {
            let (present, down) = (worker::is_present(state, id), state.workers[usize::from(id.worker)].down);
            let events = EVENTS.into_iter();
            let events = events.filter(|event| worker::can_happen(&self.scope, life, present, down, *event));
            actions.extend(events.map(|event| Action::Worker(id, event)));
            if present && !down {
                let parcels = life.parcels.iter().enumerate();
                let parcels = parcels.filter(|(_, parcel)| parcel::can_arrive(&self.scope, life, parcel));
                actions.extend(parcels.map(|(index, _)| Action::Arrive(id, index)));
                actions.extend(life.told.iter().map(|session| Action::Hear(id, *session)));
                let sessions = sessions(state).map(|(index, _)| index);
                let taken = sessions.filter(|session| {
                    worker::is_deliverable(state, *session) && worker::takes(&self.scope, life, *session)
                });
                actions.extend(taken.map(|session| Action::Deliver(session, id)));
            }
        }
        actions.extend(reconciler::steps(&self.scope, state).into_iter().map(Action::Reconcile));
    }

    pub(crate) fn after(&self, state: &State, action: Action) -> State {
        let mut next = state.clone();
        match action {
            Action::Submit(session) => store::submit(&self.scope, &mut next, session),
            Action::SubmitTo(session, life) => {
                if let Some(phase) = store::submit_to(&self.scope, &mut next, session, life) {
                    match self.scope.stand_by {
                        StandBy::OverWire => parcel::send(&mut next, session, life, phase),
                        _ => worker::take_up(&mut next, session, life, Origin::Grant, phase),
                    }
                }
            }
            Action::Wake(session) => {
                next.session_mut(session).wakes -= 1;
                broker::publish(&mut next, session);
            }
            Action::Deliver(session, life) => worker::deliver(&mut next, session, life),
            Action::Arrive(life, index) => parcel::arrive(&self.scope, &mut next, life, index),
            Action::Hear(life, session) => parcel::hear(&self.scope, &mut next, life, session),
            Action::Work(life, index, step) => worker::work(&self.scope, &mut next, life, index, step),
            Action::Worker(life, event) => worker::happen(&self.scope, &mut next, life, event),
            Action::Reconcile(round) => reconciler::step(&self.scope, &mut next, round),
            Action::Fault(fault) => fault::strike(&self.scope, &mut next, fault),
        }
        if self.scope.folded { fold(&self.scope, next) } else { next }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            sessions: vec![Session::default(); self.scope.runs.len()],
            workers: vec![
                Worker { down: false, lives: vec![Life::default()] };
                usize::from(self.scope.workers)
            ],
            reconciler: Reconciler::default(),
            faults: self.scope.faults.clone(),
            evidence: Evidence::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.own_actions(state, actions);
        let unsubmitted = sessions(state).zip(&self.scope.runs);
        let unsubmitted = unsubmitted.filter(|((_, session), runs)| session.runs.len() < usize::from(**runs));
        for ((index, session), _) in unsubmitted {
            actions.push(Action::Submit(index));
            // Only the first of a line: a later one is not next.
            if session.row.owner.is_none() && session.row.pending == 0 {
                let lives = lives(state).map(|(id, _)| id);
                let standing = lives.filter(|id| worker::stands_by(&self.scope, state, *id, index));
                actions.extend(standing.map(|id| Action::SubmitTo(index, id)));
            }
        }
        actions.extend(fault::possible(&self.scope, state).into_iter().map(Action::Fault));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.after(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = property::all();
        properties.retain(|property| self.checked.contains(&property.name));
        properties
    }
}

fn sessions(state: &State) -> impl Iterator<Item = (SessionIndex, &Session)> {
    (0..).zip(&state.sessions)
}

fn lives(state: &State) -> impl Iterator<Item = (LifeId, &Life)> {
    (0..)
        .zip(&state.workers)
        .flat_map(|(worker, it)| (0..).zip(&it.lives).map(move |(life, it)| (LifeId { worker, life }, it)))
}
