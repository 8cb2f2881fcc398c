//! The file format of scenarios.

use std::{fs::File, io::Read as _, num::NonZeroU32, path::Path, time::Duration};

use remuda_domain::{
    error::{Error, Result},
    model::FinishReason,
};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value};
use serde_saphyr::{DefaultMessageFormatter, MessageFormatter as _, Spanned};

use crate::provider_error::Secrets;

const MAX_FILE_BYTES: u64 = 1024 * 1024;
const MAX_WAIT: Duration = Duration::from_secs(10 * 60);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    /// Delay between two words.
    #[serde(default, deserialize_with = "duration")]
    pub(super) pace: Duration,
    /// Name of a file beside the scenario.
    #[serde(default, deserialize_with = "file_name")]
    pub(super) log: Option<String>,
    #[serde(default)]
    pub(super) turns: Vec<Spanned<Turn>>,
    #[serde(default)]
    pub(super) conversations: Vec<Conversation>,
    pub(super) otherwise: Option<Spanned<Turn>>,
}

/// Turns for certain user messages.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Conversation {
    pub(super) on: On,
    pub(super) turns: Vec<Spanned<Turn>>,
    pub(super) otherwise: Option<Spanned<Turn>>,
}

/// Selects user messages. All given conditions must hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct On {
    pub(super) user_contains: Option<String>,
    pub(super) system_contains: Option<String>,
    pub(super) question: Option<usize>,
}

/// One response.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Turn {
    pub(super) when: Option<When>,
    pub(super) repeat: Option<NonZeroU32>,
    #[serde(default, deserialize_with = "duration")]
    pub(super) delay: Duration,
    #[serde(default)]
    pub(super) think: String,
    #[serde(default)]
    pub(super) say: String,
    #[serde(default)]
    pub(super) call: Vec<Spanned<Call>>,
    pub(super) finish: Option<FinishReason>,
    pub(super) usage: Option<Tokens>,
    pub(super) fail: Option<Fail>,
}

/// Conditions of a turn. All given conditions must hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct When {
    pub(super) user_contains: Option<String>,
    pub(super) tool_result_contains: Option<String>,
    pub(super) tool_failed: Option<bool>,
    pub(super) system_contains: Option<String>,
    pub(super) tool_offered: Option<String>,
    pub(super) may_call: Option<bool>,
    pub(super) turn: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Call {
    pub(super) tool: String,
    pub(super) arguments: Option<Map<String, Value>>,
    /// Verbatim text instead of arguments.
    pub(super) raw: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tokens {
    #[serde(default)]
    pub(super) input: u64,
    #[serde(default)]
    pub(super) output: u64,
    #[serde(default)]
    pub(super) cached_input: u64,
    #[serde(default)]
    pub(super) cache_write: u64,
    #[serde(default)]
    pub(super) reasoning: u64,
}

/// A provider error.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fail {
    #[serde(default = "unavailable", deserialize_with = "status")]
    pub(super) status: u16,
    #[serde(default)]
    pub(super) message: String,
    /// Derived from the status unless given.
    pub(super) retry: Option<bool>,
    #[serde(default, deserialize_with = "duration")]
    pub(super) retry_after: Duration,
    #[serde(default)]
    pub(super) after_words: usize,
    pub(super) times: Option<NonZeroU32>,
}

impl Scenario {
    pub(super) async fn load(file: &Path) -> Result<Self> {
        let (path, name) = (file.to_owned(), file.display().to_string());
        let read = tokio::task::spawn_blocking(move || read(&path)).await;
        let text = read
            .map_err(std::io::Error::other)
            .flatten()
            .map_err(|error| Error::invalid("name", format!("cannot read the scenario {name}: {error}")))?;
        Self::parse(&text, &name)
    }

    pub(super) fn parse(text: &str, name: &str) -> Result<Self> {
        let at = |line: Option<u64>, what: &str| {
            let line = line.map_or_else(String::new, |line| format!(":{line}"));
            Error::invalid("name", format!("{name}{line}: {what}"))
        };
        // Without the snippet, which may show content of a file that is not a scenario.
        let scenario: Self = serde_saphyr::from_str(text).map_err(|error| {
            let error = error.without_snippet();
            let message = DefaultMessageFormatter.format_message(error);
            at(error.location().map(|location| location.line()), &Secrets::default().clean(&message))
        })?;
        scenario.check().map_err(|(line, what)| at(Some(line), what))?;
        Ok(scenario)
    }

    /// Checks what the types alone cannot express.
    fn check(&self) -> Result<(), (u64, &'static str)> {
        let mut last = Vec::from_iter(&self.otherwise);
        let mut turns: Vec<_> = self.turns.iter().collect();
        for conversation in &self.conversations {
            turns.extend(&conversation.turns);
            last.extend(&conversation.otherwise);
        }
        if turns.is_empty() && last.is_empty() {
            return Err((1, "expected turns, conversations or otherwise"));
        }
        for turn in &last {
            if turn.value.when.is_some() || turn.value.repeat.is_some() {
                return Err((line(turn), "expected otherwise to have neither when nor repeat"));
            }
        }
        for turn in turns.into_iter().chain(last) {
            let Turn { think, say, call, fail, .. } = &turn.value;
            if think.is_empty() && say.is_empty() && call.is_empty() && fail.is_none() {
                return Err((line(turn), "expected a turn to have say, think, call or fail"));
            }
            let both = |call: &&Spanned<Call>| call.value.arguments.is_some() && call.value.raw.is_some();
            if let Some(call) = call.iter().find(both) {
                return Err((line(call), "expected arguments or raw, not both"));
            }
        }
        Ok(())
    }
}

fn line<T>(value: &Spanned<T>) -> u64 {
    value.referenced.line()
}

/// Reads regular files of limited size only.
fn read(path: &Path) -> std::io::Result<String> {
    let invalid = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidInput, what.to_owned());
    if !path.is_absolute() {
        return Err(invalid("expected an absolute path"));
    }
    if !std::fs::metadata(path)?.is_file() {
        return Err(invalid("expected a file"));
    }
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(invalid("expected at most 1 MiB"));
    }
    Ok(text)
}

fn unavailable() -> u16 {
    503
}

fn status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let status = u16::deserialize(deserializer)?;
    if (400..600).contains(&status) {
        Ok(status)
    } else {
        Err(D::Error::custom("expected a status from 400 to 599"))
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let duration = humantime::parse_duration(&text).ok().filter(|duration| *duration <= MAX_WAIT);
    duration.ok_or_else(|| D::Error::custom("expected a time like 20ms or 2s, at most 10m"))
}

/// Accepts file names only, no paths: a scenario must not write elsewhere.
fn file_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let plain = Path::new(&name).file_name().is_some_and(|it| it == name.as_str());
    if plain {
        Ok(Some(name))
    } else {
        Err(D::Error::custom("expected the name of a file beside the scenario"))
    }
}
