//! What of a call is judged.

use remuda_domain::permission::{PermissionAction, PermissionRule};
use serde_json::Value;

use crate::{
    always,
    layer::Layer,
    names::permission_of,
    path,
    shell::{self, Redirection, Script},
    verdict::Asked,
    wildcard::{ANY, fits, may_fit},
};

/// One thing that rules decide about.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) permission: &'a str,
    /// Rules may also name the tool.
    pub(crate) tool: Option<&'a str>,
    pub(crate) shown: String,
    forms: Vec<Form>,
    /// Why it may be anything.
    pub(crate) unknown: Option<&'static str>,
    /// The rule that allows it and what is like it, and one that allows nothing else.
    pub(crate) always: [Option<PermissionRule>; 2],
    is_path: bool,
}

/// A text that a rule may fit.
#[derive(Debug)]
struct Form {
    text: String,
    allows: Allows,
    by: By,
}

/// Whose rules look at a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Everyone,
    Builtin,
    Others,
}

/// How well a rule that allows something must know a text. Others only have to fit.
#[derive(Clone, Copy, Debug)]
enum Allows {
    ByPattern,
    /// The rule is the text itself: nobody knows what a part of it does.
    AsAWhole,
    Never,
}

impl From<String> for Form {
    fn from(text: String) -> Self {
        Self { text, allows: Allows::ByPattern, by: By::Everyone }
    }
}

impl Form {
    fn counts(&self, layer: Layer, rule: &PermissionRule) -> bool {
        let other = if layer == Layer::Default { By::Others } else { By::Builtin };
        if self.by == other {
            return false;
        }
        let enough = match self.allows {
            Allows::ByPattern => true,
            Allows::AsAWhole => rule.pattern == self.text,
            Allows::Never => false,
        };
        enough || rule.action != PermissionAction::Allow
    }
}

impl<'a> Subject<'a> {
    fn new(permission: &'a str, tool: Option<&'a str>, shown: String, forms: Vec<Form>) -> Self {
        Self { permission, tool, shown, forms, unknown: None, always: [None, None], is_path: false }
    }

    fn path(permission: &'a str, tool: Option<&'a str>, root: &str, written: &str) -> Self {
        let forms = path::forms(root, written);
        let shown = forms.first().cloned().unwrap_or_default();
        let only = always::exact(permission, &shown);
        let mut subject = Self::new(permission, tool, shown, forms.into_iter().map(Form::from).collect());
        subject.is_path = true;
        subject.always = [None, only];
        subject
    }

    fn text(permission: &'a str, tool: &'a str, text: &str) -> Self {
        let mut subject =
            Self::new(permission, Some(tool), text.to_owned(), vec![Form::from(text.to_owned())]);
        let like = match permission {
            "webfetch" => always::site(text),
            "websearch" => Some(PermissionRule::new(permission, "*", PermissionAction::Allow)),
            _ => None,
        };
        subject.always = [like, always::exact(permission, text)];
        subject
    }

    /// Whether a rule certainly fits.
    pub(crate) fn fits(&self, layer: Layer, rule: &PermissionRule) -> bool {
        self.any(layer, rule, fits)
    }

    /// Whether a rule may fit, for all that can be told.
    pub(crate) fn may_fit(&self, layer: Layer, rule: &PermissionRule) -> bool {
        self.unknown.is_some() || self.any(layer, rule, may_fit)
    }

    fn any(&self, layer: Layer, rule: &PermissionRule, fits: fn(&str, &str) -> bool) -> bool {
        let pattern = if self.is_path { path::pattern(&rule.pattern) } else { &rule.pattern };
        let home = (pattern.contains("$HOME") || pattern.contains("${HOME}"))
            .then(|| pattern.replace("${HOME}", "~").replace("$HOME", "~"));
        self.forms.iter().filter(|form| form.counts(layer, rule)).any(|form| {
            fits(pattern, &form.text) || home.as_ref().is_some_and(|pattern| fits(pattern, &form.text))
        })
    }
}

