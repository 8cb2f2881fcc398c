//! How large a world is explored, what may go wrong in it, and which rule is broken.

/// The bounds of one exploration.
#[derive(Clone, Debug)]
pub struct Scope {
    /// How many runs clients submit, per session.
    pub runs: Vec<u8>,
    pub workers: u8,
    /// Tokens a worker has in hand at once.
    pub slots: usize,
    /// Runs of one session before its owner gives the session up although more wait.
    pub turn: u8,
    pub stand_by: StandBy,
    /// The tool calls of every run, in order.
    pub calls: Vec<Call>,
    pub faults: Faults,
    pub mutation: Option<Mutation>,
    /// Explore one of several states that differ only in names. Smaller, but workers change places within a trace.
    pub folded: bool,
}

/// Who may be granted a session in the very commit that accepts its first run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandBy {
    Nobody,
    /// A worker of the same process that has room. Nothing is lost between the two.
    SameProcess,
    /// Any worker with a lease. What it is granted is sent to it, and may be late or lost.
    OverWire,
}

/// What may be assumed about a tool call whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It has side effects: announced in the store before it starts, never started twice.
    Mutating,
    /// It is executed again when its outcome was not recorded.
    Repeatable,
}

/// How often each fault may still happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Faults {
    /// A worker process is killed.
    pub crashes: u8,
    /// A worker stops renewing its lease: it is stopped, hangs, or is cut off from the store.
    pub stalls: u8,
    /// The control plane, reconciler included, is killed and started again.
    pub plane_crashes: u8,
    /// The broker loses all tokens.
    pub wipes: u8,
    /// The broker crashes and keeps an acked token that nobody is given and that refuses every publish.
    pub orphans: u8,
    /// A request is carried out, but its sender hears nothing, or it is carried out much later.
    pub timeouts: u8,
    /// A grant on its way to its worker is lost, or late.
    pub parcels: u8,
    /// A worker is told to stop and hands over. Not a fault, but bounded like one.
    pub drains: u8,
    /// An owner is told of a session that it has in hand: from the store this looks the same. Not a fault either.
    pub false_alarms: u8,
}

impl Faults {
    /// Whether anything broke between `self`, the budget at the start, and what is `left` of it.
    pub(crate) fn happened(&self, left: &Self) -> bool {
        *self != Self { drains: self.drains, false_alarms: self.false_alarms, ..left.clone() }
    }
}

/// A rule of the protocol, broken in the way a programmer would break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A worker looks for more work before its token is gone, not after.
    LookBeforeAck,
    /// The store takes a commit of the current run without verifying its fence.
    NoEpochCheck,
    /// The store takes any commit, of whatever run.
    UncheckedCommit,
    /// The store hands out the newest run instead of the oldest.
    NewestFirst,
    /// A claim treats every recorded owner as one whose lease ended.
    ClaimOverLiveLease,
    /// A worker takes the token of a session that it already has in hand.
    NoHold,
    /// The reconciler never runs.
    NoSweep,
    /// The reconciler publishes, but leaves orphans where they are.
    NoHealer,
    /// Tools survive the lease under which they were started.
    NoSelfFence,
    /// Tools start without the guard's word, so also after its time is up.
    UngatedStart,
    /// A worker that has lost a session acks its token all the same.
    AckAfterLoss,
    /// A worker gives up a session that it was handed, and does not look whether runs are left.
    NoLookWithoutToken,
    /// A worker that drains signs off without waiting for what it was granted before that was known.
    NoLastParcels,
    /// The reconciler tells no worker of sessions that are its own.
    NoTelling,
    /// A worker executes what it was granted long ago without asking the store once more.
    TakeLateParcels,
    /// A worker executes what it was granted although it has claimed the session since.
    TakeOvertakenParcels,
}

impl Scope {
    /// One session with `runs` runs of one mutating call each, two workers with one slot, and nothing that breaks.
    #[must_use]
    pub fn one_session(runs: u8) -> Self {
        Self {
            runs: vec![runs],
            workers: 2,
            slots: 1,
            turn: u8::MAX,
            stand_by: StandBy::Nobody,
            calls: vec![Call::Mutating],
            faults: Faults::default(),
            mutation: None,
            folded: true,
        }
    }

    #[must_use]
    pub fn with(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Breaks a rule, and keeps names as they are so that the counterexample can be read.
    #[must_use]
    pub fn breaking(self, mutation: Mutation) -> Self {
        Self { mutation: Some(mutation), folded: false, ..self }
    }

    pub(crate) fn broken(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
}
