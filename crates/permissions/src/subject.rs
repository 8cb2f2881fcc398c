//! The subjects of a tool call: the parts that rules decide about.

use remuda_domain::{
    permission::{PermissionAction, PermissionRule},
    tool::{CallSubject, SimilarCalls, ToolDescriptor},
};

use crate::{
    always_rules,
    layer::Layer,
    path,
    shell::{self, AlternativeText, Redirection, ScriptAnalysis},
    verdict::ProposedCall,
    wildcard::{ANY, fits, is_universal, may_fit},
};

/// One part of a call that rules decide about, such as a path or a command.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) permission: &'a str,
    /// The tool, since rules may name it instead of the permission.
    pub(crate) tool: Option<&'a str>,
    pub(crate) shown: String,
    forms: Vec<MatchText>,
    /// Why it may be anything, if so.
    pub(crate) unknown: Option<&'static str>,
    /// Why its program executes something else, if so.
    pub(crate) executes: Option<&'static str>,
    /// Offers for the decision `always`: a rule that also allows similar calls, and one that allows only this one.
    pub(crate) always: [Option<PermissionRule>; 2],
    is_path: bool,
}

/// A text that rules are matched against.
#[derive(Debug)]
struct MatchText {
    text: String,
    allow: AllowMatch,
    applies_to: MatchedRules,
}

/// Which rules are matched against a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchedRules {
    All,
    BuiltIn,
    Other,
}

/// How a rule that allows must match a text. Rules that ask or deny always match by pattern.
#[derive(Clone, Copy, Debug)]
enum AllowMatch {
    ByPattern,
    /// By pattern, if the pattern names this many bytes of the text: they make the program execute something else.
    Naming(usize),
    /// The pattern must equal the text, since the effect of parts of it is unknown.
    Exact,
    Never,
}

impl From<String> for MatchText {
    fn from(text: String) -> Self {
        Self { text, allow: AllowMatch::ByPattern, applies_to: MatchedRules::All }
    }
}

/// Whether a pattern names this many bytes of what it matches, before its first wildcard.
fn names(pattern: &str, bytes: usize) -> bool {
    is_universal(pattern) || pattern.find(['*', '?']).unwrap_or(pattern.len()) >= bytes
}

impl MatchText {
    fn is_for(&self, layer: Layer) -> bool {
        let other = if layer == Layer::Default { MatchedRules::Other } else { MatchedRules::BuiltIn };
        self.applies_to != other
    }

    fn is_compared_with(&self, layer: Layer, rule: &PermissionRule) -> bool {
        if !self.is_for(layer) {
            return false;
        }
        let enough = match self.allow {
            AllowMatch::ByPattern => true,
            AllowMatch::Naming(bytes) => names(&rule.pattern, bytes.min(self.text.len())),
            AllowMatch::Exact => rule.pattern == self.text,
            AllowMatch::Never => false,
        };
        enough || rule.action != PermissionAction::Allow
    }
}

impl<'a> Subject<'a> {
    fn new(permission: &'a str, tool: Option<&'a str>, shown: String, forms: Vec<MatchText>) -> Self {
        let always = [None, None];
        Self { permission, tool, shown, forms, unknown: None, executes: None, always, is_path: false }
    }

    fn path(permission: &'a str, tool: Option<&'a str>, root: &str, written: &str) -> Self {
        let forms = path::forms(root, written);
        let shown = forms.first().cloned().unwrap_or_default();
        let only = always_rules::exact(permission, &shown);
        let mut subject =
            Self::new(permission, tool, shown, forms.into_iter().map(MatchText::from).collect());
        subject.is_path = true;
        subject.always = [None, only];
        subject
    }

    fn text(tool: &'a ToolDescriptor, text: &str, similar: SimilarCalls) -> Self {
        let permission = &*tool.permission;
        let mut subject = Self::of_call(tool, text.to_owned(), text);
        let like = match similar {
            SimilarCalls::SameSite => always_rules::site(permission, text),
            SimilarCalls::All => Some(PermissionRule::new(permission, "*", PermissionAction::Allow)),
            SimilarCalls::None => None,
        };
        subject.always = [like, always_rules::exact(permission, text)];
        subject
    }

    /// A call that is judged as a whole.
    fn whole(tool: &'a ToolDescriptor, form: &str) -> Self {
        let mut subject = Self::of_call(tool, "*".to_owned(), form);
        // By tool name, since the permission may cover more tools.
        subject.always = [Some(PermissionRule::new(&*tool.name, "*", PermissionAction::Allow)), None];
        subject
    }

    fn of_call(tool: &'a ToolDescriptor, shown: String, form: &str) -> Self {
        Self::new(&tool.permission, Some(&tool.name), shown, vec![form.to_owned().into()])
    }

    /// Whether a rule certainly matches.
    pub(crate) fn fits(&self, layer: Layer, rule: &PermissionRule) -> bool {
        self.any(layer, rule, fits)
    }

