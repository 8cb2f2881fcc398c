//! Prints the report of a dry run as text or JSON.

use remuda_domain::{budget::Limit, execution::ExecutionPolicy, money::dollars};
use serde_json::{Value, json};

use super::report::{Execution, ModelReport, ModelTest, Problem, Prompt, Report};
use crate::{
    models,
    output::{Output, Sink, Style, count, counted, elapsed, one_line},
};

pub(super) fn print(report: &Report, output: Output) {
    if output.json {
        return output.json_line(&to_json(report));
    }
    let sink = output.out;
    report
        .notes
        .iter()
        .for_each(|note| output.note(&format!("{} {}", output.err.paint(Style::Warn, "●"), one_line(note))));
    let field = |name: &str, value: &str| field(sink, name, value);
    field("workspace", &format!("{} (version {})", report.root.display(), report.version));
    if let Some(agent) = &report.agent {
        field("agent", &format!("{}: {}", agent.value.name, agent.reason));
    }
    if let Some(model) = &report.model {
        field("model", &model_text(model));
        field("", &test_text(&model.test));
    }
    match &report.execution {
        Some(Execution::Backend(policy)) => field("executes", &execution_text(policy)),
        Some(Execution::Disabled(why)) => field("executes", &format!("nothing: {why}")),
        None => {}
    }
    print_tools(report, sink);
    print_rules(report, sink);
    field("switches to", &report.switches.join(" "));
    field("delegates to", &report.delegates.join(" "));
    field("skills", &report.skills.join(" "));
    field("memory", report.memory.as_deref().unwrap_or("off"));
    if let Some(prompt) = &report.prompt {
        field("prompt", &prompt_text(prompt, report.model.as_ref().map(|model| model.window)));
        let parts: Vec<String> =
            prompt.segments.iter().map(|(name, bytes)| format!("{name} {bytes}")).collect();
        field("", &parts.join(", "));
    }
    field("budget", &budget_text(report));
    print_problems(&report.problems, sink);
    sink.line("");
    sink.line(&verdict(report, sink));
}

fn field(sink: Sink, name: &str, value: &str) {
    if !value.is_empty() {
        sink.line(&format!("{} {}", sink.paint(Style::Dim, &format!("{name:12}")), one_line(value)));
    }
}

fn model_text(model_report: &ModelReport) -> String {
    let model = &model_report.model;
    let price = if model.price.is_some() { models::price(model) } else { "no price".to_owned() };
    format!(
        "{} ({} {}): {}; window {}, {price}",
        model.reference,
        model.provider.as_str(),
        model.name,
        model_report.reason,
        count(model_report.window)
    )
}

fn test_text(test: &ModelTest) -> String {
    match test {
        ModelTest::Passed(took) => format!("test passed: it answers within {}", elapsed(*took)),
        ModelTest::Failed => "test failed: it does not answer".to_owned(),
        ModelTest::Skipped => "not tested".to_owned(),
    }
}

fn execution_text(policy: &ExecutionPolicy) -> String {
    let mut text = policy.backend.as_str().to_owned();
    if let Some(image) = &policy.image {
        text.push_str(&format!(
            ", image {image}, network {}, workspace by {}",
            policy.network,
            policy.workspace.as_str()
        ));
    }
    text
}

fn print_tools(report: &Report, sink: Sink) {
    let tools = &report.tools;
    let offered = if tools.offered.is_empty() { "none".to_owned() } else { tools.offered.join(" ") };
    field(sink, "tools", &offered);
    if !tools.hidden.is_empty() {
        field(sink, "", &format!("hidden by rules: {}", tools.hidden.join(" ")));
    }
    if !tools.disallowed.is_empty() {
        field(sink, "", &format!("not available to this agent: {}", tools.disallowed.join(" ")));
    }
}

fn print_rules(report: &Report, sink: Sink) {
    let Some(rules) = &report.rules else { return };
    field(sink, "permissions", &format!("mode {}, set by {}", rules.mode.as_str(), rules.mode_of));
    let who = if rules.approvers.is_empty() {
        "any key with the scope approve".to_owned()
    } else {
        rules.approvers.join(", ")
    };
    field(
        sink,
        "",
        &format!("approval requests {}; {who} may decide", unattended(rules.unattended.as_str())),
    );
    let mut layer = "";
    for (source, text) in rules.to_text() {
        let name = if source == layer { String::new() } else { format!("{source}:") };
        layer = source;
        // The built-in rules are many and the same everywhere.
        if source == "default" {
            continue;
        }
        field(sink, " ", &format!("{name:10} {text}"));
    }
}

fn unattended(policy: &str) -> &'static str {
    match policy {
        "refuse" => "are refused",
        "fail" => "fail the run",
        _ => "wait for a person",
    }
}

