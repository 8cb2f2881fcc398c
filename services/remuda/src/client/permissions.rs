//! Flags for the permissions of a session.
//!
//! The order of `--allow`, `--ask` and `--deny` matters, because the last matching rule decides. A derived parser cannot express
//! that: the order across options is only in clap's indices.

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, builder::PossibleValuesParser};
use remuda_domain::permission::{PermissionAction, PermissionMode, Unattended};
use remuda_proto::v1;

const HEADING: &str = "Permissions";

/// The names of the flags, for groups of arguments.
pub(super) const FLAGS: [&str; 6] = ["mode", "allow", "ask", "deny", "unattended", "approver"];

/// The permission flags of the command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PermissionArgs {
    permissions: v1::Permissions,
}

impl PermissionArgs {
    /// The permissions to request; `None` if no flag was given.
    pub(super) fn into_request(self) -> Option<v1::Permissions> {
        (self.permissions != v1::Permissions::default()).then_some(self.permissions)
    }

    /// The session's permissions with these flags applied. New rules are added after the existing ones.
    pub(super) fn apply_to(self, before: v1::Permissions, clear_rules: bool) -> v1::Permissions {
        let Self { permissions } = self;
        let or = |new: String, before: String| if new.is_empty() { before } else { new };
        let mut rules = if clear_rules { Vec::new() } else { before.rules };
        rules.extend(permissions.rules);
        v1::Permissions {
            mode: or(permissions.mode, before.mode),
            rules,
            unattended: or(permissions.unattended, before.unattended),
            approvers: if permissions.approvers.is_empty() {
                before.approvers
            } else {
                permissions.approvers
            },
        }
    }
}

/// Parses `bash:rm *`, or `bash` for every pattern.
fn rule(action: PermissionAction, text: &str) -> Result<v1::PermissionRule, String> {
    let (permission, pattern) = match text.split_once(':') {
        Some((permission, pattern)) => (permission.trim(), pattern.trim()),
        None => (text.trim(), "*"),
    };
    if permission.is_empty() || pattern.is_empty() {
        return Err(
            "expected PERMISSION or PERMISSION:PATTERN, such as edit or \"bash:git push *\"".to_owned()
        );
    }
    if permission.contains(char::is_whitespace) {
        return Err(format!("{permission:?} is not a permission: did you mean \"bash:{text}\"?"));
    }
    Ok(v1::PermissionRule {
        permission: permission.to_owned(),
        pattern: pattern.to_owned(),
        action: action.as_str().to_owned(),
    })
}

