//! Reading text in a way that remembers where everything stood.
//!
//! Definitions are read in two steps. First the text, whatever its format, becomes a [`Node`]: a small tree in which each
//! key and value knows its line. Then [`Fields`] takes values out of it, and says of each that is wrong where it stands,
//! what was found and what was expected.

mod check;
mod fields;
mod frontmatter;
mod json;
mod tree;
mod yaml;

pub(crate) use check::{authority, is_model_name, is_name, nearest};
pub(crate) use fields::Fields;
pub(crate) use frontmatter::{Document, Style, split};
pub(crate) use json::parse as parse_json;
pub(crate) use tree::{Entry, Fault, Kind, Node, Position, Text, Value, quoted};
pub(crate) use yaml::parse as parse_yaml;
