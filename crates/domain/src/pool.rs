//! Pools: which workers may take a session.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Name of a pool (`default`, `docker`, `gpu`). It becomes part of NATS subjects and consumer names, so its alphabet
/// is narrow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pool(String);

impl Pool {
    const MAX_LEN: usize = 32;

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Pool {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if text.is_empty() || text.len() > Self::MAX_LEN || !text.bytes().all(allowed) {
            return Err(Error::invalid("pool", "expected 1 to 32 characters of a-z, 0-9, - and _"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Pool {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Pool> for String {
    fn from(pool: Pool) -> Self {
        pool.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_names_unsafe_in_a_subject_are_rejected() {
        for good in ["default", "gpu-a100", "x_1"] {
            assert_eq!(good.parse::<Pool>().unwrap().as_str(), good);
        }
        for bad in ["", "a.b", "*", ">", "A", "a b", "é", "\0", &"x".repeat(33)] {
            assert!(bad.parse::<Pool>().is_err(), "{bad:?}");
        }
    }
}
