//! Parses and formats sizes: `512MiB`, `2GiB`, `4096`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

impl ByteSize {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, size)| text.strip_suffix(name).map(|number| (number.trim_end(), *size)))
            .unwrap_or((text, 1));
        number.parse::<u64>().ok()?.checked_mul(unit).map(Self)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.iter().find(|(_, size)| self.0 > 0 && self.0.is_multiple_of(*size));
        let (name, size) = whole.unwrap_or(&("B", 1));
        write!(f, "{}{name}", self.0 / size)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let expected = "a size such as 512MiB or 2GiB";
        Self::parse(&text).ok_or_else(|| de::Error::invalid_value(de::Unexpected::Str(&text), &expected))
    }
}

/// For `#[serde(with = "bytes")]`.
pub(crate) fn serialize<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    ByteSize(*bytes).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    ByteSize::deserialize(deserializer).map(|size| size.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_formatted() {
        for (text, bytes) in [("512MiB", 512 << 20), ("2 GiB", 2 << 30), ("4096", 4096), ("1B", 1), ("0", 0)]
        {
            assert_eq!(ByteSize::parse(text), Some(ByteSize(bytes)), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5GiB", "99999999999TiB", "1MB", "many"] {
            assert_eq!(ByteSize::parse(text), None, "{text}");
        }
        assert_eq!(ByteSize(512 << 20).to_string(), "512MiB");
        assert_eq!(ByteSize(1000).to_string(), "1000B");
        assert_eq!(ByteSize(0).to_string(), "0B");
    }
}
