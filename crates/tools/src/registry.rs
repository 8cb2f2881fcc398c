//! Registry of tools by name.

use std::{collections::BTreeMap, sync::Arc};

use remuda_domain::{
    error::{Code, Error, Result},
    tool::{ToolCatalog, ToolDescriptor},
};

use crate::{
    native,
    read_history::ReadHistory,
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
pub struct Registry {
    tools: Arc<BTreeMap<String, Arc<dyn Tool>>>,
    catalog: ToolCatalog,
}

impl Registry {
    /// The native tools, in the order in which people read lists of them.
    #[must_use]
    pub fn native(options: &ToolOptions) -> Self {
        let history = ReadHistory::default();
        let tools: [Arc<dyn Tool>; 12] = [
            Arc::new(native::Bash),
            Arc::new(native::BashOutput),
            Arc::new(native::KillBash),
            Arc::new(native::Read::new(history.clone())),
            Arc::new(native::Write::new(history.clone())),
            Arc::new(native::Edit::new(history)),
            Arc::new(native::Glob),
            Arc::new(native::Grep),
            Arc::new(native::WebFetch::new(&options.web)),
            Arc::new(native::WebSearch::new(options.search.clone())),
            Arc::new(native::TodoWrite),
            Arc::new(native::Noop),
        ];
        tools.into_iter().collect()
    }

    /// A copy of the set with one more tool.
    pub fn with(&self, tool: Arc<dyn Tool>) -> Result<Self> {
        if self.is_known(tool.name()) {
            return Err(Error::new(Code::AlreadyExists, format!("there are two tools {}", tool.name())));
        }
        Ok(self.registered().chain([tool]).collect())
    }

    /// A copy with the tools that are wanted.
    #[must_use]
    pub fn only(&self, wanted: impl Fn(&ToolDescriptor) -> bool) -> Self {
        self.registered().filter(|tool| wanted(tool.descriptor())).collect()
    }

    /// The descriptors of the tools, in the order of registration.
    #[must_use]
    pub fn catalog(&self) -> &ToolCatalog {
        &self.catalog
    }

    fn registered(&self) -> impl Iterator<Item = Arc<dyn Tool>> {
        self.catalog.iter().filter_map(|tool| self.get(&tool.name).cloned())
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.get(name)
    }

    #[must_use]
    pub fn is_known(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }

    /// All tools, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Tool>> {
        self.tools.values()
    }
}

impl FromIterator<Arc<dyn Tool>> for Registry {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Tool>>>(tools: I) -> Self {
        let tools: Vec<Arc<dyn Tool>> = tools.into_iter().collect();
        let catalog = tools.iter().map(|tool| tool.descriptor().clone()).collect();
        let tools = tools.into_iter().map(|tool| (tool.name().to_owned(), tool)).collect();
        Self { tools: Arc::new(tools), catalog }
    }
}
