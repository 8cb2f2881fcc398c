//! Submits a run, follows it to its end and prints its events, resuming after broken connections.
//!
//! `cargo run -p remuda-client --example submit_and_follow -- http://127.0.0.1:7777`

#![allow(clippy::print_stdout, reason = "an example")]

use futures::StreamExt as _;
use remuda_client::{Client, ClientOptions, Target, terminal_state};
use remuda_domain::{RunState, error::Result};
use remuda_proto::v1::{self, submit_run_request::Input};

/// Runs a command in a session, and returns how it ended.
pub async fn submit_and_follow(endpoint: &str) -> Result<Option<RunState>> {
    let client =
        Client::connect(ClientOptions { endpoint: endpoint.to_owned(), ..ClientOptions::default() })?;
    let call = v1::ToolCall {
        tool: "Bash".to_owned(),
        arguments: r#"{"command": "echo hello"}"#.to_owned(),
        ..v1::ToolCall::default()
    };
    let accepted = client
        .submit(v1::SubmitRunRequest {
            session: "example".to_owned(),
            create_session: true,
            // Makes retries safe: a submit whose response was lost is sent again without creating a second run.
            idempotency_key: format!("example-{}", std::process::id()),
            input: Some(Input::Tools(v1::ToolsInput { calls: vec![call], ..v1::ToolsInput::default() })),
            ..v1::SubmitRunRequest::default()
        })
        .await?;
    let run = accepted.run.unwrap_or_default().id;

    let mut events = client.follow(Target::Run(run.clone()), 0);
    let mut ended = None;
    while let Some(event) = events.next().await {
        let event = event?;
        println!("{:3}  {}  {}", event.cursor, event.r#type, event.data);
        ended = terminal_state(&event).or(ended);
    }
    let run = client.wait_until_finished(&run).await?;
    for outcome in &run.outcomes {
        println!("{}: {}", outcome.tool, outcome.output);
    }
    Ok(ended)
}

#[tokio::main]
async fn main() -> Result<()> {
    let endpoint = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:7777".to_owned());
    let ended = submit_and_follow(&endpoint).await?;
    println!("the run is {}", ended.map_or("gone", RunState::as_str));
    Ok(())
}
