//! Inspects the first model call of a run: its model, the size of its prompt and its maximum cost.

use remuda_config::Config;
use remuda_domain::{
    Code, Error,
    budget::Amount,
    model::{ModelDefinition, Usage},
    tool::ToolRole,
};
use remuda_engine::{FirstModelCall, preview_first_model_call};
use remuda_models::ToolSpec;
use remuda_workspace::{Definitions, ModelChoice, PromptContext};

use super::{
    inspect::{DryRunRequest, blocking},
    report::{BudgetReport, Chosen, ModelReport, ModelTest, Prompt, Report},
};
use crate::{models, output::Output};

/// Adds the model, the prompt and the maximum cost of the first call to the report.
pub(super) async fn inspect_model_call(
    definitions: &Definitions,
    request: &DryRunRequest,
    config: &Config,
    output: Output,
    report: &mut Report,
) {
    let Some(Chosen { value: agent, .. }) = &report.agent else { return };
    let default = Some(config.platform.default_model.as_str()).filter(|model| !model.is_empty());
    let named = request.model.as_ref().map(|model| model.value.as_str());
    let ModelChoice { model, parameters } = match definitions.choose_model(agent, named, default) {
        Ok(choice) => choice,
        Err(error) => {
            let fix = model_fix(&error);
            report.problems.push(blocking(format!("no model can be used: {}", error.message()), fix));
            return;
        }
    };
    let reason = match (&request.model, &agent.model, default) {
        (Some(model), ..) => model.reason,
        (None, Some(_), _) => "set by the agent",
        (None, None, Some(_)) => "set by platform.default_model",
        (None, None, None) => "the only model",
    };
    let audience = PromptContext {
        agent,
        model,
        tools: remuda_node::tool_catalog(),
        reads_skills: report.tools.has(ToolRole::ReadSkills),
        today: chrono::Utc::now(),
    };
    let segments = definitions.prompt_segments(&audience);
    let system = definitions.system_prompt(&audience);
    let parameters = parameters.or(model.parameters);
    let first = preview_first_model_call(
        (model, &parameters),
        &remuda_node::context(config),
        (&system, &report.tools.specs),
        request.message.clone(),
    );
    let tools_bytes = |tool: &ToolSpec| serde_json::to_string(tool).unwrap_or_default().len();
    report.prompt = Some(Prompt {
        segments: segments.iter().map(|(segment, text)| (segment.as_str(), text.len())).collect(),
        system_bytes: system.len(),
        tools_bytes: report.tools.specs.iter().map(tools_bytes).sum(),
        message_bytes: request.message_bytes,
        tokens: first.input,
    });
    let FirstModelCall { input, output: most, window } = first;
    if input + most > window {
        let what = format!(
            "the prompt has about {input} tokens, but the model's context window of {window} leaves only {} besides the answer",
            window.saturating_sub(most)
        );
        report
            .problems
            .push(blocking(what, "shorten AGENTS.md and the agent's prompt, or use another model"));
    }
    let usage = Usage { input_tokens: input, output_tokens: most, ..Usage::default() };
    let amount = Amount { tokens: input + most, micros: model.price.map_or(0, |price| price.of(&usage)) };
    report.budget.first_call = Some((amount, model.price.is_some()));
    check_budget(amount, model, report);
    let test =
        if request.test_model { test_model(model, config, output, report).await } else { ModelTest::Skipped };
    report.model = Some(ModelReport { model: model.clone(), reason, test, window });
}

fn model_fix(error: &Error) -> String {
    match error.code() {
        Code::MissingModel => {
            "describe a model in .openharness/models/*.yaml (see `remuda models --help`), or choose one with --model".to_owned()
        }
        _ => "`remuda models list` lists the models".to_owned(),
    }
}

fn check_budget(amount: Amount, model: &ModelDefinition, report: &mut Report) {
    let BudgetReport { limit, session, .. } = report.budget;
    let in_money = limit.micros.is_some() || session.is_some_and(|budget| budget.limit.micros.is_some());
    if in_money && model.price.is_none() {
        let what = format!("the budget limits money, but {} has no price", model.reference);
        let fix = "give the model a price (`price: {input: 3, output: 15}`, dollars per million tokens), or limit tokens";
        report.problems.push(blocking(what, fix));
    } else if !limit.allows(amount) || session.is_some_and(|budget| !budget.has_room(amount)) {
        let whose = if limit.allows(amount) { "the session's budget" } else { "the budget" };
        let what = format!(
            "the first model call may need {} tokens, more than {whose} has left: the run would wait for budget immediately",
            amount.tokens
        );
        report.problems.push(blocking(what, "raise the budget, or give the model a smaller max_tokens"));
    }
}

async fn test_model(
    model: &ModelDefinition,
    config: &Config,
    output: Output,
    report: &mut Report,
) -> ModelTest {
    match models::measure_response(model, config, output).await {
        Ok(took) => ModelTest::Passed(took),
        Err(error) => {
            let fix = match error.code() {
                Code::ModelKeyRefused => {
                    "is the variable with its API key set, on this machine and on the workers?".to_owned()
                }
                _ => format!(
                    "`remuda models test {} --dir {}` shows more",
                    model.reference,
                    report.root.display()
                ),
            };
            report.problems.push(blocking(format!("{} does not answer: {error}", model.reference), fix));
            ModelTest::Failed
        }
    }
}