fn prompt_text(prompt: &Prompt, window: Option<u64>) -> String {
    let bytes = prompt.system_bytes + prompt.tools_bytes + prompt.message_bytes;
    let mut text = format!(
        "{bytes} bytes (system {}, tools {}, message {}), about {} tokens",
        prompt.system_bytes,
        prompt.tools_bytes,
        prompt.message_bytes,
        count(prompt.tokens)
    );
    if let Some(window) = window.filter(|window| *window > 0) {
        text.push_str(&format!(
            ", {}% of the context window",
            prompt.tokens.saturating_mul(100).div_ceil(window)
        ));
    }
    text
}

fn budget_text(report: &Report) -> String {
    let budget = &report.budget;
    let mut text = match limit_text(budget.limit) {
        Some(limit) => format!("{limit}, {}", budget.source),
        None => "no limit".to_owned(),
    };
    if let Some(session) = budget.session
        && let Some(limit) = limit_text(session.limit)
    {
        let spent = Limit {
            tokens: Some(session.spent.tokens),
            micros: session.limit.micros.map(|_| session.spent.micros),
        };
        let spent = limit_text(spent).unwrap_or_default();
        text.push_str(&format!("; the session has {limit} and has spent {spent}"));
    }
    if let Some((amount, priced)) = budget.first_call {
        text.push_str(&format!("; the first model call may take {} tokens", count(amount.tokens)));
        if priced {
            text.push_str(&format!(" and {}", dollars(amount.micros)));
        }
    }
    text
}

fn limit_text(limit: Limit) -> Option<String> {
    let tokens = limit.tokens.map(|tokens| format!("{} tokens", count(tokens)));
    let parts: Vec<String> = tokens.into_iter().chain(limit.micros.map(dollars)).collect();
    (!parts.is_empty()).then(|| parts.join(" and "))
}

fn print_problems(problems: &[Problem], sink: Sink) {
    if !problems.is_empty() {
        sink.line("");
    }
    for problem in problems {
        let mark = if problem.blocks { sink.paint(Style::Bad, "✗") } else { sink.paint(Style::Warn, "!") };
        sink.line(&format!("{mark} {}", one_line(&problem.message)));
        if !problem.fix.is_empty() {
            sink.line(&format!("  {} {}", sink.paint(Style::Accent, "fix:"), one_line(&problem.fix)));
        }
    }
}

fn verdict(report: &Report, sink: Sink) -> String {
    let blocking = report.problems.iter().filter(|problem| problem.blocks).count();
    if blocking == 0 {
        return format!("{} the run would work; nothing was executed", sink.paint(Style::Good, "✓"));
    }
    let verb = if blocking == 1 { "blocks" } else { "block" };
    format!(
        "{} the run would not work: {} {verb} it",
        sink.paint(Style::Bad, "✗"),
        counted(blocking, "problem")
    )
}

fn to_json(report: &Report) -> Value {
    let model = report.model.as_ref().map(|model_report| {
        let mut model = models::to_json(&model_report.model);
        model["why"] = model_report.reason.into();
        model["window"] = model_report.window.into();
        (model["answers"], model["answered_in_ms"]) = match model_report.test {
            ModelTest::Passed(took) => {
                (true.into(), u64::try_from(took.as_millis()).unwrap_or(u64::MAX).into())
            }
            ModelTest::Failed => (false.into(), Value::Null),
            ModelTest::Skipped => (Value::Null, Value::Null),
        };
        model
    });
    let execution = match &report.execution {
        Some(Execution::Backend(policy)) => json!({
            "backend": policy.backend.as_str(),
            "image": policy.image,
            "network": policy.network,
            "workspace_access": policy.workspace.as_str(),
        }),
        Some(Execution::Disabled(why)) => json!({ "backend": "none", "why": why }),
        None => Value::Null,
    };
    let prompt = report.prompt.as_ref().map(|prompt| {
        let segments = prompt.segments.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes }));
        json!({
            "segments": segments.collect::<Vec<_>>(),
            "system_bytes": prompt.system_bytes,
            "tools_bytes": prompt.tools_bytes,
            "message_bytes": prompt.message_bytes,
            "estimated_tokens": prompt.tokens,
        })
    });
    let problem = |problem: &Problem| json!({ "blocks": problem.blocks, "message": problem.message, "mend": problem.fix });
    json!({
        "would_run": report.would_run(),
        "workspace": report.root,
        "version": report.version,
        "notes": report.notes,
        "agent": report.agent.as_ref().map(|agent| json!({ "name": agent.value.name, "why": agent.reason })),
        "model": model,
        "execution": execution,
        "tools": {
            "offered": report.tools.offered,
            "hidden": report.tools.hidden,
            "disallowed": report.tools.disallowed,
        },
        "permissions": report.rules.as_ref().map(|rules| rules.to_json()),
        "switches_to": report.switches,
        "delegates_to": report.delegates,
        "skills": report.skills,
        "memory": report.memory,
        "prompt": prompt,
        "budget": {
            "limit": report.budget.limit,
            "of": report.budget.source,
            "session": report.budget.session,
            "first_question": report.budget.first_call.map(|(amount, priced)| json!({
                "tokens": amount.tokens,
                "micros": priced.then_some(amount.micros),
            })),
        },
        "problems": report.problems.iter().map(problem).collect::<Vec<_>>(),
    })
}
