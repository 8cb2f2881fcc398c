//! Decides about a tool call.

use remuda_domain::permission::{PermissionAction, PermissionMode, PermissionRule};

use crate::{
    layer::Layer,
    permission_names::opencode_key,
    plan_mode,
    ruleset::Ruleset,
    subject::{self, Subject},
    verdict::{Ask, Denial, ProposedCall, Verdict},
    wildcard::fits,
};

const MAX_PATTERNS: usize = 50;
const MAX_SHOWN_CHARS: usize = 300;

/// The decision about one subject, with the rule that decided.
#[derive(Clone, Copy, Debug)]
struct Finding<'a> {
    action: PermissionAction,
    rule: Option<(Layer, &'a PermissionRule)>,
    /// The rule may match, but that is not certain.
    doubtful: bool,
    /// The last rule that allows the program, but not what it executes.
    passed_over: Option<&'a PermissionRule>,
}

pub(crate) fn judge(rules: &Ruleset, mode: PermissionMode, root: &str, call: &ProposedCall<'_>) -> Verdict {
    let (subjects, script) = subject::subjects_of(root, call);
    if mode == PermissionMode::Plan
        && let Some((pattern, why)) = plan_mode::forbids(call, script.as_ref())
    {
        let pattern = shortened(&pattern);
        return Verdict::Deny(Denial { permission: call.tool.permission.clone().into_owned(), pattern, why });
    }
    let findings: Vec<_> = subjects.iter().map(|subject| (subject, decide(rules, mode, subject))).collect();
    if let Some((subject, finding)) = findings.iter().find(|(_, it)| it.action == PermissionAction::Deny) {
        return Verdict::Deny(Denial {
            permission: subject.permission.to_owned(),
            pattern: shortened(&subject.shown),
            why: why(subject, finding),
        });
    }
    let asked: Vec<_> = findings.iter().filter(|(_, it)| it.action == PermissionAction::Ask).collect();
    let Some((first, finding)) = asked.first() else { return Verdict::Allow };
    let mut patterns: Vec<String> = Vec::new();
    for (subject, _) in &asked {
        let shown = shortened(&subject.shown);
        if patterns.len() < MAX_PATTERNS && !patterns.contains(&shown) {
            patterns.push(shown);
        }
    }
    let permission = call.tool.permission.clone().into_owned();
    let always = always(rules, mode, &asked, &subjects);
    Verdict::Ask(Ask { permission, patterns, always, why: why(first, finding) })
}

/// The strictest of two decisions: by all rules, and by the locked rules alone.
fn decide<'a>(rules: &'a Ruleset, mode: PermissionMode, subject: &Subject<'_>) -> Finding<'a> {
    let nothing = Finding { action: PermissionAction::Ask, rule: None, doubtful: false, passed_over: None };
    let mut lists = rules.rule_lists();
    let whole = lists.next().and_then(|all| last_match(all, subject)).unwrap_or(nothing);
    let whole = if mode == PermissionMode::FullAuto { without_asking(whole) } else { whole };
    let locked = lists.filter_map(|locked| last_match(locked, subject)).map(|finding| match mode {
        // A mode does not relax locked rules either.
        PermissionMode::FullAuto if !may_be_denied(&finding) => finding,
        PermissionMode::FullAuto => without_asking(finding),
        PermissionMode::Default | PermissionMode::Plan => finding,
    });
    locked.fold(whole, |strictest, next| if next.action > strictest.action { next } else { strictest })
}

/// Whether a rule that denies may match.
fn may_be_denied(finding: &Finding<'_>) -> bool {
    finding.doubtful && finding.rule.is_some_and(|(_, rule)| rule.action == PermissionAction::Deny)
}

/// The finding in a mode that does not ask: allowed, unless a rule that denies may match.
fn without_asking<'a>(finding: Finding<'a>) -> Finding<'a> {
    let action = match finding.action {
        PermissionAction::Ask if may_be_denied(&finding) => PermissionAction::Deny,
        PermissionAction::Ask => PermissionAction::Allow,
        action => action,
    };
    Finding { action, ..finding }
}

