//! Filter for event types.

use remuda_domain::{Error, error::Result};

const MAX_TYPES: usize = 64;

/// Matches everything if empty.
#[derive(Debug)]
pub(super) struct Filter(Vec<TypePattern>);

#[derive(Debug)]
enum TypePattern {
    Exact(String),
    /// With the final dot: `run.`
    Family(String),
}

impl Filter {
    pub(super) fn parse(types: &str) -> Result<Self> {
        let names = types.split(',').map(str::trim).filter(|name| !name.is_empty());
        let wanted = names.map(parse_pattern).collect::<Result<Vec<_>>>()?;
        if wanted.len() > MAX_TYPES {
            return Err(Error::invalid("types", format!("expected at most {MAX_TYPES} types")));
        }
        Ok(Self(wanted))
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        let fits = |wanted: &TypePattern| match wanted {
            TypePattern::Exact(exactly) => exactly == name,
            TypePattern::Family(family) => name.starts_with(family.as_str()),
        };
        self.0.is_empty() || self.0.iter().any(fits)
    }
}

/// Types unknown to this version are accepted: a later one may send them.
fn parse_pattern(name: &str) -> Result<TypePattern> {
    let plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || b"._".contains(&byte))
    };
    match name.strip_suffix(".*") {
        Some(family) if plain(family) => Ok(TypePattern::Family(format!("{family}."))),
        None if plain(name) => Ok(TypePattern::Exact(name.to_owned())),
        _ => Err(Error::invalid("types", "expected types such as run.completed, or run.* for a family")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_matches_types_and_families() {
        let filter = Filter::parse("run.*, message.completed").unwrap();
        for (name, passes) in [
            ("run.queued", true),
            ("message.completed", true),
            ("message.delta", false),
            ("runs.queued", false),
            ("run", false),
        ] {
            assert_eq!(filter.matches(name), passes, "{name}");
        }
        assert!(Filter::parse("").unwrap().matches("anything"));
        assert!(Filter::parse("from.the.future").is_ok());
        for bad in ["*", ".*", "run.**", "Run.queued", "run queued", "a\nb"] {
            assert_eq!(Filter::parse(bad).unwrap_err().field(), Some("types"), "{bad}");
        }
        assert!(Filter::parse(&"a,".repeat(MAX_TYPES + 1)).is_err());
    }
}