    /// Whether a rule that allows would match if it named what the command executes.
    pub(crate) fn lacks_name(&self, layer: Layer, rule: &PermissionRule) -> bool {
        let judged = |form: &&MatchText| match form.allow {
            AllowMatch::Naming(_) => form.is_for(layer),
            _ => false,
        };
        rule.action == PermissionAction::Allow
            && self.executes.is_some()
            && self.forms.iter().filter(judged).any(|form| fits(&rule.pattern, &form.text))
    }

    /// Whether a rule may match, depending on the unknown parts.
    pub(crate) fn may_fit(&self, layer: Layer, rule: &PermissionRule) -> bool {
        self.unknown.is_some() || self.any(layer, rule, may_fit)
    }

    fn any(&self, layer: Layer, rule: &PermissionRule, fits: fn(&str, &str) -> bool) -> bool {
        let pattern = if self.is_path { path::pattern(&rule.pattern) } else { &rule.pattern };
        let home = (pattern.contains("$HOME") || pattern.contains("${HOME}"))
            .then(|| pattern.replace("${HOME}", "~").replace("$HOME", "~"));
        self.forms.iter().filter(|form| form.is_compared_with(layer, rule)).any(|form| {
            fits(pattern, &form.text) || home.as_ref().is_some_and(|pattern| fits(pattern, &form.text))
        })
    }
}

/// The subjects of a call, and the analysis of its script if it has one.
pub(crate) fn subjects_of<'a>(
    root: &str,
    call: &ProposedCall<'a>,
) -> (Vec<Subject<'a>>, Option<ScriptAnalysis>) {
    // A call without the argument fails anyway.
    const UNKNOWN: &str = "\0";
    let tool = call.tool;
    let path = |path: &str| Subject::path(&tool.permission, Some(&tool.name), root, path);
    let subject = match (tool.subject)(call.arguments) {
        CallSubject::Path(written) => path(written.unwrap_or(UNKNOWN)),
        CallSubject::Search { path: directory, filter } => {
            let mut subject = path(directory);
            // The filter may name a path as well. Rules can deny it, but not allow it: it only narrows the search.
            if let Some(filter) = filter.filter(|filter| !filter.starts_with('!')) {
                let forms = path::forms(root, &format!("{directory}/{filter}")).into_iter();
                subject.forms.extend(forms.map(|text| MatchText {
                    text,
                    allow: AllowMatch::Never,
                    applies_to: MatchedRules::All,
                }));
            }
            subject
        }
        CallSubject::Script { script, .. } => {
            let script = shell::analyze(script.unwrap_or(UNKNOWN));
            return (subjects_of_script(tool, root, &script), Some(script));
        }
        CallSubject::Text { text, similar } => Subject::text(tool, text.unwrap_or(UNKNOWN), similar),
        CallSubject::WholeCall => Subject::whole(tool, "*"),
        CallSubject::Unknown => Subject::whole(tool, UNKNOWN),
    };
    (vec![subject], None)
}

fn subjects_of_script<'a>(tool: &'a ToolDescriptor, root: &str, script: &ScriptAnalysis) -> Vec<Subject<'a>> {
    let permission = &*tool.permission;
    let mut subjects = Vec::new();
    for command in &script.commands {
        let naming = |bytes| match command.executes {
            Some(_) => AllowMatch::Naming(bytes),
            None => AllowMatch::ByPattern,
        };
        let form = |text, allow| MatchText { text, allow, applies_to: MatchedRules::Other };
        let bytes = command.named(|word| &word.text);
        let mut forms = vec![form(command.text.clone(), naming(bytes))];
        if command.raw != command.text {
            let bytes = command.named(|word| &word.raw);
            let allow = if command.words.is_empty() { AllowMatch::Exact } else { naming(bytes) };
            forms.push(form(command.raw.clone(), allow));
        }
        forms.extend(command.alternative_texts().into_iter().map(|AlternativeText { text, same, named }| {
            form(text, if same { naming(named) } else { AllowMatch::Never })
        }));
        // The built-in rules match paths, which are whole words.
        forms.push(MatchText {
            applies_to: MatchedRules::BuiltIn,
            ..MatchText::from(command.text_for_paths())
        });
        let mut subject = Subject::new(permission, Some(&tool.name), command.raw.clone(), forms);
        subject.unknown = command.unknown;
        let only = always_rules::exact(permission, &command.raw).filter(|_| command.is_self_contained());
        subject.executes = command.executes.map(|executes| executes.why);
        let similar = always_rules::similar(permission, command).filter(|rule| names(&rule.pattern, bytes));
        subject.always = [similar, only];
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
                    subject.always = [None, always_rules::exact(permission, &target.raw)];
                }
                subjects.push(subject);
            }
        }
    }
    subjects
}
