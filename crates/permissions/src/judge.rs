//! Deciding about a call.

use remuda_domain::permission::{PermissionAction, PermissionMode, PermissionRule};

use crate::{
    layer::Layer,
    names::{opencode_key, permission_of},
    plan,
    ruleset::Ruleset,
    subject::{self, Subject},
    verdict::{Ask, Asked, Denial, Verdict},
    wildcard::fits,
};

const MAX_PATTERNS: usize = 50;
const MAX_SHOWN_CHARS: usize = 300;

/// Why something is decided as it is.
#[derive(Clone, Copy, Debug)]
struct Finding<'a> {
    action: PermissionAction,
    rule: Option<(Layer, &'a PermissionRule)>,
    /// The rule may fit, and it cannot be told whether it does.
    doubtful: bool,
}

pub(crate) fn judge(rules: &Ruleset, mode: PermissionMode, root: &str, call: &Asked<'_>) -> Verdict {
    let (subjects, script) = subject::of(root, call);
    if mode == PermissionMode::Plan
        && let Some((pattern, why)) = plan::forbids(call, script.as_ref())
    {
        let pattern = shortened(&pattern);
        return Verdict::Deny(Denial { permission: permission_of(call.tool).to_owned(), pattern, why });
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
    let permission = permission_of(call.tool).to_owned();
    let always = always(rules, mode, &asked, &subjects);
    Verdict::Ask(Ask { permission, patterns, always, why: why(first, finding) })
}

/// The strictest of what all rules say and what the locked ones say on their own.
fn decide<'a>(rules: &'a Ruleset, mode: PermissionMode, subject: &Subject<'_>) -> Finding<'a> {
    let nothing = Finding { action: PermissionAction::Ask, rule: None, doubtful: false };
    let mut parts = rules.parts();
    let whole = parts.next().and_then(|all| last_that_fits(all, subject)).unwrap_or(nothing);
    let whole = if mode == PermissionMode::FullAuto { unasked(whole) } else { whole };
    let locked = parts.filter_map(|locked| last_that_fits(locked, subject)).map(|finding| match mode {
        // Nothing makes that milder, and a mode is no exception.
        PermissionMode::FullAuto if !denies_maybe(&finding) => finding,
        PermissionMode::FullAuto => unasked(finding),
        PermissionMode::Default | PermissionMode::Plan => finding,
    });
    locked.fold(whole, |strictest, next| if next.action > strictest.action { next } else { strictest })
}

/// It may be something that a rule denies.
fn denies_maybe(finding: &Finding<'_>) -> bool {
    finding.doubtful && finding.rule.is_some_and(|(_, rule)| rule.action == PermissionAction::Deny)
}

/// What becomes of a finding where nobody is asked: it is allowed, unless it may be denied.
fn unasked<'a>(finding: Finding<'a>) -> Finding<'a> {
    let action = match finding.action {
        PermissionAction::Ask if denies_maybe(&finding) => PermissionAction::Deny,
        PermissionAction::Ask => PermissionAction::Allow,
        action => action,
    };
    Finding { action, ..finding }
}

fn last_that_fits<'a>(
    rules: impl DoubleEndedIterator<Item = (Layer, &'a PermissionRule)>,
    subject: &Subject<'_>,
) -> Option<Finding<'a>> {
    let mut doubt: Option<(Layer, &PermissionRule)> = None;
    let doubtful = |doubt| Finding { action: PermissionAction::Ask, rule: Some(doubt), doubtful: true };
    for (layer, rule) in rules.rev().filter(|(_, rule)| concerns(rule, subject.permission, subject.tool)) {
        if subject.fits(layer, rule) {
            let stricter = doubt.filter(|(_, doubt)| doubt.action > rule.action);
            let certain = Finding { action: rule.action, rule: Some((layer, rule)), doubtful: false };
            return Some(stricter.map_or(certain, doubtful));
        }
        // The built-in rules are about what is named, not about what may be meant.
        let counts = layer != Layer::Default
            && rule.action > doubt.map_or(PermissionAction::Allow, |(_, doubt)| doubt.action);
        if counts && subject.may_fit(layer, rule) {
            doubt = Some((layer, rule));
        }
    }
    doubt.map(doubtful)
}

/// Whether a rule is about a permission, by its name or by that of the tool.
pub(crate) fn concerns(rule: &PermissionRule, permission: &str, tool: Option<&str>) -> bool {
    fits(opencode_key(&rule.permission), permission) || tool.is_some_and(|tool| fits(&rule.permission, tool))
}

/// The rules that would allow what is asked about, if rules of a session can.
fn always(
    rules: &Ruleset,
    mode: PermissionMode,
    asked: &[&(&Subject<'_>, Finding<'_>)],
    subjects: &[Subject<'_>],
) -> Vec<PermissionRule> {
    let mut offered: Vec<PermissionRule> = Vec::new();
    for (subject, finding) in asked {
        let [like, only] = &subject.always;
        // One credential or one doubt should not open the way to all others.
        let careful = finding.doubtful || finding.rule.is_some_and(|(layer, _)| layer == Layer::Default);
        let rule = if careful { only.as_ref() } else { like.as_ref().or(only.as_ref()) };
        match rule {
            Some(rule) if offered.contains(rule) => {}
            Some(rule) if offered.len() < MAX_PATTERNS => offered.push(rule.clone()),
            _ => return Vec::new(),
        }
    }
    let then = rules.clone().with(Layer::Session, offered.iter().cloned());
    let helps = subjects.iter().all(|subject| decide(&then, mode, subject).action == PermissionAction::Allow);
    if helps { offered } else { Vec::new() }
}

fn why(subject: &Subject<'_>, finding: &Finding<'_>) -> String {
    let Some((layer, rule)) = finding.rule else {
        return format!("no rule is about {} `{}`", subject.permission, shortened(&subject.shown));
    };
    let who = if layer == Layer::Default { "defaults" } else { layer.as_str() };
    let does = match (rule.action, layer == Layer::Default) {
        (PermissionAction::Deny, false) => "denies",
        (PermissionAction::Deny, true) => "deny",
        (PermissionAction::Ask, false) => "asks about",
        (PermissionAction::Ask, true) => "ask about",
        (PermissionAction::Allow, false) => "allows",
        (PermissionAction::Allow, true) => "allow",
    };
    let says = format!("the {who} {does} {} `{}`", rule.permission, shortened(&rule.pattern));
    match (finding.doubtful, subject.unknown) {
        (false, _) => says,
        (true, Some(reason)) => format!("{says}, and `{}` may be that: {reason}", shortened(&subject.shown)),
        (true, None) => format!("{says}, and `{}` may become that", shortened(&subject.shown)),
    }
}

fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_SHOWN_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short.replace('\0', "…")
}
