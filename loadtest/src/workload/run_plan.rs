//! The plan of each run: a pure function of the seed and the run's number.

use std::time::Duration;

use rand::{Rng, SeedableRng as _, rngs::StdRng};
use remuda_proto::v1;
use serde_json::json;

use crate::{
    observed_history::{CallPlan, Expectation},
    tool_journal::{Journal, Script, ScriptStyle},
};

/// The plan of one run, independent of its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunPlan {
    calls: Vec<Call>,
    timeout: Option<Duration>,
    /// Cancel the run this long after it was accepted.
    pub(crate) cancel_after: Option<Duration>,
    may_fail: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    tool: Tool,
    parallel: bool,
    timeout: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tool {
    Noop,
    /// A `noop` that fails.
    Broken,
    Bash(Script),
    Write,
    Read,
}

/// The session and the key of a submit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubmitContext<'a> {
    pub(crate) session: usize,
    pub(crate) session_id: &'a str,
    pub(crate) key: &'a str,
    pub(crate) journal: &'a Journal,
    /// Whether some runs of this session interrupt earlier ones.
    pub(crate) interrupting: bool,
}

/// In interrupting sessions, one run in this many interrupts.
const INTERRUPT_SHARE: u64 = 6;

impl RunPlan {
    /// The plan of the run with this number.
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        match rng.random_range(0..100) {
            0..28 => Self::with_calls(vec![Call::sequential(Tool::Noop)]),
            28..58 => Self::with_calls(short_scripts(&mut rng)),
            58..66 => Self::with_calls(vec![Call::sequential(Tool::Bash(long(&mut rng)))]),
            66..78 => Self::with_calls(mixed(&mut rng)),
            78..88 => cancelled(&mut rng),
            88..92 => timed_out(&mut rng),
            _ => failing(&mut rng),
        }
    }

    fn with_calls(calls: Vec<Call>) -> Self {
        Self { calls, timeout: None, cancel_after: None, may_fail: false }
    }

    /// The expectations of the checker.
    pub(crate) fn expectations(&self, interrupting: bool) -> (Vec<CallPlan>, Expectation) {
        let mut group = 0;
        let calls = self.calls.iter().enumerate().map(|(index, call)| {
            if index > 0 && !(call.parallel && self.calls[index - 1].parallel) {
                group += 1;
            }
            let journal = match &call.tool {
                Tool::Bash(script) => Some(script.exit_code),
                Tool::Noop | Tool::Broken | Tool::Write | Tool::Read => None,
            };
            CallPlan { journal, group }
        });
        let expects = Expectation {
            may_fail: self.may_fail,
            may_time_out: self.timeout.is_some(),
            may_be_cancelled: interrupting || self.cancel_after.is_some(),
        };
        (calls.collect(), expects)
    }

    pub(crate) fn request(&self, number: u64, context: &SubmitContext<'_>) -> v1::SubmitRunRequest {
        let calls = self.calls.iter().enumerate().map(|(index, call)| call.request(index, context)).collect();
        let interrupt = context.interrupting && number.is_multiple_of(INTERRUPT_SHARE);
        let if_busy = if interrupt { v1::IfBusy::Interrupt } else { v1::IfBusy::Enqueue };
        v1::SubmitRunRequest {
            session: context.session_id.to_owned(),
            idempotency_key: context.key.to_owned(),
            if_busy: if_busy.into(),
            input: Some(v1::submit_run_request::Input::Tools(v1::ToolsInput {
                calls,
                ..v1::ToolsInput::default()
            })),
            timeout: self.timeout.and_then(|timeout| timeout.try_into().ok()),
            ..v1::SubmitRunRequest::default()
        }
    }
}

impl Call {
    fn sequential(tool: Tool) -> Self {
        Self { tool, parallel: false, timeout: None }
    }

    fn request(&self, index: usize, context: &SubmitContext<'_>) -> v1::ToolCall {
        let file = format!("load/session-{}.txt", context.session);
        let (tool, arguments) = match &self.tool {
            Tool::Noop => ("noop", json!({ "echo": index })),
            Tool::Broken => ("noop", json!({ "fail": "as planned" })),
            Tool::Bash(script) => {
                let command = context.journal.script(context.session, context.key, index, script);
                ("Bash", json!({ "command": command }))
            }
            Tool::Write => ("Write", json!({ "file_path": file, "content": context.key })),
            Tool::Read => ("Read", json!({ "file_path": file })),
        };
        v1::ToolCall {
            tool: tool.to_owned(),
            arguments: arguments.to_string(),
            parallel: self.parallel,
            timeout: self.timeout.and_then(|timeout| timeout.try_into().ok()),
            ..v1::ToolCall::default()
        }
    }
}

