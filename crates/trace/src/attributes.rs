//! Names of span attributes. Those of `gen_ai` are OpenTelemetry's conventions for generative AI.

pub(crate) const AGENT_NAME: &str = "gen_ai.agent.name";
pub(crate) const CONVERSATION_ID: &str = "gen_ai.conversation.id";
pub(crate) const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
pub(crate) const OPERATION_NAME: &str = "gen_ai.operation.name";
pub(crate) const PROVIDER_NAME: &str = "gen_ai.provider.name";
pub(crate) const REQUEST_MAX_TOKENS: &str = "gen_ai.request.max_tokens";
pub(crate) const REQUEST_MODEL: &str = "gen_ai.request.model";
pub(crate) const REQUEST_TEMPERATURE: &str = "gen_ai.request.temperature";
pub(crate) const REQUEST_TOP_P: &str = "gen_ai.request.top_p";
pub(crate) const RESPONSE_ID: &str = "gen_ai.response.id";
/// In seconds.
pub(crate) const TIME_TO_FIRST_TOKEN: &str = "gen_ai.response.time_to_first_chunk";
pub(crate) const TOOL_CALL_ID: &str = "gen_ai.tool.call.id";
pub(crate) const TOOL_NAME: &str = "gen_ai.tool.name";
pub(crate) const TOOL_TYPE: &str = "gen_ai.tool.type";
pub(crate) const USAGE_CACHED_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
pub(crate) const USAGE_INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(crate) const USAGE_OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";

pub(crate) const ERROR_TYPE: &str = "error.type";
pub(crate) const EXIT_CODE: &str = "process.exit.code";

pub(crate) const ATTEMPT: &str = "remuda.run.attempt";
pub(crate) const BACKEND: &str = "remuda.sandbox.backend";
pub(crate) const CHILD_RUN_ID: &str = "remuda.child.run_id";
/// Events appended with the commit, without the terminal one.
pub(crate) const COMMIT_EVENTS: &str = "remuda.commit.events";
pub(crate) const COMMIT_STEPS: &str = "remuda.commit.steps";
pub(crate) const COST: &str = "remuda.cost_usd";
pub(crate) const CURSOR: &str = "remuda.event.cursor";
pub(crate) const EPOCH: &str = "remuda.session.epoch";
pub(crate) const IMAGE: &str = "remuda.sandbox.image";
pub(crate) const MODEL_REF: &str = "remuda.model";
pub(crate) const MODEL_REQUESTS: &str = "remuda.model.requests";
pub(crate) const OUTPUT_BYTES: &str = "remuda.tool.output_bytes";
pub(crate) const PURPOSE: &str = "remuda.model.purpose";
pub(crate) const RUN_ID: &str = "remuda.run.id";
pub(crate) const RUN_KIND: &str = "remuda.run.kind";
pub(crate) const RUN_OUTCOME: &str = "remuda.run.outcome";
pub(crate) const RUN_SEQ: &str = "remuda.run.seq";
pub(crate) const RUN_STATE: &str = "remuda.run.state";
pub(crate) const SANDBOX_ID: &str = "remuda.sandbox.id";
pub(crate) const SESSION_ID: &str = "remuda.session.id";
pub(crate) const STEP_INDEX: &str = "remuda.step.index";
pub(crate) const STATUS: &str = "remuda.call.status";
pub(crate) const TENANT_ID: &str = "remuda.tenant.id";
pub(crate) const WAIT_FOR: &str = "remuda.wait.for";
pub(crate) const WORKER_ID: &str = "remuda.worker.id";
