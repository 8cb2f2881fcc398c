//! A client that submits without idempotency keys and waits for the result in the same call.
//!
//! Such runs are granted with the submit, and their ends are notified to the control plane: it makes the traffic that a
//! hostile member of the bus would have to forge. Every answer must be what the store says.

use std::time::Duration;

use remuda_domain::RunState;
use remuda_proto::{convert::run_state, v1};
use tokio::{task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::workload::{Addresses, FailoverClient};

const PAUSE: Duration = Duration::from_millis(100);
const WAIT: Duration = Duration::from_secs(3);
/// How long an attempt to submit may take. It is not repeated: without a key it would be a second run.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to try to read a result again.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_PROBLEMS: usize = 20;

/// What a waiting client got.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Finished runs that were returned.
    pub(crate) finished: u64,
    pub(crate) problems: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct WaitingClient {
    stop: CancellationToken,
    task: JoinHandle<Answers>,
}

impl WaitingClient {
    pub(crate) fn start(addresses: &Addresses) -> anyhow::Result<Self> {
        let client = FailoverClient::connect(addresses)?;
        let stop = CancellationToken::new();
        #[expect(clippy::disallowed_methods, reason = "`stop` waits for the task")]
        let task = tokio::spawn(submit_until(stop.clone(), client));
        Ok(Self { stop, task })
    }

    pub(crate) async fn stop(self) -> anyhow::Result<Answers> {
        self.stop.cancel();
        Ok(self.task.await?)
    }
}

async fn submit_until(stop: CancellationToken, client: FailoverClient) -> Answers {
    let mut answers = Answers::default();
    for number in 0_u64.. {
        if stop.is_cancelled() {
            break;
        }
        // Mostly new sessions, whose first run can be granted.
        let request = request(&format!("waiting-{}", number % 500));
        let submitted = client.call(SUBMIT_TIMEOUT, |client| {
            let request = request.clone();
            async move { client.submit(request).await }
        });
        if let Some(run) = submitted.await.ok().and_then(|response| response.run) {
            check(&client, &run, &mut answers).await;
        }
        sleep(PAUSE).await;
    }
    answers
}

fn request(session: &str) -> v1::SubmitRunRequest {
    let call = v1::ToolCall { tool: "noop".to_owned(), arguments: "{}".to_owned(), ..Default::default() };
    let tools = v1::ToolsInput { calls: vec![call], ..Default::default() };
    v1::SubmitRunRequest {
        session: session.to_owned(),
        create_session: true,
        input: Some(v1::submit_run_request::Input::Tools(tools)),
        wait: WAIT.try_into().ok(),
        ..Default::default()
    }
}

/// Compares an answer with the store.
async fn check(client: &FailoverClient, run: &v1::Run, answers: &mut Answers) {
    let is_finished = |run: &v1::Run| run_state("state", run.state).is_ok_and(RunState::is_terminal);
    if !is_finished(run) {
        return;
    }
    answers.finished += 1;
    let read =
        client.call(READ_TIMEOUT, |client| async move { client.wait_run(&run.id, Duration::ZERO).await });
    let stored = match read.await {
        Ok(response) => response.run,
        Err(error) => return answers.problem(format!("cannot read {}: {}", run.id, error.into_error())),
    };
    match stored {
        Some(stored) if stored.state == run.state && stored.outcomes == run.outcomes => {}
        stored => answers.problem(format!("a waiting client got {run:?}, the store has {stored:?}")),
    }
}

impl Answers {
    fn problem(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }
}
