//! Approvals: tool calls that wait for a person's decision.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    Timestamp,
    content::ContentHash,
    error::{Code, Error, Result},
    identity::{Principal, Scope},
    ids::{ApprovalId, RunId, SessionId, TenantId, ToolCallId},
    permission::PermissionRule,
};

/// A tool call that is not made before a person has decided on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    pub id: ApprovalId,
    pub tenant: TenantId,
    pub session: SessionId,
    pub run: RunId,
    pub request: ApprovalRequest,
    pub state: ApprovalState,
    pub created_at: Timestamp,
    /// When the request expires, if ever. Expiry is not a denial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

/// What the approval asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    pub call: ToolCallId,
    pub tool: String,
    pub arguments: Value,
    /// Hash of the tool and its arguments. The decision is about exactly this call.
    pub call_hash: ContentHash,
    /// The agent that requests the call.
    pub agent: String,
    /// The permission that has to be asked for, and the patterns it concerns.
    pub permission: String,
    pub patterns: Vec<String>,
    /// Rules that make further requests unnecessary; added if the decision is `always`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub always: Vec<PermissionRule>,
    /// Which rule requires the approval.
    pub why: String,
    /// Names of the keys that may decide. If empty, every key with the scope `approve` may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
}

/// Hash of a call: its tool and its arguments, independent of key order.
#[must_use]
pub fn call_hash(tool: &str, arguments: &Value) -> ContentHash {
    let mut hash = Sha256::new();
    hash.update(tool.as_bytes());
    hash.update([0]);
    // serde_json keeps objects sorted by key.
    hash.update(arguments.to_string().as_bytes());
    ContentHash::from_bytes(hash.finalize().into())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    Pending,
    Approved,
    Denied,
    /// No decision was made in time.
    Expired,
    /// Its run ended before a decision was made.
    Withdrawn,
}

impl ApprovalState {
    pub const ALL: [Self; 5] = [Self::Pending, Self::Approved, Self::Denied, Self::Expired, Self::Withdrawn];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
        }
    }
}

impl fmt::Display for ApprovalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ApprovalState {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| {
            Error::invalid("state", "expected pending, approved, denied, expired or withdrawn")
        })
    }
}

/// A recorded decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Name of the key, or `local`.
    pub by: String,
    pub at: Timestamp,
    /// Passed on to the model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Arguments that replace those of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// The session no longer asks about such calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub always: bool,
}

/// A decision as requested by a caller.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRequest {
    pub approve: bool,
    pub message: String,
    pub arguments: Option<Value>,
    pub always: bool,
    /// Hash of the call that the caller has seen; checked if set.
    pub call_hash: Option<ContentHash>,
}

impl Approval {
    /// Fails unless this caller may make this decision now.
    pub fn check(&self, caller: &Principal, answer: &DecisionRequest, now: Timestamp) -> Result<()> {
        caller.require(Scope::Approve)?;
        let approvers = &self.request.approvers;
        if !approvers.is_empty() && !approvers.contains(&caller.subject) {
            let message = format!("only {} may decide about this call", approvers.join(", "));
            return Err(Error::new(Code::PermissionDenied, message));
        }
        match self.state {
            ApprovalState::Pending if self.expires_at.is_some_and(|at| at <= now) => {
                return Err(expired());
            }
            ApprovalState::Pending => {}
            ApprovalState::Expired => return Err(expired()),
            ApprovalState::Withdrawn => {
                let message = "the run has ended and the approval was withdrawn";
                return Err(Error::new(Code::ApprovalDecided, message));
            }
            state @ (ApprovalState::Approved | ApprovalState::Denied) => {
                let by = self.decision.as_ref().map_or("someone", |decision| decision.by.as_str());
                return Err(Error::new(
                    Code::ApprovalDecided,
                    format!("the approval was already {state} by {by}"),
                ));
            }
        }
        if answer.call_hash.is_some_and(|seen| seen != self.request.call_hash) {
            let message = "the hash is not that of the call: show the approval again";
            return Err(Error::new(Code::ApprovalChanged, message).at("call_hash"));
        }
        if answer.arguments.is_some() && !answer.approve {
            return Err(Error::invalid("arguments", "expected none: a denied call is not made"));
        }
        if answer.arguments.as_ref().is_some_and(|arguments| !arguments.is_object()) {
            return Err(Error::invalid("arguments", "expected a JSON object"));
        }
        if answer.always && (!answer.approve || answer.arguments.is_some()) {
            return Err(Error::invalid("always", "expected only with an approval of the call as it is"));
        }
        Ok(())
    }
}

