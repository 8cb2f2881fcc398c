//! Labels with values from outside, limited in number.

use std::{fmt, sync::Arc};

use super::{Counter, KeyValue, LabelLimiter, registry::label};

/// Replaces every value that is unknown or beyond the limit.
pub const OTHER: &str = "other";
/// The default limit.
const DEFAULT_LIMIT: usize = 100;

/// The labels with values from outside. Shared by the whole process, so that a value is the same in all metrics.
#[derive(Debug)]
pub struct Labels {
    /// `None` if metrics have no tenant label.
    tenants: Option<LabelLimiter>,
    models: LabelLimiter,
    tools: LabelLimiter,
    pools: LabelLimiter,
}

impl Default for Labels {
    fn default() -> Self {
        Self::new(false, DEFAULT_LIMIT)
    }
}

impl Labels {
    #[must_use]
    pub fn new(tenants: bool, limit: usize) -> Self {
        Self {
            tenants: tenants.then(|| LabelLimiter::new(limit)),
            models: LabelLimiter::new(limit),
            tools: LabelLimiter::new(limit),
            pools: LabelLimiter::new(limit),
        }
    }

    /// The tenant label, if enabled.
    pub fn tenant(&self, tenant: &dyn fmt::Display) -> Option<KeyValue> {
        let tenants = self.tenants.as_ref()?;
        Some(tenants.label(label::TENANT, &tenant.to_string()))
    }

    /// A model defined by a tenant.
    pub fn model(&self, name: &str) -> KeyValue {
        self.models.label(label::MODEL, name)
    }

    /// A tool that is not native, or that a model made up.
    pub fn tool(&self, name: &str) -> KeyValue {
        self.tools.label(label::TOOL, name)
    }

    /// A pool, which the creator of a session names.
    pub fn pool(&self, name: &str) -> KeyValue {
        self.pools.label(label::POOL, name)
    }
}

/// A counter with a tenant label, if enabled.
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
    fn tenant_label_is_only_set_if_enabled() {
        assert_eq!(Labels::default().tenant(&"ten_1"), None);
        let labels = Labels::new(true, 1);
        assert_eq!(labels.tenant(&"ten_1"), Some(KeyValue::new("tenant", "ten_1")));
        assert_eq!(labels.tenant(&"ten_2"), Some(KeyValue::new("tenant", "other")));
    }

    #[test]
    fn each_label_has_its_own_limit() {
        let labels = Labels::new(true, 1);
        assert_eq!(labels.model("a"), KeyValue::new("model", "a"));
        assert_eq!(labels.pool("b"), KeyValue::new("pool", "b"));
        assert_eq!(labels.model("b"), KeyValue::new("model", "other"));
    }
}
