//! A dry run for people and for scripts.

use remuda_domain::{budget::Limit, execution::ExecutionPolicy, money::dollars};
use serde_json::{Value, json};

use super::report::{Answer, Executes, ModelLook, Prompt, Report, Trouble};
use crate::{
    models,
    output::{Output, Sink, Style, count, counted, elapsed, one_line},
};

pub(super) fn tell(report: &Report, output: Output) {
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
        field("agent", &format!("{}: {}", agent.what.name, agent.why));
    }
    if let Some(model) = &report.model {
        field("model", &model_words(model));
        field("", &answer_words(&model.answer));
    }
    match &report.execution {
        Some(Executes::Here(policy)) => field("executes", &execution_words(policy)),
        Some(Executes::Nowhere(why)) => field("executes", &format!("nothing: {why}")),
        None => {}
    }
    tools(report, sink);
    rules(report, sink);
    field("switches to", &report.switches.join(" "));
    field("delegates to", &report.delegates.join(" "));
    field("skills", &report.skills.join(" "));
    field("memory", report.memory.as_deref().unwrap_or("off"));
    if let Some(prompt) = &report.prompt {
        field("prompt", &prompt_words(prompt, report.model.as_ref().map(|model| model.window)));
        let parts: Vec<String> =
            prompt.segments.iter().map(|(name, bytes)| format!("{name} {bytes}")).collect();
        field("", &parts.join(", "));
    }
    field("budget", &budget_words(report));
    troubles(&report.problems, sink);
    sink.line("");
    sink.line(&verdict(report, sink));
}

fn field(sink: Sink, name: &str, value: &str) {
    if !value.is_empty() {
        sink.line(&format!("{} {}", sink.paint(Style::Dim, &format!("{name:12}")), one_line(value)));
    }
}

fn model_words(look: &ModelLook) -> String {
    let model = &look.model;
    let price = if model.price.is_some() { models::price(model) } else { "no price".to_owned() };
    format!(
        "{} ({} {}): {}; window {}, {price}",
        model.reference,
        model.provider.as_str(),
        model.name,
        look.why,
        count(look.window)
    )
}

fn answer_words(answer: &Answer) -> String {
    match answer {
        Answer::Answered(took) => format!("it answers, within {}", elapsed(*took)),
        Answer::Silent => "it does not answer".to_owned(),
        Answer::NotAsked => "it was not asked whether it answers".to_owned(),
    }
}

fn execution_words(policy: &ExecutionPolicy) -> String {
    let mut words = policy.backend.as_str().to_owned();
    if let Some(image) = &policy.image {
        words.push_str(&format!(
            ", image {image}, network {}, workspace by {}",
            policy.network,
            policy.workspace.as_str()
        ));
    }
    words
}

fn tools(report: &Report, sink: Sink) {
    let tools = &report.tools;
    let offered = if tools.offered.is_empty() { "none".to_owned() } else { tools.offered.join(" ") };
    field(sink, "tools", &offered);
    if !tools.hidden.is_empty() {
        field(sink, "", &format!("hidden by rules: {}", tools.hidden.join(" ")));
    }
    if !tools.disallowed.is_empty() {
        field(sink, "", &format!("not this agent's: {}", tools.disallowed.join(" ")));
    }
}

fn rules(report: &Report, sink: Sink) {
    let Some(rules) = &report.rules else { return };
    field(sink, "permissions", &format!("mode {}, as {} says", rules.mode.as_str(), rules.mode_of));
    let who = if rules.approvers.is_empty() {
        "any key with the scope approve".to_owned()
    } else {
        rules.approvers.join(", ")
    };
    field(sink, "", &format!("questions: {}; {who} may answer", unattended(rules.unattended.as_str())));
    let mut layer = "";
    for (of, words) in rules.in_words() {
        let name = if of == layer { String::new() } else { format!("{of}:") };
        layer = of;
        // The built-in ones are many and the same everywhere.
        if of == "default" {
            continue;
        }
        field(sink, " ", &format!("{name:10} {words}"));
    }
}

fn unattended(policy: &str) -> &'static str {
    match policy {
        "refuse" => "are refused",
        "fail" => "fail the run",
        _ => "wait for a person",
    }
}