impl clap::Args for PermissionArgs {
    fn augment_args(command: Command) -> Command {
        let rule_flag = |name: &'static str, action: PermissionAction, help: &'static str| {
            Arg::new(name)
                .long(name)
                .value_name("PERMISSION[:PATTERN]")
                .action(ArgAction::Append)
                .value_parser(move |text: &str| rule(action, text))
                .help_heading(HEADING)
                .help(help)
        };
        command
            .arg(
                Arg::new("mode")
                    .long("mode")
                    .value_name("MODE")
                    .value_parser(PossibleValuesParser::new(PermissionMode::ALL.map(PermissionMode::as_str)))
                    .help_heading(HEADING)
                    .help("What agents may do without approval")
                    .long_help(
                        "What agents may do without approval: default (the rules decide), plan (read only, nothing is changed) or \
                         full_auto (calls that need approval are allowed, unless the operator locked the rule; denied calls stay denied). \
                         By default the mode of the agent",
                    ),
            )
            .arg(
                rule_flag("allow", PermissionAction::Allow, "Allow these calls without approval; may be repeated").long_help(
                    "Allow these calls without approval: --allow edit, --allow \"bash:git *\", --allow \"webfetch:https://docs.rs/*\". \
                     May be repeated. The rules of --allow, --ask and --deny come after those of the platform, the \
                     tenant, the workspace and the agent, in the order on the command line. The last matching rule \
                     decides. Rules that the operator locked cannot be changed",
                ),
            )
            .arg(rule_flag("ask", PermissionAction::Ask, "Require approval for these calls; may be repeated"))
            .arg(rule_flag("deny", PermissionAction::Deny, "Deny these calls; may be repeated"))
            .arg(
                Arg::new("unattended")
                    .long("unattended")
                    .value_name("POLICY")
                    .value_parser(PossibleValuesParser::new(Unattended::ALL.map(Unattended::as_str)))
                    .num_args(0..=1)
                    .default_missing_value(Unattended::Refuse.as_str())
                    .require_equals(true)
                    .help_heading(HEADING)
                    .help("What to do with calls that need approval if nobody is available to decide")
                    .long_help(
                        "What to do with calls that need approval if nobody is available to decide: =wait (the run is parked and occupies \
                         no worker), =refuse (the model is told that the call was refused and continues; also the meaning of \
                         --unattended alone) or =fail (the run fails). By default the setting of the platform",
                    ),
            )
            .arg(
                Arg::new("approver")
                    .long("approver")
                    .value_name("KEY_NAME")
                    .action(ArgAction::Append)
                    .help_heading(HEADING)
                    .help("Only the API key with this name may decide; may be repeated"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for PermissionArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
        let mut rules: Vec<(usize, v1::PermissionRule)> = Vec::new();
        for name in ["allow", "ask", "deny"] {
            let indices = matches.indices_of(name).into_iter().flatten();
            let values = matches.get_many::<v1::PermissionRule>(name).into_iter().flatten();
            rules.extend(indices.zip(values.cloned()));
        }
        rules.sort_by_key(|(index, _)| *index);
        let permissions = v1::Permissions {
            mode: text("mode"),
            rules: rules.into_iter().map(|(_, rule)| rule).collect(),
            unattended: text("unattended"),
            approvers: matches.get_many::<String>("approver").into_iter().flatten().cloned().collect(),
        };
        Ok(Self { permissions })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A rule as text, such as `deny bash rm *`.
pub(super) fn rule_text(rule: &v1::PermissionRule) -> String {
    format!("{} {} {}", rule.action, rule.permission, rule.pattern)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        permissions: PermissionArgs,
        text: Option<String>,
    }

    fn parse(arguments: &[&str]) -> Result<v1::Permissions, clap::Error> {
        let line = Line::try_parse_from([&["x"], arguments].concat())?;
        Ok(line.permissions.into_request().unwrap_or_default())
    }

    fn rule_texts(permissions: &v1::Permissions) -> Vec<String> {
        permissions.rules.iter().map(rule_text).collect()
    }

    #[test]
    fn rules_keep_the_command_line_order() {
        let permissions = parse(&[
            "--deny",
            "bash",
            "--allow",
            "bash:git *",
            "--ask=bash:git push *",
            "--deny",
            "webfetch:https://a/*",
            "--mode",
            "plan",
            "--unattended",
            "text",
            "--approver",
            "anna",
            "--approver",
            "ben",
        ])
        .unwrap();
        let expected =
            ["deny bash *", "allow bash git *", "ask bash git push *", "deny webfetch https://a/*"];
        assert_eq!(rule_texts(&permissions), expected);
        assert_eq!((permissions.mode.as_str(), permissions.unattended.as_str()), ("plan", "refuse"));
        assert_eq!(permissions.approvers, ["anna", "ben"]);
        assert_eq!(parse(&["--unattended=fail"]).unwrap().unattended, "fail");
        assert_eq!(parse(&[]).unwrap(), v1::Permissions::default());
    }

    #[test]
    fn invalid_rules_and_modes_are_rejected() {
        for text in ["", ":", "bash:", ":rm *", " ", "rm -rf /", "git push:x"] {
            assert!(parse(&["--deny", text]).is_err(), "{text}");
        }
        assert!(parse(&["--mode", "yolo"]).is_err());
        assert!(parse(&["--unattended=maybe"]).is_err());
    }

    #[test]
    fn settings_without_a_flag_are_kept() {
        let args =
            |arguments: &[&str]| Line::try_parse_from([&["x"], arguments].concat()).unwrap().permissions;
        let before = parse(&["--mode", "plan", "--deny", "bash", "--approver", "anna"]).unwrap();
        let after = args(&["--allow", "bash:ls *"]).apply_to(before.clone(), false);
        assert_eq!(rule_texts(&after), ["deny bash *", "allow bash ls *"]);
        assert_eq!((after.mode.as_str(), after.approvers.len()), ("plan", 1));
        let after = args(&["--mode", "full_auto"]).apply_to(before, true);
        assert_eq!((rule_texts(&after).len(), after.mode.as_str()), (0, "full_auto"));
    }
}
