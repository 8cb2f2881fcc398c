//! `remuda approvals approve` and `deny`.

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

/// Shortest prefix of a hash that is accepted.
const MIN_HASH_CHARS: usize = 8;

#[derive(Debug, clap::Args)]
pub(crate) struct ApproveArgs {
    #[arg(value_name = "APPROVAL_ID")]
    approval: String,
    /// Message for the model, added to the result of the call.
    #[arg(long, short, default_value = "", hide_default_value = true)]
    message: String,
    /// Replace the arguments of the call: a JSON object, @FILE, or @- for stdin.
    #[arg(long, value_name = "JSON|@FILE", conflicts_with = "always")]
    input: Option<String>,
    /// Also allow similar calls of this session from now on. `remuda approvals show` lists the rules that are added.
    #[arg(long)]
    always: bool,
    /// Approve only if the hash of the call begins with this, as shown by `remuda approvals show`.
    #[arg(long, value_name = "HASH", default_value = "", hide_default_value = true)]
    hash: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DenyArgs {
    #[arg(value_name = "APPROVAL_ID")]
    approval: String,
    /// Reason for the model, and what it should do instead.
    #[arg(long, short, default_value = "", hide_default_value = true)]
    message: String,
    /// Deny only if the hash of the call begins with this.
    #[arg(long, value_name = "HASH", default_value = "", hide_default_value = true)]
    hash: String,
}

pub(super) async fn approve(args: ApproveArgs, client: &Client, output: Output) -> Result<Exit> {
    // Validate everything before the decision.
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

/// Decides exactly the call that is shown here.
async fn decide(
    mut request: v1::DecideApprovalRequest,
    hash: &str,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    limits::check_text("message", &request.message, limits::MAX_REASON_CHARS)?;
    let current = get(request.approval_id.clone(), client).await?;
    check_hash(hash, &current.call_hash)?;
    request.call_hash = current.call_hash.clone();
    if !output.json {
        show::call(&current, output);
    }
    let decided = client.decide_approval(request).await?.approval;
    let decided = decided.ok_or_else(|| Error::internal("the server sent no approval"))?;
    if output.json {
        output.json_line(&json::approval(&decided));
        return Ok(Exit::Ok);
    }
    let sink = output.out;
    sink.line("");
    sink.line(&format!("{}: the run continues", render::paint_state(sink, &decided.state)));
    output.note(&format!("  watch:  remuda watch {}", one_line(&decided.run_id)));
    Ok(Exit::Ok)
}

fn check_hash(expected: &str, found: &str) -> Result<()> {
    if expected.is_empty() {
        return Ok(());
    }
    if expected.len() < MIN_HASH_CHARS {
        return Err(Error::invalid(
            "hash",
            format!("expected at least {MIN_HASH_CHARS} characters of the hash"),
        ));
    }
    if found.starts_with(&expected.to_lowercase()) {
        return Ok(());
    }
    let message = "the call has another hash: show the approval again";
    Err(Error::new(Code::ApprovalChanged, message).at("hash"))
}

/// The JSON text itself, or the content of a file.
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
    fn hash_must_match_the_current_call() {
        let found = "0123456789abcdef";
        assert!(check_hash("", found).is_ok());
        assert!(check_hash("01234567", found).is_ok() && check_hash("0123456789ABCDEF", found).is_ok());
        assert_eq!(check_hash("0123", found).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(check_hash("fedcba98", found).unwrap_err().code(), Code::ApprovalChanged);
    }

    #[test]
    fn input_is_read_from_the_argument_or_a_file() {
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
