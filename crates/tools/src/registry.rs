//! Registry of tools by name.

use std::{collections::BTreeMap, sync::Arc};

use remuda_domain::error::{Code, Error, Result};

use crate::{
    native,
    tool::Tool,
    web::{SearchProvider, WebOptions},
};

/// Options of the native tools. The defaults need no configuration.
#[derive(Clone, Debug, Default)]
pub struct ToolOptions {
    /// Options of `WebFetch`.
    pub web: WebOptions,
    /// Search provider of `WebSearch`.
    pub search: Option<Arc<dyn SearchProvider>>,
}

/// A set of tools with distinct names. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Registry(Arc<BTreeMap<String, Arc<dyn Tool>>>);

impl Registry {
    /// The native tools.
    #[must_use]
    pub fn native(options: &ToolOptions) -> Self {
        let mut tools: Vec<Arc<dyn Tool>> = vec![
            Arc::new(native::Bash),
            Arc::new(native::BashOutput),
            Arc::new(native::KillBash),
            Arc::new(native::Noop),
            Arc::new(native::WebFetch::new(&options.web)),
            Arc::new(native::WebSearch::new(options.search.clone())),
        ];
        tools.extend(native::file_tools());
        Self(Arc::new(tools.into_iter().map(|tool| (tool.name().to_owned(), tool)).collect()))
    }

    /// A copy of the set with one more tool.
    pub fn with(&self, tool: Arc<dyn Tool>) -> Result<Self> {
        if self.is_known(tool.name()) {
            return Err(Error::new(Code::AlreadyExists, format!("there are two tools {}", tool.name())));
        }
        let mut tools = (*self.0).clone();
        tools.insert(tool.name().to_owned(), tool);
        Ok(Self(Arc::new(tools)))
    }

    /// A copy with the tools whose names match.
    #[must_use]
    pub fn only(&self, wanted: impl Fn(&str) -> bool) -> Self {
        let tools = self.0.iter().filter(|(name, _)| wanted(name));
        Self(Arc::new(tools.map(|(name, tool)| (name.clone(), Arc::clone(tool))).collect()))
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.0.get(name)
    }

    #[must_use]
    pub fn is_known(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// All tools, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Tool>> {
        self.0.values()
    }
}