fn prompt_words(prompt: &Prompt, window: Option<u64>) -> String {
    let bytes = prompt.system_bytes + prompt.tools_bytes + prompt.message_bytes;
    let mut words = format!(
        "{bytes} bytes (system {}, tools {}, message {}), about {} tokens",
        prompt.system_bytes,
        prompt.tools_bytes,
        prompt.message_bytes,
        count(prompt.tokens)
    );
    if let Some(window) = window.filter(|window| *window > 0) {
        words.push_str(&format!(", {}% of the window", prompt.tokens.saturating_mul(100).div_ceil(window)));
    }
    words
}

fn budget_words(report: &Report) -> String {
    let budget = &report.budget;
    let mut words = match limit_words(budget.limit) {
        Some(limit) => format!("{limit}, {}", budget.of),
        None => "no limit".to_owned(),
    };
    if let Some(session) = budget.session
        && let Some(limit) = limit_words(session.limit)
    {
        let spent = Limit {
            tokens: Some(session.spent.tokens),
            micros: session.limit.micros.map(|_| session.spent.micros),
        };
        let spent = limit_words(spent).unwrap_or_default();
        words.push_str(&format!("; the session has {limit} and spent {spent}"));
    }
    if let Some((amount, priced)) = budget.first {
        words.push_str(&format!("; the first question may take {} tokens", count(amount.tokens)));
        if priced {
            words.push_str(&format!(" and {}", dollars(amount.micros)));
        }
    }
    words
}

fn limit_words(limit: Limit) -> Option<String> {
    let tokens = limit.tokens.map(|tokens| format!("{} tokens", count(tokens)));
    let parts: Vec<String> = tokens.into_iter().chain(limit.micros.map(dollars)).collect();
    (!parts.is_empty()).then(|| parts.join(" and "))
}

fn troubles(problems: &[Trouble], sink: Sink) {
    if !problems.is_empty() {
        sink.line("");
    }
    for problem in problems {
        let mark = if problem.blocks { sink.paint(Style::Bad, "✗") } else { sink.paint(Style::Warn, "!") };
        sink.line(&format!("{mark} {}", one_line(&problem.what)));
        if !problem.mend.is_empty() {
            sink.line(&format!("  {} {}", sink.paint(Style::Accent, "mend:"), one_line(&problem.mend)));
        }
    }
}

fn verdict(report: &Report, sink: Sink) -> String {
    let blocking = report.problems.iter().filter(|problem| problem.blocks).count();
    if blocking == 0 {
        return format!("{} it would run; nothing was executed", sink.paint(Style::Good, "✓"));
    }
    let verb = if blocking == 1 { "keeps" } else { "keep" };
    format!(
        "{} it would not run: {} {verb} it from working",
        sink.paint(Style::Bad, "✗"),
        counted(blocking, "problem")
    )
}

fn to_json(report: &Report) -> Value {
    let model = report.model.as_ref().map(|look| {
        let mut model = models::to_json(&look.model);
        model["why"] = look.why.into();
        model["window"] = look.window.into();
        (model["answers"], model["answered_in_ms"]) = match look.answer {
            Answer::Answered(took) => {
                (true.into(), u64::try_from(took.as_millis()).unwrap_or(u64::MAX).into())
            }
            Answer::Silent => (false.into(), Value::Null),
            Answer::NotAsked => (Value::Null, Value::Null),
        };
        model
    });
    let execution = match &report.execution {
        Some(Executes::Here(policy)) => json!({
            "backend": policy.backend.as_str(),
            "image": policy.image,
            "network": policy.network,
            "workspace_access": policy.workspace.as_str(),
        }),
        Some(Executes::Nowhere(why)) => json!({ "backend": "none", "why": why }),
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
    let problem = |problem: &Trouble| json!({ "blocks": problem.blocks, "message": problem.what, "mend": problem.mend });
    json!({
        "would_run": report.would_run(),
        "workspace": report.root,
        "version": report.version,
        "notes": report.notes,
        "agent": report.agent.as_ref().map(|agent| json!({ "name": agent.what.name, "why": agent.why })),
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
            "of": report.budget.of,
            "session": report.budget.session,
            "first_question": report.budget.first.map(|(amount, priced)| json!({
                "tokens": amount.tokens,
                "micros": priced.then_some(amount.micros),
            })),
        },
        "problems": report.problems.iter().map(problem).collect::<Vec<_>>(),
    })
}
