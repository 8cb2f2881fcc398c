//! Submits a run from the command line arguments.

use remuda_client::Client;
use remuda_domain::{Error, Labels, error::Result, limits};
use remuda_proto::v1::{self, submit_run_request::Input};

use super::{RunArgs, dir, prompt};

/// Submits the run, in a new session if none is named.
pub(super) async fn submit(mut args: RunArgs, client: &Client) -> Result<v1::SubmitRunResponse> {
    // Validate everything before a session is created.
    let timeout = match args.timeout {
        Some(timeout) => {
            limits::check_timeout("timeout", timeout)?;
            timeout.try_into().ok()
        }
        None => None,
    };
    let labels = Labels::parse(args.label.iter().map(String::as_str))?.into_iter().collect();
    let input = input(&mut args)?;
    let workspace = match &args.dir {
        Some(directory) => dir::workspace(directory, client).await?,
        None => args.workspace.unwrap_or_default(),
    };
    let (execution, model) = (args.execution.into_request(), args.model.unwrap_or_default());
    let permissions = args.permissions.into_request();
    let session = match args.session {
        Some(session) => session,
        None => {
            let request = v1::CreateSessionRequest {
                execution: execution.clone(),
                workspace: workspace.clone(),
                model: model.clone(),
                permissions: permissions.clone(),
                ..Default::default()
            };
            let created = client.create_session(request).await?;
            created.session.ok_or_else(|| Error::internal("the server sent no session"))?.id
        }
    };
    let request = v1::SubmitRunRequest {
        create_session: !session.starts_with("ses_"),
        session,
        idempotency_key: args.idempotency_key.unwrap_or_default(),
        if_busy: v1::IfBusy::from(args.if_busy).into(),
        input: Some(input),
        timeout,
        execution,
        workspace,
        model,
        budget: args.budget.into_request(),
        permissions,
        wait: None,
        labels,
    };
    client.submit(request).await
}

/// Reads and validates the input of the run.
pub(super) fn input(args: &mut RunArgs) -> Result<Input> {
    if let Some(calls) = std::mem::take(&mut args.calls).load()? {
        let (continue_on_error, record) = (args.continue_on_error, args.record);
        return Ok(Input::Tools(v1::ToolsInput { calls, continue_on_error, record }));
    }
    let images = prompt::images(&args.attach)?;
    let text = prompt::text(args.text.take(), !images.is_empty())?;
    let bytes = text.len() + images.iter().map(|image| image.data.len()).sum::<usize>();
    limits::check_message_size(bytes)?;
    let agent = args.agent.take().unwrap_or_default();
    Ok(Input::Message(v1::MessageInput { text, images, agent, id: String::new() }))
}
