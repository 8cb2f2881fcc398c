//! What a session's agents may do, as flags.
//!
//! The order of `--allow`, `--ask` and `--deny` counts, because the last rule that fits decides. A derived parser cannot express
//! that: the order across options is only in clap's indices.

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, builder::PossibleValuesParser};
use remuda_domain::permission::{PermissionAction, PermissionMode, Unattended};
use remuda_proto::v1;

const HEADING: &str = "Permissions";

/// The names of the flags, for groups of arguments.
pub(super) const FLAGS: [&str; 6] = ["mode", "allow", "ask", "deny", "unattended", "approver"];

/// What was said about permissions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PermissionArgs {
    said: v1::Permissions,
}

impl PermissionArgs {
    /// What to ask for; nothing when no flag was given.
    pub(super) fn into_request(self) -> Option<v1::Permissions> {
        (self.said != v1::Permissions::default()).then_some(self.said)
    }

    /// What a session has, changed by what was said: rules are added after those that are there.
    pub(super) fn change(self, before: v1::Permissions, without_rules: bool) -> v1::Permissions {
        let Self { said } = self;
        let or = |said: String, before: String| if said.is_empty() { before } else { said };
        let mut rules = if without_rules { Vec::new() } else { before.rules };
        rules.extend(said.rules);
        v1::Permissions {
            mode: or(said.mode, before.mode),
            rules,
            unattended: or(said.unattended, before.unattended),
            approvers: if said.approvers.is_empty() { before.approvers } else { said.approvers },
        }
    }
}

/// Reads `bash:rm *`, or `bash` for all of it.
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
        return Err(format!("{permission:?} is no permission: did you mean \"bash:{text}\"?"));
    }
    Ok(v1::PermissionRule {
        permission: permission.to_owned(),
        pattern: pattern.to_owned(),
        action: action.as_str().to_owned(),
    })
}

impl clap::Args for PermissionArgs {
    fn augment_args(command: Command) -> Command {
        let ruled = |name: &'static str, action: PermissionAction, help: &'static str| {
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
                    .help("How far agents go without asking")
                    .long_help(
                        "How far agents go without asking: default (as the rules say), plan (nothing is changed, they only \
                         look) or full_auto (what would be asked is allowed, unless an operator locked the question; what is denied, or may be, stays denied). \
                         The agent's own mode when missing",
                    ),
            )
            .arg(
                ruled("allow", PermissionAction::Allow, "Allow this without asking; may be repeated").long_help(
                    "Allow this without asking: --allow edit, --allow \"bash:git *\", --allow \"webfetch:https://docs.rs/*\". \
                     May be repeated. The rules of --allow, --ask and --deny come after those of the platform, the \
                     tenant, the workspace and the agent, in the order in which they are written; the last one that fits \
                     decides. What an operator has locked stays as it is",
                ),
            )
            .arg(ruled("ask", PermissionAction::Ask, "Ask a person about this; may be repeated"))
            .arg(ruled("deny", PermissionAction::Deny, "Do not allow this; may be repeated"))
            .arg(
                Arg::new("unattended")
                    .long("unattended")
                    .value_name("POLICY")
                    .value_parser(PossibleValuesParser::new(Unattended::ALL.map(Unattended::as_str)))
                    .num_args(0..=1)
                    .default_missing_value(Unattended::Refuse.as_str())
                    .require_equals(true)
                    .help_heading(HEADING)
                    .help("What becomes of calls that should be asked about while nobody is there")
                    .long_help(
                        "What becomes of calls that should be asked about while nobody is there to answer: =wait (the run \
                         waits as data and holds no worker), =refuse (the model is told so and goes on; also what \
                         --unattended alone means) or =fail (the run fails). The platform's choice when missing",
                    ),
            )
            .arg(
                Arg::new("approver")
                    .long("approver")
                    .value_name("KEY_NAME")
                    .action(ArgAction::Append)
                    .help_heading(HEADING)
                    .help("Only the API key of this name may decide; may be repeated"),
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
        let said = v1::Permissions {
            mode: text("mode"),
            rules: rules.into_iter().map(|(_, rule)| rule).collect(),
            unattended: text("unattended"),
            approvers: matches.get_many::<String>("approver").into_iter().flatten().cloned().collect(),
        };
        Ok(Self { said })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// `deny bash rm *`, for people.
pub(super) fn rule_words(rule: &v1::PermissionRule) -> String {
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

    fn words(permissions: &v1::Permissions) -> Vec<String> {
        permissions.rules.iter().map(rule_words).collect()
    }

    #[test]
    fn rules_keep_the_order_in_which_they_were_written() {
        let said = parse(&[
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
        assert_eq!(words(&said), expected);
        assert_eq!((said.mode.as_str(), said.unattended.as_str()), ("plan", "refuse"));
        assert_eq!(said.approvers, ["anna", "ben"]);
        assert_eq!(parse(&["--unattended=fail"]).unwrap().unattended, "fail");
        assert_eq!(parse(&[]).unwrap(), v1::Permissions::default());
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in ["", ":", "bash:", ":rm *", " ", "rm -rf /", "git push:x"] {
            assert!(parse(&["--deny", text]).is_err(), "{text}");
        }
        assert!(parse(&["--mode", "yolo"]).is_err());
        assert!(parse(&["--unattended=maybe"]).is_err());
    }

    #[test]
    fn a_change_keeps_what_is_not_said() {
        let args =
            |arguments: &[&str]| Line::try_parse_from([&["x"], arguments].concat()).unwrap().permissions;
        let before = parse(&["--mode", "plan", "--deny", "bash", "--approver", "anna"]).unwrap();
        let after = args(&["--allow", "bash:ls *"]).change(before.clone(), false);
        assert_eq!(words(&after), ["deny bash *", "allow bash ls *"]);
        assert_eq!((after.mode.as_str(), after.approvers.len()), ("plan", 1));
        let after = args(&["--mode", "full_auto"]).change(before, true);
        assert_eq!((words(&after).len(), after.mode.as_str()), (0, "full_auto"));
    }
}
