//! `remuda runs retry`: submits the input of a run again, as a new run of its session.

use remuda_client::Client;
use remuda_domain::{Error, error::Result};
use remuda_proto::v1::{self, submit_run_request::Input};

use crate::{
    client::{exit::Exit, run},
    output::{Output, one_line},
};

pub(super) async fn retry(run_id: String, detach: bool, client: &Client, output: Output) -> Result<Exit> {
    let response = client.get_run(v1::GetRunRequest { run_id }).await?;
    let earlier = response.run.ok_or_else(|| Error::internal("the server sent no run"))?;
    output.note(&format!(
        "● same input as {}; the workspace and the session's messages are as they are now",
        one_line(&earlier.id)
    ));
    let submitted = client.submit(request(earlier)).await?;
    run::show(submitted, run::DisplayOptions { follow: false, quiet: false }, detach, client, output).await
}

/// What the run was submitted with. Ids are left out: the server gives new ones.
fn request(earlier: v1::Run) -> v1::SubmitRunRequest {
    let input = earlier.input.map(|input| match input {
        v1::run::Input::Message(message) => Input::Message(v1::MessageInput { id: String::new(), ..message }),
        v1::run::Input::Tools(mut tools) => {
            tools.calls.iter_mut().for_each(|call| call.id.clear());
            Input::Tools(tools)
        }
    });
    v1::SubmitRunRequest {
        session: earlier.session_id,
        input,
        timeout: earlier.timeout,
        budget: earlier.budget.and_then(|budget| budget.limit),
        labels: earlier.labels,
        ..Default::default()
    }
}
