//! Deserializes listen addresses from text.

use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, de};

fn parse<E: de::Error>(text: &str) -> Result<SocketAddr, E> {
    let expected = "an IP address with a port such as 127.0.0.1:7777 or [::]:7777";
    text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &expected))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    parse(&String::deserialize(deserializer)?)
}

/// An address that may be empty.
pub(crate) mod optional {
    use std::net::SocketAddr;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() { Ok(None) } else { super::parse(&text).map(Some) }
    }

    pub(crate) fn serialize<S: Serializer>(
        address: &Option<SocketAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_str(""),
        }
    }
}