fn last_match<'a>(
    rules: impl DoubleEndedIterator<Item = (Layer, &'a PermissionRule)>,
    subject: &Subject<'_>,
) -> Option<Finding<'a>> {
    let mut doubt: Option<(Layer, &PermissionRule)> = None;
    let mut passed_over: Option<&PermissionRule> = None;
    let finding =
        |action, rule, doubtful, passed_over| Finding { action, rule: Some(rule), doubtful, passed_over };
    for (layer, rule) in rules.rev().filter(|(_, rule)| concerns(rule, subject.permission, subject.tool)) {
        if subject.fits(layer, rule) {
            let stricter = doubt.filter(|(_, doubt)| doubt.action > rule.action);
            return Some(match stricter {
                Some(doubt) => finding(PermissionAction::Ask, doubt, true, passed_over),
                None => finding(rule.action, (layer, rule), false, passed_over),
            });
        }
        if passed_over.is_none() && subject.lacks_name(layer, rule) {
            passed_over = Some(rule);
        }
        // Built-in rules only apply to certain matches.
        let counts = layer != Layer::Default
            && rule.action > doubt.map_or(PermissionAction::Allow, |(_, doubt)| doubt.action);
        if counts && subject.may_fit(layer, rule) {
            doubt = Some((layer, rule));
        }
    }
    doubt.map(|doubt| finding(PermissionAction::Ask, doubt, true, passed_over))
}

/// Whether a rule names this permission or this tool.
pub(crate) fn concerns(rule: &PermissionRule, permission: &str, tool: Option<&str>) -> bool {
    fits(opencode_key(&rule.permission), permission) || tool.is_some_and(|tool| fits(&rule.permission, tool))
}

/// The session rules that would allow the call; empty if session rules cannot.
fn always(
    rules: &Ruleset,
    mode: PermissionMode,
    asked: &[&(&Subject<'_>, Finding<'_>)],
    subjects: &[Subject<'_>],
) -> Vec<PermissionRule> {
    let mut offered: Vec<PermissionRule> = Vec::new();
    for (subject, finding) in asked {
        let [like, only] = &subject.always;
        // Allowing one credential or one uncertain command must not allow similar ones.
        let careful = finding.doubtful || finding.rule.is_some_and(|(layer, _)| layer == Layer::Default);
        let rule = if careful { only.as_ref() } else { like.as_ref().or(only.as_ref()) };
        match rule {
            Some(rule) if offered.contains(rule) => {}
            Some(rule) if offered.len() < MAX_PATTERNS => offered.push(rule.clone()),
            _ => return Vec::new(),
        }
    }
    let then = rules.clone().with(Layer::Session, offered.iter().cloned());
    let suffices =
        subjects.iter().all(|subject| decide(&then, mode, subject).action == PermissionAction::Allow);
    if suffices { offered } else { Vec::new() }
}

fn why(subject: &Subject<'_>, finding: &Finding<'_>) -> String {
    let reason = reason(subject, finding);
    match (finding.passed_over, subject.executes) {
        (Some(rule), Some(executes)) => {
            let (pattern, shown) = (shortened(&rule.pattern), shortened(&subject.shown));
            format!("{reason}; `{pattern}` does not allow `{shown}`: {executes}")
        }
        _ => reason,
    }
}

fn reason(subject: &Subject<'_>, finding: &Finding<'_>) -> String {
    let Some((layer, rule)) = finding.rule else {
        return format!("no rule matches {} `{}`", subject.permission, shortened(&subject.shown));
    };
    let who = if layer == Layer::Default { "defaults" } else { layer.as_str() };
    let verb = match (rule.action, layer == Layer::Default) {
        (PermissionAction::Deny, false) => "denies",
        (PermissionAction::Deny, true) => "deny",
        (PermissionAction::Ask, false) => "asks about",
        (PermissionAction::Ask, true) => "ask about",
        (PermissionAction::Allow, false) => "allows",
        (PermissionAction::Allow, true) => "allow",
    };
    let says = format!("the {who} {verb} {} `{}`", rule.permission, shortened(&rule.pattern));
    match (finding.doubtful, subject.unknown) {
        (false, _) => says,
        (true, Some(reason)) => format!("{says}, and `{}` may match: {reason}", shortened(&subject.shown)),
        (true, None) => format!("{says}, and `{}` may match at run time", shortened(&subject.shown)),
    }
}

fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_SHOWN_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short.replace('\0', "…")
}
