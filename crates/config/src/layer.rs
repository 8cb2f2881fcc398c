//! A source of settings in the form that the `config` crate merges.

use std::{fmt, path::Path};

use config::{ConfigError, Map, Source, Value, ValueKind};

use crate::{error::Origin, source_parser::variable_of};

pub(crate) const FILE: &str = "file";
pub(crate) const ENVIRONMENT: &str = "environment";
pub(crate) const COMMAND_LINE: &str = "command line";

/// The settings of one source: keys such as `worker.slots` with checked values.
#[derive(Clone)]
pub(crate) struct Layer {
    /// Attached to every value. Key and layer name determine the [`Origin`].
    name: String,
    values: Map<String, Value>,
}

impl Layer {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), values: Map::new() }
    }

    /// Sets a key; a later value replaces an earlier one.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.values.insert(key.to_owned(), Value::new(Some(&self.name), value.kind));
    }
}

/// Omits the values, which may be secrets.
impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        Ok(self.values.clone())
    }
}

/// The origin of a key's merged value. `file` is the file that was read.
pub(crate) fn origin_of(merged: &config::Config, key: &str, file: Option<&Path>) -> Origin {
    let value = key.split('.').try_fold(&merged.cache, |value, name| match &value.kind {
        ValueKind::Table(table) => table.get(name),
        _ => None,
    });
    match (value.and_then(Value::origin), file) {
        (Some(FILE), Some(path)) => Origin::File(path.to_owned()),
        (Some(ENVIRONMENT), _) => Origin::Variable(variable_of(key)),
        (Some(COMMAND_LINE), _) => Origin::CommandLine,
        _ => Origin::Default,
    }
}
