//! The roles of clients of NATS. Each has credentials of its own, which allow what its processes do and nothing else.

/// The role of a client of NATS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BusRole {
    /// Control planes: they create the token stream, publish tokens and grants, and follow events.
    ControlPlane,
    /// Workers: they take tokens and grants, and publish events. They cannot read events.
    Worker,
    /// Stream services: they read events.
    Stream,
    /// People, tests, and processes with all roles: everything in the account of the installation.
    Admin,
}

impl BusRole {
    pub const ALL: [Self; 4] = [Self::ControlPlane, Self::Worker, Self::Stream, Self::Admin];

    /// The name in files and names of users.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Worker => "worker",
            Self::Stream => "stream",
            Self::Admin => "admin",
        }
    }
}
