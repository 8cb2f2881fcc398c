//! Subjects and names on the server. Only ids and validated names become part of a subject: user input could hold a
//! wildcard, or be so long that the server closes the shared connection.

use remuda_domain::{
    ControlPlaneId, Pool, SessionId, TenantId, WorkerId,
    error::{Error, Result},
};

const MAX_PREFIX_LEN: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct Subjects {
    prefix: String,
}

impl Subjects {
    pub(super) fn new(prefix: &str) -> Result<Self> {
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if prefix.is_empty() || prefix.len() > MAX_PREFIX_LEN || !prefix.bytes().all(allowed) {
            return Err(Error::invalid("prefix", "expected 1 to 32 characters of a-z, 0-9, - and _"));
        }
        Ok(Self { prefix: prefix.to_owned() })
    }

    pub(super) fn stream(&self) -> String {
        format!("{}_TOKENS", self.prefix.to_uppercase())
    }

    pub(super) fn all_tokens(&self) -> String {
        format!("{}.ready.>", self.prefix)
    }

    pub(super) fn pool_tokens(&self, pool: &Pool) -> String {
        format!("{}.ready.{pool}.>", self.prefix)
    }

    #[expect(clippy::unused_self, reason = "every name on the server comes from here")]
    pub(super) fn consumer(&self, pool: &Pool) -> String {
        format!("pool-{pool}")
    }

    pub(super) fn token(&self, pool: &Pool, tenant: TenantId, session: SessionId) -> String {
        format!("{}.ready.{pool}.{tenant}.{session}", self.prefix)
    }

    /// The tenant and session of a token.
    pub(super) fn parse_token(&self, subject: &str) -> Option<(TenantId, SessionId)> {
        let rest = subject.strip_prefix(&self.prefix)?.strip_prefix(".ready.")?;
        let mut parts = rest.split('.').skip(1);
        let tenant = parts.next()?.parse().ok()?;
        let session = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some((tenant, session))
    }

    pub(super) fn next_message(&self, pool: &Pool) -> String {
        format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.stream(), self.consumer(pool))
    }

    pub(super) fn events(&self, tenant: TenantId, session: SessionId) -> String {
        format!("{}.events.{tenant}.{session}", self.prefix)
    }

    pub(super) fn deltas(&self, tenant: TenantId, session: SessionId) -> String {
        format!("{}.deltas.{tenant}.{session}", self.prefix)
    }

    pub(super) fn control(&self, worker: WorkerId) -> String {
        format!("{}.control.{worker}", self.prefix)
    }

    pub(super) fn grants(&self, worker: WorkerId) -> String {
        format!("{}.grants.{worker}", self.prefix)
    }

    pub(super) fn ends(&self, plane: ControlPlaneId) -> String {
        format!("{}.ends.{plane}", self.prefix)
    }

    pub(super) fn offers(&self) -> String {
        format!("{}.offers", self.prefix)
    }

    pub(super) fn notices(&self) -> String {
        format!("{}.notices", self.prefix)
    }

    /// Subjects of several kinds, such as `events.>`.
    pub(super) fn kinds(&self, kinds: &[&str]) -> Vec<String> {
        kinds.iter().map(|kind| format!("{}.{kind}", self.prefix)).collect()
    }

    /// The name of the user, or of the account, of this installation.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A subject without subscribers: the server responds immediately that there are no responders.
    pub(super) fn no_responders(&self) -> String {
        format!("{}.nobody", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_token_subjects_parse_back() {
        let subjects = Subjects::new("remuda").unwrap();
        let (tenant, session) = (TenantId::new(), SessionId::new());
        let subject = subjects.token(&Pool::default(), tenant, session);
        assert_eq!(subjects.parse_token(&subject), Some((tenant, session)));
        for foreign in [
            "",
            "remuda.ready.default",
            "other.ready.default.a.b",
            &format!("{subject}.x"),
            "remuda.ready.default.*.>",
        ] {
            assert_eq!(subjects.parse_token(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn prefixes_unsafe_in_a_subject_are_rejected() {
        for bad in ["", "a.b", ">", "A", "a b", &"x".repeat(33)] {
            assert!(Subjects::new(bad).is_err(), "{bad:?}");
        }
    }
}
