//! The descriptors of all tools of a process.

use std::{borrow::Cow, sync::Arc};

use super::{ForeignFormat, ToolDescriptor, ToolRole};

/// Tool descriptors with distinct names, in the order of their registration. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ToolCatalog(Arc<[ToolDescriptor]>);

impl FromIterator<ToolDescriptor> for ToolCatalog {
    fn from_iter<I: IntoIterator<Item = ToolDescriptor>>(tools: I) -> Self {
        Self(tools.into_iter().collect())
    }
}

impl ToolCatalog {
    pub fn iter(&self) -> impl Iterator<Item = &ToolDescriptor> {
        self.0.iter()
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ToolDescriptor> {
        self.iter().find(|tool| tool.name == name)
    }

    /// The descriptor of a tool; the [fallback](ToolDescriptor::unknown) if it is not in the catalog.
    #[must_use]
    pub fn describe(&self, name: &str) -> Cow<'_, ToolDescriptor> {
        self.get(name).map_or_else(|| Cow::Owned(ToolDescriptor::unknown(name)), Cow::Borrowed)
    }

    #[must_use]
    pub fn with_role(&self, role: ToolRole) -> Option<&ToolDescriptor> {
        self.iter().find(|tool| tool.role == Some(role))
    }

    /// The equivalents of a tool of another system.
    pub fn equivalents(&self, format: ForeignFormat, name: &str) -> impl Iterator<Item = &ToolDescriptor> {
        self.iter().filter(move |tool| tool.foreign_names.contains(&(format, name)))
    }
}
