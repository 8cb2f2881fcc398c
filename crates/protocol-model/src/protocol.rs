//! The protocol as a stateright model: which actions are possible, and what each does.

use stateright::{Model, Property};

use crate::{
    action::{Action, WorkerEvent},
    broker, fault, in_flight_grant, property, reconciler,
    recovery::Recovery,
    scope::{DirectGrants, Scope},
    state::{
        Incarnation, IncarnationId, Origin, Reconciler, Session, SessionIndex, State, Violations, Worker,
    },
    store, symmetry, worker,
};

const WORKER_EVENTS: [WorkerEvent; 5] = [
    WorkerEvent::GuardExpires,
    WorkerEvent::LeaseEnds,
    WorkerEvent::NoticeLoss,
    WorkerEvent::SignOff,
    WorkerEvent::Restart,
];

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

    /// The protocol's own actions, without faults and submits. They come first in [`Model::actions`], so that a
    /// search for recovery goes straight ahead.
    pub(crate) fn own_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, incarnation) in incarnations(state) {
            for (index, task) in incarnation.tasks.iter().enumerate() {
                let steps = worker::steps(&self.scope, incarnation, task);
                actions.extend(steps.map(|step| Action::TaskStep(id, index, step)));
            }
        }
        actions.extend(sessions(state).filter(|(_, it)| it.wakes > 0).map(|(index, _)| Action::Wake(index)));
        for (id, incarnation) in incarnations(state) {
            let (present, down) = (worker::is_present(state, id), state.workers[usize::from(id.worker)].down);
            let events = WORKER_EVENTS.into_iter();
            let events = events
                .filter(|event| worker::event_is_possible(&self.scope, incarnation, present, down, *event));
            actions.extend(events.map(|event| Action::Worker(id, event)));
            if present && !down {
                let in_flight_grants = incarnation.in_flight_grants.iter().enumerate();
                let in_flight_grants = in_flight_grants.filter(|(_, in_flight_grant)| {
                    in_flight_grant::can_deliver(&self.scope, incarnation, in_flight_grant)
                });
                actions.extend(in_flight_grants.map(|(index, _)| Action::DeliverGrant(id, index)));
                actions.extend(
                    incarnation.pending_reclaims.iter().map(|session| Action::ReceiveReclaim(id, *session)),
                );
                let sessions = sessions(state).map(|(index, _)| index);
                let taken = sessions.filter(|session| {
                    worker::is_deliverable(state, *session)
                        && worker::would_take(&self.scope, incarnation, *session)
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
            Action::SubmitTo(session, incarnation) => {
                if let Some(phase) = store::submit_to(&self.scope, &mut next, session, incarnation) {
                    match self.scope.direct_grants {
                        DirectGrants::OverNetwork => {
                            in_flight_grant::send(&mut next, session, incarnation, phase)
                        }
                        _ => worker::start_task(&mut next, session, incarnation, Origin::Grant, phase),
                    }
                }
            }
            Action::Wake(session) => {
                next.session_mut(session).wakes -= 1;
                broker::publish(&mut next, session);
            }
            Action::Deliver(session, incarnation) => worker::deliver(&mut next, session, incarnation),
            Action::DeliverGrant(incarnation, index) => {
                in_flight_grant::deliver(&self.scope, &mut next, incarnation, index)
            }
            Action::ReceiveReclaim(incarnation, session) => {
                in_flight_grant::receive_reclaim(&self.scope, &mut next, incarnation, session)
            }
            Action::TaskStep(incarnation, index, step) => {
                worker::work(&self.scope, &mut next, incarnation, index, step)
            }
            Action::Worker(incarnation, event) => {
                worker::apply_event(&self.scope, &mut next, incarnation, event)
            }
            Action::Reconcile(reconciler_step) => reconciler::step(&self.scope, &mut next, reconciler_step),
            Action::Fault(fault) => fault::apply(&self.scope, &mut next, fault),
        }
        if self.scope.symmetry_reduction { symmetry::reduce(&self.scope, next) } else { next }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            sessions: vec![Session::default(); self.scope.runs.len()],
            workers: vec![
                Worker { down: false, incarnations: vec![Incarnation::default()] };
                usize::from(self.scope.workers)
            ],
            reconciler: Reconciler::default(),
            faults: self.scope.faults.clone(),
            violations: Violations::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.own_actions(state, actions);
        let unsubmitted = sessions(state).zip(&self.scope.runs);
        let unsubmitted = unsubmitted.filter(|((_, session), runs)| session.runs.len() < usize::from(**runs));
        for ((index, session), _) in unsubmitted {
            actions.push(Action::Submit(index));
            // Only the first run of a queue: a later one is not next.
            if session.row.owner.is_none() && session.row.pending == 0 {
                let incarnations = incarnations(state).map(|(id, _)| id);
                let standing =
                    incarnations.filter(|id| worker::can_be_granted(&self.scope, state, *id, index));
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

fn incarnations(state: &State) -> impl Iterator<Item = (IncarnationId, &Incarnation)> {
    (0..).zip(&state.workers).flat_map(|(worker, it)| {
        (0..).zip(&it.incarnations).map(move |(incarnation, it)| (IncarnationId { worker, incarnation }, it))
    })
}
