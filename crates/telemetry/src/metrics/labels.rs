//! Labels whose values come from outside, kept few.

use std::{fmt, sync::Arc};

use super::{Capped, Counter, KeyValue, registry::label};

/// What stands for every value that is not known, or came too late.
pub const OTHER: &str = "other";
/// What is let through unless the configuration says otherwise.
const MOST: usize = 100;

/// The labels of a process whose values others choose. One for all its parts, so that a value is the same in all metrics.
#[derive(Debug)]
pub struct Labels {
    /// Missing where nobody wants to know it.
    tenants: Option<Capped>,
    models: Capped,
    tools: Capped,
    pools: Capped,
}

impl Default for Labels {
    fn default() -> Self {
        Self::new(false, MOST)
    }
}

impl Labels {
    #[must_use]
    pub fn new(tenants: bool, most: usize) -> Self {
        Self {
            tenants: tenants.then(|| Capped::new(most)),
            models: Capped::new(most),
            tools: Capped::new(most),
            pools: Capped::new(most),
        }
    }

    /// Whose something is, where the configuration wants that to be told.
    pub fn tenant(&self, tenant: &dyn fmt::Display) -> Option<KeyValue> {
        let tenants = self.tenants.as_ref()?;
        Some(tenants.label(label::TENANT, &tenant.to_string()))
    }

    /// A model that a tenant named.
    pub fn model(&self, name: &str) -> KeyValue {
        self.models.label(label::MODEL, name)
    }

    /// A tool that is not the platform's own, or that a model made up.
    pub fn tool(&self, name: &str) -> KeyValue {
        self.tools.label(label::TOOL, name)
    }

    /// Whoever makes a session names its pool.
    pub fn pool(&self, name: &str) -> KeyValue {
        self.pools.label(label::POOL, name)
    }
}

/// A counter that says whose it is, where the configuration wants that.
#[derive(Clone, Debug)]
pub struct ByTenant<T> {
    counter: Counter<T>,
    labels: Arc<Labels>,
}

impl<T> ByTenant<T> {
    #[must_use]
    pub fn new(counter: Counter<T>, labels: Arc<Labels>) -> Self {
        Self { counter, labels }
    }

    pub fn add(&self, value: T, tenant: &dyn fmt::Display, others: &[KeyValue]) {
        match self.labels.tenant(tenant) {
            None => self.counter.add(value, others),
            Some(tenant) => self.counter.add(value, &[others, &[tenant]].concat()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_told_only_where_asked_for() {
        assert_eq!(Labels::default().tenant(&"ten_1"), None);
        let labels = Labels::new(true, 1);
        assert_eq!(labels.tenant(&"ten_1"), Some(KeyValue::new("tenant", "ten_1")));
        assert_eq!(labels.tenant(&"ten_2"), Some(KeyValue::new("tenant", "other")));
    }

    #[test]
    fn labels_do_not_take_each_others_room() {
        let labels = Labels::new(true, 1);
        assert_eq!(labels.model("a"), KeyValue::new("model", "a"));
        assert_eq!(labels.pool("b"), KeyValue::new("pool", "b"));
        assert_eq!(labels.model("b"), KeyValue::new("model", "other"));
    }
}
