//! The first question: which model is asked, with how long a prompt, and what that may cost.

use remuda_config::Config;
use remuda_domain::{
    Code, Error,
    budget::Amount,
    model::{ModelDefinition, Usage},
};
use remuda_engine::{FirstQuestion, first_question};
use remuda_models::ToolSpec;
use remuda_workspace::{Audience, Choice, Definitions};

use super::{
    look::{SKILL, Wanted, blocking},
    report::{Answer, Budgeted, Chosen, ModelLook, Prompt, Report},
};
use crate::{models, output::Output};

/// Looks at the model, the prompt, and what asking it may cost.
pub(super) async fn ask(
    definitions: &Definitions,
    wanted: &Wanted,
    config: &Config,
    output: Output,
    report: &mut Report,
) {
    let Some(Chosen { what: agent, .. }) = &report.agent else { return };
    let default = Some(config.platform.default_model.as_str()).filter(|model| !model.is_empty());
    let named = wanted.model.as_ref().map(|model| model.what.as_str());
    let Choice { model, parameters } = match definitions.choose_model(agent, named, default) {
        Ok(choice) => choice,
        Err(error) => {
            let mend = model_mend(&error);
            report.problems.push(blocking(format!("no model would be asked: {}", error.message()), mend));
            return;
        }
    };
    let why = match (&wanted.model, &agent.model, default) {
        (Some(model), ..) => model.why,
        (None, Some(_), _) => "the agent wants it",
        (None, None, Some(_)) => "it is platform.default_model",
        (None, None, None) => "there is no other",
    };
    let reads_skills = report.tools.offered.iter().any(|name| name == SKILL);
    let audience = Audience { agent, model, reads_skills, today: chrono::Utc::now() };
    let segments = definitions.prompt_segments(&audience);
    let system = definitions.system_prompt(&audience);
    let parameters = parameters.or(model.parameters);
    let first = first_question(
        (model, &parameters),
        &remuda_node::context(config),
        (&system, &report.tools.specs),
        wanted.message.clone(),
    );
    let tools_bytes = |tool: &ToolSpec| serde_json::to_string(tool).unwrap_or_default().len();
    report.prompt = Some(Prompt {
        segments: segments.iter().map(|(segment, text)| (segment.as_str(), text.len())).collect(),
        system_bytes: system.len(),
        tools_bytes: report.tools.specs.iter().map(tools_bytes).sum(),
        message_bytes: wanted.message_bytes,
        tokens: first.input,
    });
    let FirstQuestion { input, output: most, window } = first;
    if input + most > window {
        let what = format!(
            "the prompt has about {input} tokens, and the model's window of {window} has room for {} besides an answer",
            window.saturating_sub(most)
        );
        report
            .problems
            .push(blocking(what, "shorten AGENTS.md and the agent's prompt, or use another model"));
    }
    let usage = Usage { input_tokens: input, output_tokens: most, ..Usage::default() };
    let amount = Amount { tokens: input + most, micros: model.price.map_or(0, |price| price.of(&usage)) };
    report.budget.first = Some((amount, model.price.is_some()));
    affordable(amount, model, report);
    let answer = if wanted.test_model { test(model, config, output, report).await } else { Answer::NotAsked };
    report.model = Some(ModelLook { model: model.clone(), why, answer, window });
}

fn model_mend(error: &Error) -> String {
    match error.code() {
        Code::MissingModel => {
            "describe one in .openharness/models/*.yaml (see `remuda models --help`), or name one with --model".to_owned()
        }
        _ => "`remuda models list` shows which there are".to_owned(),
    }
}

fn affordable(amount: Amount, model: &ModelDefinition, report: &mut Report) {
    let Budgeted { limit, session, .. } = report.budget;
    let in_money = limit.micros.is_some() || session.is_some_and(|budget| budget.limit.micros.is_some());
    if in_money && model.price.is_none() {
        let what = format!("the budget is in money, and {} has no price", model.reference);
        let mend = "give the model a price (`price: {input: 3, output: 15}`, dollars for a million tokens), or limit tokens";
        report.problems.push(blocking(what, mend));
    } else if !limit.allows(amount) || session.is_some_and(|budget| !budget.has_room(amount)) {
        let whose = if limit.allows(amount) { "the session's budget" } else { "the budget" };
        let what = format!(
            "the first question may need {} tokens, more than {whose} has: the run would wait for it at once",
            amount.tokens
        );
        report.problems.push(blocking(what, "raise the budget, or give the model a smaller max_tokens"));
    }
}

async fn test(model: &ModelDefinition, config: &Config, output: Output, report: &mut Report) -> Answer {
    match models::answers(model, config, output).await {
        Ok(took) => Answer::Answered(took),
        Err(error) => {
            let mend = match error.code() {
                Code::ModelKeyRefused => {
                    "is the variable that holds its key set, on this machine and on the workers?".to_owned()
                }
                _ => format!(
                    "`remuda models test {} --dir {}` shows more",
                    model.reference,
                    report.root.display()
                ),
            };
            report.problems.push(blocking(format!("{} does not answer: {error}", model.reference), mend));
            Answer::Silent
        }
    }
}