fn short(rng: &mut StdRng) -> Script {
    let exit_code = if rng.random_bool(0.1) { 3 } else { 0 };
    Script { duration: Duration::from_millis(rng.random_range(0..120)), style: ScriptStyle::Plain, exit_code }
}

fn long(rng: &mut StdRng) -> Script {
    let style = match rng.random_range(0..4) {
        0 => ScriptStyle::Child,
        1 => ScriptStyle::Stubborn,
        _ => ScriptStyle::Plain,
    };
    Script { duration: Duration::from_millis(rng.random_range(1000..4000)), style, exit_code: 0 }
}

fn short_scripts(rng: &mut StdRng) -> Vec<Call> {
    let count = rng.random_range(1..=4);
    let call = |rng: &mut StdRng| Call {
        tool: Tool::Bash(short(rng)),
        parallel: rng.random_bool(0.4),
        timeout: None,
    };
    (0..count).map(|_| call(rng)).collect()
}

/// A mix of tools. The file that is read was written by the same run.
fn mixed(rng: &mut StdRng) -> Vec<Call> {
    let mut calls = vec![Call::sequential(Tool::Write)];
    for _ in 0..rng.random_range(1..=4) {
        let tool = match rng.random_range(0..3) {
            0 => Tool::Read,
            1 => Tool::Noop,
            _ => Tool::Bash(short(rng)),
        };
        calls.push(Call { tool, parallel: rng.random_bool(0.3), timeout: None });
    }
    calls
}

/// A run that is cancelled while it is queued or executing.
fn cancelled(rng: &mut StdRng) -> RunPlan {
    let mut calls = vec![Call::sequential(Tool::Bash(long(rng)))];
    if rng.random_bool(0.5) {
        calls.push(Call::sequential(Tool::Bash(short(rng))));
    }
    let cancel_after = Some(Duration::from_millis(rng.random_range(0..2000)));
    RunPlan { cancel_after, ..RunPlan::with_calls(calls) }
}

fn timed_out(rng: &mut StdRng) -> RunPlan {
    let script = Script { duration: Duration::from_secs(20), ..long(rng) };
    let timeout = Some(Duration::from_millis(rng.random_range(100..800)));
    RunPlan { timeout, ..RunPlan::with_calls(vec![Call::sequential(Tool::Bash(script))]) }
}

/// A run in which a call fails or times out; the following calls are skipped.
fn failing(rng: &mut StdRng) -> RunPlan {
    let bad = if rng.random_bool(0.5) {
        Call::sequential(Tool::Broken)
    } else {
        let timeout = Some(Duration::from_millis(rng.random_range(50..300)));
        Call { timeout, ..Call::sequential(Tool::Bash(long(rng))) }
    };
    let calls = vec![Call::sequential(Tool::Bash(short(rng))), bad, Call::sequential(Tool::Bash(short(rng)))];
    RunPlan { may_fail: true, ..RunPlan::with_calls(calls) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_runs() {
        let runs = |seed: u64| (0..200).map(|number| RunPlan::new(seed, number)).collect::<Vec<_>>();
        assert_eq!(runs(7), runs(7));
        assert_ne!(runs(7), runs(8));
    }

    #[test]
    fn every_kind_of_run_occurs() {
        let runs: Vec<RunPlan> = (0..300).map(|number| RunPlan::new(1, number)).collect();
        assert!(runs.iter().any(|run| run.cancel_after.is_some()));
        assert!(runs.iter().any(|run| run.timeout.is_some()));
        assert!(runs.iter().any(|run| run.may_fail));
        assert!(runs.iter().any(|run| run.calls.iter().any(|call| call.parallel)));
        for tool in [Tool::Noop, Tool::Broken, Tool::Read, Tool::Write] {
            assert!(runs.iter().any(|run| run.calls.iter().any(|call| call.tool == tool)), "{tool:?}");
        }
    }

    #[test]
    fn neighbouring_parallel_calls_share_a_group() {
        let call = |parallel| Call { parallel, ..Call::sequential(Tool::Noop) };
        let plan = RunPlan::with_calls([false, true, true, false, true].map(call).to_vec());
        let groups: Vec<usize> = plan.expectations(false).0.iter().map(|call| call.group).collect();
        assert_eq!(groups, [0, 1, 1, 2, 3]);
    }
}
