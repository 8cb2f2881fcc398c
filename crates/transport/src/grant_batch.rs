//! The message that carries grants to a worker of another process.
//!
//! It is a protobuf message with a version, so that processes of two versions can share a bus: a worker can always
//! tell which sessions it was granted, also if it cannot read the grants themselves. It then claims these sessions
//! from the store. Field 15 is reserved for an authenticator.

use bytes::Bytes;
use prost::Message as _;
use remuda_domain::{
    ControlPlaneId, Fence, SessionId, TenantId,
    error::{Error, Result},
    session::Epoch,
};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

/// The version of the grants that this build writes, and the newest one that it reads.
pub const GRANT_VERSION: u32 = 1;

/// What a control plane sends to a worker that offered free slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantBatch {
    pub from: ControlPlaneId,
    /// The stamp of the worker's offer that this batch answers, see
    /// [`SlotOffer::stamp`](remuda_domain::worker::SlotOffer).
    pub stamp: u64,
    /// Total number of grants that this sender has sent to this worker, including these. If the worker received fewer,
    /// some were lost.
    pub sent: u64,
    pub grants: Vec<GrantRecord>,
}

/// One grant of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRecord {
    pub tenant: TenantId,
    pub session: SessionId,
    pub epoch: Epoch,
    /// The grant as JSON. `None` if its version is not known here.
    pub body: Option<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct BatchMessage {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(bytes = "bytes", tag = "2")]
    from: Bytes,
    #[prost(uint64, tag = "3")]
    stamp: u64,
    #[prost(uint64, tag = "4")]
    sent: u64,
    #[prost(message, repeated, tag = "5")]
    grants: Vec<GrantMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GrantMessage {
    #[prost(bytes = "bytes", tag = "1")]
    tenant: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    session: Bytes,
    #[prost(int64, tag = "3")]
    epoch: i64,
    #[prost(bytes = "bytes", tag = "4")]
    body: Bytes,
}

/// A batch of version 0.1.0, which was JSON.
#[derive(Deserialize)]
struct JsonBatch {
    from: ControlPlaneId,
    stamp: u64,
    sent: u64,
    grants: Vec<Value>,
}

impl GrantRecord {
    /// Bytes that it adds to an encoded batch, at most.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        /// Two ids of 16 bytes, an epoch, and the tags and lengths of all fields.
        const OVERHEAD: usize = 70;
        OVERHEAD + self.body.as_ref().map_or(0, Bytes::len)
    }
}

impl GrantBatch {
    /// Bytes of an encoded batch without grants, at most.
    pub const OVERHEAD: usize = 64;

    #[must_use]
    pub fn encode(&self) -> Bytes {
        let grant = |grant: &GrantRecord| GrantMessage {
            tenant: id(grant.tenant.as_uuid()),
            session: id(grant.session.as_uuid()),
            epoch: grant.epoch,
            body: grant.body.clone().unwrap_or_default(),
        };
        let message = BatchMessage {
            version: GRANT_VERSION,
            from: id(self.from.as_uuid()),
            stamp: self.stamp,
            sent: self.sent,
            grants: self.grants.iter().map(grant).collect(),
        };
        message.encode_to_vec().into()
    }

    pub fn decode(payload: Bytes) -> Result<Self> {
        if payload.first() == Some(&b'{') {
            return Self::decode_json(&payload);
        }
        let invalid = |error| Error::internal("expected a grant batch").with_source(error);
        let message = BatchMessage::decode(payload).map_err(invalid)?;
        let is_known = message.version <= GRANT_VERSION;
        let grants = message.grants.into_iter().map(|grant| {
            Ok(GrantRecord {
                tenant: TenantId::from_uuid(parse_id("tenant", &grant.tenant)?),
                session: SessionId::from_uuid(parse_id("session", &grant.session)?),
                epoch: grant.epoch,
                body: is_known.then_some(grant.body),
            })
        });
        Ok(Self {
            from: ControlPlaneId::from_uuid(parse_id("from", &message.from)?),
            stamp: message.stamp,
            sent: message.sent,
            grants: grants.collect::<Result<_>>()?,
        })
    }

    fn decode_json(payload: &[u8]) -> Result<Self> {
        let invalid = |error| Error::internal("expected a grant batch of version 0.1.0").with_source(error);
        let JsonBatch { from, stamp, sent, grants } = serde_json::from_slice(payload).map_err(invalid)?;
        let grants = grants.into_iter().map(|grant| {
            let Fence { tenant, session, epoch, .. } = Fence::deserialize(&grant["fence"])?;
            let body = Some(serde_json::to_vec(&grant)?.into());
            Ok(GrantRecord { tenant, session, epoch, body })
        });
        let grants = grants.collect::<serde_json::Result<_>>().map_err(invalid)?;
        Ok(Self { from, stamp, sent, grants })
    }
}

fn id(id: Uuid) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

fn parse_id(field: &str, bytes: &[u8]) -> Result<Uuid> {
    Uuid::from_slice(bytes).map_err(|_| Error::internal(format!("{field}: expected 16 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(count: usize) -> GrantBatch {
        let grant = |size: usize| GrantRecord {
            tenant: TenantId::new(),
            session: SessionId::new(),
            epoch: i64::MAX,
            body: Some(vec![b'x'; size * 1000].into()),
        };
        let grants = (0..count).map(grant).collect();
        GrantBatch { from: ControlPlaneId::new(), stamp: u64::MAX, sent: u64::MAX, grants }
    }

    #[test]
    fn batch_is_read_as_written() {
        for count in [0, 1, 5] {
            let batch = batch(count);
            assert_eq!(GrantBatch::decode(batch.encode()).unwrap(), batch);
        }
    }

    #[test]
    fn encoded_batch_is_not_larger_than_its_estimate() {
        for count in [0, 1, 20] {
            let batch = batch(count);
            let estimate: usize = batch.grants.iter().map(GrantRecord::encoded_len).sum();
            assert!(batch.encode().len() <= GrantBatch::OVERHEAD + estimate);
        }
    }

    #[test]
    fn sessions_of_a_newer_version_are_known_without_their_grants() {
        let batch = batch(2);
        let mut message = BatchMessage::decode(batch.encode()).unwrap();
        message.version = GRANT_VERSION + 1;
        let decoded = GrantBatch::decode(message.encode_to_vec().into()).unwrap();
        for (grant, sent) in decoded.grants.iter().zip(&batch.grants) {
            assert_eq!((grant.session, grant.epoch, &grant.body), (sent.session, sent.epoch, &None));
        }
        assert_eq!(decoded.grants.len(), 2);
    }

    #[test]
    fn invalid_batches_are_rejected() {
        let truncated = batch(1).encode().slice(..40);
        let short_id = BatchMessage { from: Bytes::from_static(b"short"), ..BatchMessage::default() };
        for payload in
            [truncated, short_id.encode_to_vec().into(), "{}".into(), "{\"grants\":7".into(), "x".into()]
        {
            assert!(GrantBatch::decode(payload.clone()).is_err(), "{payload:?}");
        }
    }
}
