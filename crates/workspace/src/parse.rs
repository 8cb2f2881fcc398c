//! Parses YAML, JSON and frontmatter into a tree with positions.
//!
//! Definitions are parsed in two steps. First the text becomes a [`Node`]: a tree in which each key and value has its
//! position. Then [`Fields`] extracts typed values, and reports for each invalid one its position, what was found and what
//! was expected.

mod fields;
mod frontmatter;
mod json;
mod names;
mod tree;
mod yaml;

pub(crate) use fields::Fields;
pub(crate) use frontmatter::{Document, FrontmatterStyle, split_frontmatter};
pub(crate) use json::parse as parse_json;
pub(crate) use names::{authority, is_model_name, is_name};
pub(crate) use tree::{Entry, Fault, LocatedText, Node, Position, ScalarKind, Value, quoted};
pub(crate) use yaml::parse as parse_yaml;
