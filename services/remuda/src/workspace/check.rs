//! `remuda workspace check`: checks the definitions of a workspace.

use std::{path::Path, process::ExitCode};

use remuda_config::Config;
use remuda_domain::{Code, error::Result, model::ProviderKind};
use remuda_workspace::{Definitions, Problem, Severity};
use serde_json::json;

use super::{load, resolve::model_of};
use crate::output::{Output, Style, counted, one_line};

pub(super) async fn check(dir: &Path, config: &Config, output: Output) -> Result<ExitCode> {
    let (root, current) = load(dir, config).await?;
    let definitions = &current.definitions;
    let problems = problems(definitions, &root, config).await;
    problems.iter().for_each(|problem| print_problem(problem, output));
    let count = |severity| problems.iter().filter(|problem| problem.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    print_summary(definitions, errors, warnings, output);
    Ok(if errors > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// All problems of the definitions, sorted by location.
pub(crate) async fn problems(definitions: &Definitions, root: &Path, config: &Config) -> Vec<Problem> {
    let mut problems = definitions.problems.clone();
    check_models(definitions, config, &mut problems);
    check_scenarios(definitions, root, &mut problems).await;
    problems.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    problems.dedup();
    problems
}

/// Checks the models of all agents. An unknown model is an error. No model is only a warning, because sessions can choose one.
fn check_models(definitions: &Definitions, config: &Config, problems: &mut Vec<Problem>) {
    let mut agents_without_model = Vec::new();
    for agent in definitions.agents.values() {
        let Err(error) = model_of(definitions, agent, config) else { continue };
        if error.code() == Code::MissingModel {
            agents_without_model.push(agent.name.as_str());
            continue;
        }
        let concerns_model = |problem: &&mut Problem| {
            problem.subject.as_deref() == Some(agent.name.as_str()) && problem.message.starts_with("model")
        };
        match problems.iter_mut().find(concerns_model) {
            Some(problem) => problem.severity = Severity::Error,
            None => problems.push(Problem {
                file: agent.origin.file.clone().unwrap_or_else(|| "platform.default_model".to_owned()),
                line: 0,
                column: 0,
                subject: Some(agent.name.clone()),
                message: format!("the agent {} has no model: {}", agent.name, error.message()),
                severity: Severity::Error,
            }),
        }
    }
    if !agents_without_model.is_empty() {
        let why =
            if definitions.models.is_empty() { "there are no models" } else { "no default model is set" };
        problems.push(Problem {
            file: ".openharness/models".to_owned(),
            line: 0,
            column: 0,
            subject: None,
            message: format!(
                "no model for {}: {why}; describe a model here, set platform.default_model, or choose a model for the session",
                agents_without_model.join(", ")
            ),
            severity: Severity::Warning,
        });
    }
}

/// Checks the scenario files of scripted models.
async fn check_scenarios(definitions: &Definitions, root: &Path, problems: &mut Vec<Problem>) {
    for model in definitions.models.values().filter(|model| model.provider == ProviderKind::Scripted) {
        let Err(error) = remuda_models::check_scenario(Path::new(&model.name)).await else { continue };
        let path = Path::new(&model.name);
        let file = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let (line, message) = split_location(error.message(), &model.name);
        problems.push(Problem {
            file,
            line,
            column: 0,
            subject: Some(model.reference.to_string()),
            message,
            severity: Severity::Error,
        });
    }
}

/// Splits the prefix `file:line: ` off a message.
fn split_location(message: &str, file: &str) -> (usize, String) {
    let rest = message.strip_prefix(file).and_then(|rest| rest.strip_prefix(':'));
    let Some(rest) = rest else { return (0, message.to_owned()) };
    match rest.split_once(':') {
        Some((line, what)) if line.parse::<usize>().is_ok() => {
            (line.parse().unwrap_or(0), what.trim_start().to_owned())
        }
        _ => (0, rest.trim_start().to_owned()),
    }
}

fn severity(problem: &Problem) -> &'static str {
    match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn print_problem(problem: &Problem, output: Output) {
    if output.json {
        return output.json_line(&json!({
            "file": problem.file,
            "line": problem.line,
            "column": problem.column,
            "severity": severity(problem),
            "subject": problem.subject,
            "message": problem.message,
        }));
    }
    let sink = output.out;
    let style = match problem.severity {
        Severity::Error => Style::Bad,
        Severity::Warning => Style::Warn,
    };
    sink.line(&format!(
        "{}: {}: {}",
        sink.paint(Style::Bold, &one_line(&location(problem))),
        sink.paint(style, severity(problem)),
        one_line(&problem.message)
    ));
}

/// `file:line:column`, as far as known.
pub(crate) fn location(problem: &Problem) -> String {
    match (problem.line, problem.column) {
        (0, _) => problem.file.clone(),
        (line, 0) => format!("{}:{line}", problem.file),
        (line, column) => format!("{}:{line}:{column}", problem.file),
    }
}

fn print_summary(definitions: &Definitions, errors: usize, warnings: usize, output: Output) {
    let Definitions { agents, models, skills, .. } = definitions;
    if output.json {
        return output.json_line(&json!({
            "errors": errors,
            "warnings": warnings,
            "agents": agents.len(),
            "models": models.len(),
            "skills": skills.len(),
        }));
    }
    let sink = output.out;
    let mark = match (errors, warnings) {
        (0, 0) => sink.paint(Style::Good, "✓"),
        (0, _) => sink.paint(Style::Warn, "✓"),
        _ => sink.paint(Style::Bad, "✗"),
    };
    sink.line(&format!(
        "{mark} {}, {}; {}, {} and {} can be used",
        counted(errors, "error"),
        counted(warnings, "warning"),
        counted(agents.len(), "agent"),
        counted(models.len(), "model"),
        counted(skills.len(), "skill"),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_contains_known_line_and_column() {
        let problem = |line, column| Problem {
            file: "a.md".into(),
            line,
            column,
            subject: None,
            message: "m".into(),
            severity: Severity::Error,
        };
        assert_eq!(location(&problem(0, 0)), "a.md");
        assert_eq!(location(&problem(3, 0)), "a.md:3");
        assert_eq!(location(&problem(3, 7)), "a.md:3:7");
    }

    #[test]
    fn line_is_split_off_scenario_errors() {
        assert_eq!(
            split_location("/w/s.yaml:3: expected turns", "/w/s.yaml"),
            (3, "expected turns".to_owned())
        );
        assert_eq!(split_location("/w/s.yaml: cannot", "/w/s.yaml"), (0, "cannot".to_owned()));
        assert_eq!(split_location("cannot read it", "/w/s.yaml"), (0, "cannot read it".to_owned()));
    }
}
