//! The bounds of an exploration: its size, its faults, and the mutated rule.

/// The bounds of one exploration.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Runs submitted per session.
    pub runs: Vec<u8>,
    pub workers: u8,
    /// Sessions that a worker executes concurrently.
    pub slots: usize,
    /// Runs of one session before its owner releases it although more wait.
    pub max_consecutive_runs: u8,
    pub direct_grants: DirectGrants,
    /// The tool calls of every run, in order.
    pub calls: Vec<Call>,
    pub faults: Faults,
    pub mutation: Option<Mutation>,
    /// Explore one representative of states that differ only in names. Fewer states, but workers change places within
    /// a trace.
    pub symmetry_reduction: bool,
}

/// Which workers may be granted a session in the commit that accepts its first run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectGrants {
    Never,
    /// A worker of the same process with a free slot. Nothing is lost in between.
    SameProcess,
    /// Any worker with a lease. The grant is sent to it, and may be late or lost.
    OverNetwork,
}

/// What is known about a tool call whose outcome was not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It has side effects: announced in the store before it starts, never started twice.
    Mutating,
    /// It is executed again.
    Repeatable,
}

/// How often each fault may still happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Faults {
    /// A worker process is killed.
    pub crashes: u8,
    /// A worker stops renewing its lease: it is stopped, hangs, or is cut off from the store.
    pub stalls: u8,
    /// The control plane, including the reconciler, is killed and restarted.
    pub plane_crashes: u8,
    /// The broker loses all tokens.
    pub wipes: u8,
    /// The broker crashes and keeps an acked token that is never delivered and blocks every publish.
    pub orphans: u8,
    /// A request is applied, but its sender gets no response, or it is applied much later.
    pub timeouts: u8,
    /// A grant in flight is lost or late.
    pub grant_faults: u8,
    /// A worker is asked to drain and hands over. Not a fault, but bounded like one.
    pub drains: u8,
    /// An owner is signalled to reclaim a session that is active there: the store cannot tell the difference. Not a
    /// fault either.
    pub false_alarms: u8,
}

impl Faults {
    /// Whether any fault happened between `self`, the budget at the start, and what is `left` of it.
    pub(crate) fn happened(&self, left: &Self) -> bool {
        *self != Self { drains: self.drains, false_alarms: self.false_alarms, ..left.clone() }
    }
}

/// A rule of the protocol, broken in the way a programmer would break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A worker rechecks for runs before its token is removed, not after.
    RecheckBeforeAck,
    /// The store accepts a commit of the current run without verifying its fence.
    NoEpochCheck,
    /// The store accepts any commit, of any run.
    UncheckedCommit,
    /// The store grants the newest run instead of the oldest.
    NewestFirst,
    /// A claim treats every recorded owner as one whose lease expired.
    ClaimOverLiveLease,
    /// A worker takes the token of a session that is already active there.
    NoSessionGuard,
    /// The reconciler never runs.
    NoSweep,
    /// The reconciler publishes, but does not replace orphans.
    NoOrphanRepair,
    /// Tools survive the lease under which they were started.
    NoSelfFence,
    /// Tools start without the guard's permission, so also after its deadline.
    UngatedStart,
    /// A worker that has lost a session acks its token all the same.
    AckAfterLoss,
    /// A worker releases a directly granted session without rechecking for runs.
    NoRecheckWithoutToken,
    /// A draining worker signs off without waiting for grants that were sent before.
    NoWaitForLastGrants,
    /// The reconciler signals no worker to reclaim lost grants.
    NoRedelivery,
    /// A worker executes an old grant without asking the store again.
    ExecuteLateGrants,
    /// A worker executes a grant although it has claimed the session since.
    ExecuteSupersededGrants,
}

impl Scope {
    /// One session with `runs` runs of one mutating call each, two workers with one slot, and no faults.
    #[must_use]
    pub fn one_session(runs: u8) -> Self {
        Self {
            runs: vec![runs],
            workers: 2,
            slots: 1,
            max_consecutive_runs: u8::MAX,
            direct_grants: DirectGrants::Never,
            calls: vec![Call::Mutating],
            faults: Faults::default(),
            mutation: None,
            symmetry_reduction: true,
        }
    }

    #[must_use]
    pub fn with(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Breaks a rule, without symmetry reduction, so that the counterexample can be read.
    #[must_use]
    pub fn breaking(self, mutation: Mutation) -> Self {
        Self { mutation: Some(mutation), symmetry_reduction: false, ..self }
    }

    pub(crate) fn broken(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
}
