//! Deciding about a call that was looked at.

use std::{
    fs::File,
    io::{self, Read},
};

use remuda_client::Client;
use remuda_domain::{Code, Error, error::Result, limits};
use remuda_proto::v1;

use super::{get, show};
use crate::{
    client::{exit::Exit, json, render},
    output::{Output, one_line},
};

/// What fits on a command line and still tells two calls apart.
const SHORTEST_HASH: usize = 8;

#[derive(Debug, clap::Args)]
pub(crate) struct ApproveArgs {
    #[arg(value_name = "APPROVAL_ID")]
    approval: String,
    /// Tell the model something with the result of the call.
    #[arg(long, short, default_value = "", hide_default_value = true)]
    message: String,
    /// Make the call with these arguments instead of its own: a JSON object, @FILE, or @- for stdin.
    #[arg(long, value_name = "JSON|@FILE", conflicts_with = "always")]
    input: Option<String>,
    /// Do not ask about the like in this session again. `show` says which rules the session gets.
    #[arg(long)]
    always: bool,
    /// Only if the call has this hash (or one that begins so): what you looked at earlier, for instance with `show`.
    #[arg(long, value_name = "HASH", default_value = "", hide_default_value = true)]
    hash: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DenyArgs {
    #[arg(value_name = "APPROVAL_ID")]
    approval: String,
    /// Why, and what to do instead: the model reads it.
    #[arg(long, short, default_value = "", hide_default_value = true)]
    message: String,
    /// Only if the call has this hash (or one that begins so).
    #[arg(long, value_name = "HASH", default_value = "", hide_default_value = true)]
    hash: String,
}

pub(super) async fn approve(args: ApproveArgs, client: &Client, output: Output) -> Result<Exit> {
    // What can be wrong here is found before anything is decided.
    let arguments = match &args.input {
        Some(input) => {
            let text = read_input(input)?;
            limits::parse_arguments("input", &text)?;
            text
        }
        None => String::new(),
    };
    let request = v1::DecideApprovalRequest {
        approval_id: args.approval,
        approve: true,
        message: args.message,
        arguments,
        always: args.always,
        call_hash: String::new(),
    };
    decide(request, &args.hash, client, output).await
}

pub(super) async fn deny(args: DenyArgs, client: &Client, output: Output) -> Result<Exit> {
    let request = v1::DecideApprovalRequest {
        approval_id: args.approval,
        approve: false,
        message: args.message,
        ..Default::default()
    };
    decide(request, &args.hash, client, output).await
}

/// Decides about the call as it is shown here, and about no other.
async fn decide(
    mut request: v1::DecideApprovalRequest,
    hash: &str,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    limits::check_text("message", &request.message, limits::MAX_REASON_CHARS)?;
    let seen = get(request.approval_id.clone(), client).await?;
    check_hash(hash, &seen.call_hash)?;
    request.call_hash = seen.call_hash.clone();
    if !output.json {
        show::call(&seen, output);
    }
    let decided = client.decide_approval(request).await?.approval;
    let decided = decided.ok_or_else(|| Error::internal("the server sent no approval"))?;
    if output.json {
        output.json_line(&json::approval(&decided));
        return Ok(Exit::Ok);
    }
    let sink = output.out;
    sink.line("");
    sink.line(&format!("{}: the run goes on", render::paint_state(sink, &decided.state)));
    output.note(&format!("  watch:  remuda watch {}", one_line(&decided.run_id)));
    Ok(Exit::Ok)
}

fn check_hash(said: &str, found: &str) -> Result<()> {
    if said.is_empty() {
        return Ok(());
    }
    if said.len() < SHORTEST_HASH {
        return Err(Error::invalid(
            "hash",
            format!("expected at least {SHORTEST_HASH} characters of the hash"),
        ));
    }
    if found.starts_with(&said.to_lowercase()) {
        return Ok(());
    }
    let message = "this is not the call that was looked at: show the approval again";
    Err(Error::new(Code::ApprovalChanged, message).at("hash"))
}

/// A JSON text, or the contents of a file.
fn read_input(input: &str) -> Result<String> {
    let Some(name) = input.strip_prefix('@') else { return Ok(input.to_owned()) };
    let failed = |error: io::Error| Error::invalid("input", format!("cannot read {name}: {error}"));
    let mut from: Box<dyn Read> = match name {
        "-" => Box::new(io::stdin().lock()),
        name => Box::new(File::open(name).map_err(failed)?),
    };
    let most = u64::try_from(limits::MAX_ARGUMENTS_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    from.by_ref().take(most).read_to_end(&mut bytes).map_err(failed)?;
    String::from_utf8(bytes).map_err(|_| Error::invalid("input", format!("expected UTF-8 in {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_call_that_was_seen_is_decided() {
        let found = "0123456789abcdef";
        assert!(check_hash("", found).is_ok());
        assert!(check_hash("01234567", found).is_ok() && check_hash("0123456789ABCDEF", found).is_ok());
        assert_eq!(check_hash("0123", found).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(check_hash("fedcba98", found).unwrap_err().code(), Code::ApprovalChanged);
    }

    #[test]
    fn input_comes_from_where_it_is() {
        assert_eq!(read_input("{}").unwrap(), "{}");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("input.json");
        std::fs::write(&file, "{\"a\":1}").unwrap();
        assert_eq!(read_input(&format!("@{}", file.display())).unwrap(), "{\"a\":1}");
        assert_eq!(read_input("@/nowhere/x").unwrap_err().field(), Some("input"));
        std::fs::write(&file, b"\xff").unwrap();
        assert_eq!(read_input(&format!("@{}", file.display())).unwrap_err().field(), Some("input"));
    }
}