/// What of a call is judged, and the script if it is one.
pub(crate) fn of<'a>(root: &str, call: &Asked<'a>) -> (Vec<Subject<'a>>, Option<Script>) {
    let (tool, permission) = (call.tool, permission_of(call.tool));
    let argument =
        |names: &[&str]| names.iter().find_map(|name| call.arguments.get(name).and_then(Value::as_str));
    // A call without it fails anyway.
    let unknown = "\0";
    let text = |names: &[&str]| Subject::text(permission, tool, argument(names).unwrap_or(unknown));
    let subject = match tool {
        "Read" | "Write" | "Edit" => {
            Subject::path(permission, Some(tool), root, argument(&["file_path"]).unwrap_or(unknown))
        }
        "Grep" | "Glob" => {
            let path = argument(&["path"]).unwrap_or(".");
            let mut subject = Subject::path(permission, Some(tool), root, path);
            // Where it looks may be said there as well, which can be forbidden but allows nothing: it only narrows.
            let filter = if tool == "Grep" { argument(&["glob"]) } else { argument(&["pattern"]) };
            if let Some(filter) = filter.filter(|filter| !filter.starts_with('!')) {
                let forms = path::forms(root, &format!("{path}/{filter}")).into_iter();
                subject.forms.extend(forms.map(|text| Form {
                    text,
                    allows: Allows::Never,
                    by: By::Everyone,
                }));
            }
            subject
        }
        "WebFetch" => text(&["url"]),
        "WebSearch" => text(&["query"]),
        "Skill" => text(&["skill", "name"]),
        "SubAgent" => text(&["subagent_type", "agent"]),
        "AgentSwitch" => text(&["agent", "to"]),
        "Bash" => {
            let script = shell::read(argument(&["command"]).unwrap_or(unknown));
            return (of_script(root, &script), Some(script));
        }
        // What their arguments mean to a rule is not known, or they have none that matters.
        tool => {
            let ours = matches!(tool, "BashOutput" | "KillBash" | "TodoWrite");
            let form = if ours { "*" } else { unknown };
            let mut subject = Subject::new(permission, Some(tool), "*".into(), vec![form.to_owned().into()]);
            // By the name of the tool: the permission may be about more.
            subject.always = [Some(PermissionRule::new(tool, "*", PermissionAction::Allow)), None];
            subject
        }
    };
    (vec![subject], None)
}

fn of_script<'a>(root: &str, script: &Script) -> Vec<Subject<'a>> {
    let mut subjects = Vec::new();
    for command in &script.commands {
        let mut forms = vec![Form { by: By::Others, ..Form::from(command.text.clone()) }];
        if command.raw != command.text {
            let allows = if command.words.is_empty() { Allows::AsAWhole } else { Allows::ByPattern };
            forms.push(Form { text: command.raw.clone(), allows, by: By::Others });
        }
        forms.extend(command.also().into_iter().map(|(text, same)| {
            let allows = if same { Allows::ByPattern } else { Allows::Never };
            Form { text, allows, by: By::Others }
        }));
        // The built-in rules are about paths, which are words.
        forms.push(Form { by: By::Builtin, ..Form::from(command.named()) });
        let tool = Some("Bash");
        let mut subject = Subject::new("bash", tool, command.raw.clone(), forms);
        subject.unknown = command.unknown;
        let only = always::exact("bash", &command.raw).filter(|_| command.says_what_it_does());
        subject.always = [always::like(command), only];
        subjects.push(subject);
    }
    for Redirection { target, reads, writes } in &script.redirections {
        let moved = script.changes_directory && !target.text.starts_with(['/', '~', ANY]);
        let text = if moved { format!("{ANY}{}", target.text) } else { target.text.clone() };
        for (permission, counts) in [("read", *reads), ("edit", *writes)] {
            if counts {
                let mut subject = Subject::path(permission, None, root, &text);
                if text.contains(ANY) {
                    subject.shown.clone_from(&target.raw);
                    subject.forms.push(target.raw.clone().into());
                    subject.always = [None, always::exact(permission, &target.raw)];
                }
                subjects.push(subject);
            }
        }
    }
    subjects
}
