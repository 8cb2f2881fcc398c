//! The tool calls of `remuda run`, from `--tool` and `--arg` in command line order, or from a file.

use std::{fs::File, io::Read as _, path::Path, path::PathBuf, time::Duration};

use clap::{
    Arg, ArgAction, ArgGroup, ArgMatches, Command, FromArgMatches, builder::ValueParser, error::ErrorKind,
};
use remuda_domain::{Code, Error, error::Result, limits};
use remuda_proto::v1;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The calls of the run. `--arg` and `--args-json` belong to the `--tool` before them. A derived parser cannot express that:
/// the order across options is only in clap's indices.
#[derive(Debug, Default)]
pub(crate) struct CallArgs {
    source: Source,
    parallel: bool,
}

#[derive(Debug, Default, PartialEq)]
enum Source {
    #[default]
    Nothing,
    Flags(Vec<FlagCall>),
    File(PathBuf),
}

/// A tool and its arguments from the command line.
type FlagCall = (String, Map<String, Value>);

/// One call in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallSpec {
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    #[serde(default)]
    parallel: bool,
    #[serde(default, with = "humantime_text")]
    timeout: Option<Duration>,
}

impl CallArgs {
    /// The calls for the request, read from the file if one is given; `None` if there are no calls.
    pub(super) fn load(self) -> Result<Option<Vec<v1::ToolCall>>> {
        let specs = match self.source {
            Source::Nothing => return Ok(None),
            Source::File(path) => read_specs(&path)?,
            Source::Flags(calls) => calls
                .into_iter()
                .map(|(tool, arguments)| CallSpec { tool, arguments, parallel: false, timeout: None })
                .collect(),
        };
        let call = |spec: CallSpec| v1::ToolCall {
            id: String::new(),
            tool: spec.tool,
            arguments: Value::Object(spec.arguments).to_string(),
            parallel: spec.parallel || self.parallel,
            timeout: spec.timeout.and_then(|timeout| timeout.try_into().ok()),
        };
        Ok(Some(specs.into_iter().map(call).collect()))
    }
}

fn read_specs(path: &Path) -> Result<Vec<CallSpec>> {
    let failed = |error: std::io::Error| {
        let message = format!("cannot read {}: {error}", path.display());
        Error::invalid("calls", message)
    };
    let limit = u64::try_from(limits::MAX_MESSAGE_BYTES).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        File::open(path).map_err(failed)?.take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
    }
    if bytes.len() > limits::MAX_MESSAGE_BYTES {
        return Err(Error::new(Code::TooLarge, format!("more than {limit} bytes")).at("calls"));
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::invalid("calls", format!("expected a JSON array of calls: {error}")))
}

impl clap::Args for CallArgs {
    fn augment_args(command: Command) -> Command {
        command
            .arg(
                Arg::new("tool")
                    .long("tool")
                    .short('t')
                    .value_name("NAME")
                    .action(ArgAction::Append)
                    .help_heading("Tools")
                    .help("Tool to call. May be repeated; the calls run in this order"),
            )
            .arg(
                Arg::new("arg")
                    .long("arg")
                    .short('a')
                    .value_name("KEY=VALUE|KEY:=JSON")
                    .action(ArgAction::Append)
                    .value_parser(ValueParser::new(parse_pair))
                    .allow_hyphen_values(true)
                    .help_heading("Tools")
                    .help("Argument of the --tool before it")
                    .long_help(
                        "Argument of the --tool before it: key=value is a string, key:=json is any JSON value \
                         (--arg limit:=10 --arg deep:='{\"a\":true}')",
                    ),
            )
            .arg(
                Arg::new("args-json")
                    .long("args-json")
                    .value_name("JSON")
                    .action(ArgAction::Append)
                    .value_parser(ValueParser::new(parse_object))
                    .help_heading("Tools")
                    .help("All arguments of the --tool before it as one JSON object"),
            )
            .arg(
                Arg::new("parallel")
                    .long("parallel")
                    .action(ArgAction::SetTrue)
                    .requires("what")
                    .help_heading("Tools")
                    .help("Run all calls in parallel; a failed call does not cancel the others"),
            )
            .arg(
                Arg::new("calls")
                    .long("calls")
                    .value_name("FILE|-")
                    .value_parser(clap::value_parser!(PathBuf))
                    .conflicts_with_all(["arg", "args-json"])
                    .help_heading("Tools")
                    .help("Read the calls from a JSON file, or from stdin")
                    .long_help(
                        "Read the calls from a JSON file, or from stdin: \
                         [{\"tool\": \"Bash\", \"arguments\": {\"command\": \"ls\"}, \"parallel\": false, \"timeout\": \"30s\"}]",
                    ),
            )
            .group(ArgGroup::new("what").args(["tool", "calls"]))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for CallArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let parallel = matches.get_flag("parallel");
        let source = match matches.get_one::<PathBuf>("calls") {
            Some(path) => Source::File(path.clone()),
            None => match flags_in_order(matches)? {
                calls if calls.is_empty() => Source::Nothing,
                calls => Source::Flags(calls),
            },
        };
        Ok(Self { source, parallel })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

enum Item {
    Tool(String),
    Arguments(Map<String, Value>),
}

fn flags_in_order(matches: &ArgMatches) -> Result<Vec<FlagCall>, clap::Error> {
    let mut items: Vec<(usize, Item)> = Vec::new();
    let tools = indexed::<String>(matches, "tool").map(|(index, tool)| (index, Item::Tool(tool)));
    items.extend(tools);
    for name in ["arg", "args-json"] {
        let arguments = indexed::<Map<String, Value>>(matches, name);
        items.extend(arguments.map(|(index, arguments)| (index, Item::Arguments(arguments))));
    }
    items.sort_by_key(|(index, _)| *index);

    let mut calls: Vec<FlagCall> = Vec::new();
    for (_, item) in items {
        match (item, calls.last_mut()) {
            (Item::Tool(tool), _) => calls.push((tool, Map::new())),
            (Item::Arguments(_), None) => {
                return Err(usage("an argument needs a --tool before it"));
            }
            (Item::Arguments(arguments), Some((tool, seen))) => {
                for (key, value) in arguments {
                    if seen.contains_key(&key) {
                        return Err(usage(&format!("argument '{key}' of {tool} is given twice")));
                    }
                    seen.insert(key, value);
                }
            }
        }
    }
    Ok(calls)
}

fn indexed<T: Clone + Send + Sync + 'static>(
    matches: &ArgMatches,
    name: &str,
) -> impl Iterator<Item = (usize, T)> {
    let indices = matches.indices_of(name).into_iter().flatten();
    let values = matches.get_many::<T>(name).into_iter().flatten();
    indices.zip(values.cloned()).collect::<Vec<_>>().into_iter()
}

fn usage(message: &str) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, message)
}

/// Reads `key=value` or `key:=json`.
fn parse_pair(text: &str) -> Result<Map<String, Value>, String> {
    let (key, value) = text.split_once('=').ok_or("expected key=value, or key:=json")?;
    let (key, value) = match key.strip_suffix(':') {
        Some(key) => {
            (key, serde_json::from_str(value).map_err(|error| format!("expected JSON after := ({error})"))?)
        }
        None => (key, Value::from(value)),
    };
    if key.is_empty() {
        return Err("expected a key before the equals sign".to_owned());
    }
    Ok(Map::from_iter([(key.to_owned(), value)]))
}

fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("expected a JSON object ({error})"))
}

mod humantime_text {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, de::Error as _};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| humantime::parse_duration(&text).map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