fn expired() -> Error {
    Error::new(Code::ApprovalExpired, "the approval expired before a decision was made")
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use serde_json::json;

    use super::*;

    fn approval() -> Approval {
        let arguments = json!({ "command": "make" });
        Approval {
            id: ApprovalId::new(),
            tenant: TenantId::new(),
            session: SessionId::new(),
            run: RunId::new(),
            request: ApprovalRequest {
                call: ToolCallId::new(),
                tool: "Bash".into(),
                call_hash: call_hash("Bash", &arguments),
                arguments,
                agent: "build".into(),
                permission: "bash".into(),
                patterns: vec!["make".into()],
                always: Vec::new(),
                why: "the agent asks about bash".into(),
                approvers: Vec::new(),
            },
            state: ApprovalState::Pending,
            created_at: Timestamp::UNIX_EPOCH,
            expires_at: Some(Timestamp::UNIX_EPOCH + TimeDelta::hours(1)),
            decision: None,
        }
    }

    fn caller(subject: &str, scopes: &[Scope]) -> Principal {
        Principal { tenant: TenantId::new(), subject: subject.into(), scopes: scopes.to_vec() }
    }

    fn approve() -> DecisionRequest {
        DecisionRequest {
            approve: true,
            message: String::new(),
            arguments: None,
            always: false,
            call_hash: None,
        }
    }

    #[test]
    fn only_an_approver_decides_and_only_once_before_expiry() {
        let (now, anna) = (Timestamp::UNIX_EPOCH, caller("anna", &[Scope::Approve]));
        let code = |approval: &Approval, caller: &Principal, answer: &DecisionRequest, now| {
            approval.check(caller, answer, now).err().map(|error| error.code())
        };
        assert_eq!(code(&approval(), &anna, &approve(), now), None);
        let reader = caller("anna", &[Scope::Write]);
        assert_eq!(code(&approval(), &reader, &approve(), now), Some(Code::PermissionDenied));
        let mut named = approval();
        named.request.approvers = vec!["ben".into()];
        assert_eq!(code(&named, &anna, &approve(), now), Some(Code::PermissionDenied));
        let late = now + TimeDelta::hours(1);
        assert_eq!(code(&approval(), &anna, &approve(), late), Some(Code::ApprovalExpired));
        for (state, expected) in [
            (ApprovalState::Approved, Code::ApprovalDecided),
            (ApprovalState::Denied, Code::ApprovalDecided),
            (ApprovalState::Withdrawn, Code::ApprovalDecided),
            (ApprovalState::Expired, Code::ApprovalExpired),
        ] {
            let over = Approval { state, ..approval() };
            assert_eq!(code(&over, &anna, &approve(), now), Some(expected));
        }
    }

    #[test]
    fn decision_with_the_hash_of_another_call_is_rejected() {
        let (now, anna) = (Timestamp::UNIX_EPOCH, caller("anna", &[Scope::Approve]));
        let other =
            DecisionRequest { call_hash: Some(call_hash("Bash", &json!({ "command": "rm" }))), ..approve() };
        assert_eq!(approval().check(&anna, &other, now).unwrap_err().code(), Code::ApprovalChanged);
        let same = DecisionRequest { call_hash: Some(approval().request.call_hash), ..approve() };
        assert!(approval().check(&anna, &same, now).is_ok());
        let edited_no = DecisionRequest { approve: false, arguments: Some(json!({})), ..approve() };
        assert_eq!(approval().check(&anna, &edited_no, now).unwrap_err().field(), Some("arguments"));
    }

    /// A call is stored as JSON until the decision, and must have the same hash afterwards.
    #[test]
    fn call_hash_survives_storage_as_json() {
        for text in
            ["90.298282016985425", "0.1", "5e-324", "1.7976931348623157e308", "-0.0", "18446744073709551615"]
        {
            let arguments: Value = serde_json::from_str(&format!("{{\"x\": {text}}}")).unwrap();
            let stored: Value = serde_json::from_str(&arguments.to_string()).unwrap();
            assert_eq!(call_hash("Move", &stored), call_hash("Move", &arguments), "{text}");
        }
    }
}
