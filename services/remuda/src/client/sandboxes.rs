//! `remuda sandboxes list`: lists the sandboxes that the server knows.

use remuda_client::Client;
use remuda_domain::error::Result;
use remuda_proto::{convert, v1};

use super::{exit::Exit, json};
use crate::output::{Output, Style, Table, ago};

/// Characters shown of a container id.
const HANDLE_CHARS: usize = 12;

pub(crate) async fn list(client: &Client, output: Output) -> Result<Exit> {
    let sandboxes = client.list_sandboxes(v1::ListSandboxesRequest {}).await?.sandboxes;
    if output.json {
        sandboxes.iter().for_each(|sandbox| output.json_line(&json::sandbox(sandbox)));
        return Ok(Exit::Ok);
    }
    if sandboxes.is_empty() {
        output.note("there are no sandboxes; sessions with backend local do not use any");
        return Ok(Exit::Ok);
    }
    let now = chrono::Utc::now();
    let header = ["SANDBOX", "STATE", "SESSION", "IMAGE", "CONTAINER", "WORKER", "USED"];
    let mut table = Table::new(output.out, &header);
    for sandbox in sandboxes {
        let used = sandbox.used_at.as_ref().and_then(convert::from_timestamp);
        let (state, style) =
            if sandbox.worker_alive { (sandbox.state, None) } else { ("lost".to_owned(), Some(Style::Bad)) };
        table.row([
            (sandbox.id, Some(Style::Bold)),
            (state, style),
            (sandbox.session_id, None),
            (sandbox.image, None),
            (sandbox.handle.chars().take(HANDLE_CHARS).collect(), None),
            (sandbox.worker_id, Some(Style::Dim)),
            (used.map(|at| ago(at, now)).unwrap_or_default(), None),
        ]);
    }
    table.print();
    Ok(Exit::Ok)
}
