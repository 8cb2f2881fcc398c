//! `remuda sessions show`: shows one session and its messages.

use std::collections::VecDeque;

use remuda_client::Client;
use remuda_domain::{Error, error::Result, page::PageRequest};
use remuda_proto::v1;

use super::header;
use crate::{
    client::{
        conversation::{Length, Transcript},
        exit::Exit,
        json,
    },
    output::Output,
};

#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    #[arg(value_name = "SESSION")]
    session: String,
    /// Show only the last COUNT messages.
    #[arg(long, short = 'n', value_name = "COUNT")]
    tail: Option<usize>,
    /// Show tool results and reasoning in full.
    #[arg(long)]
    full: bool,
}

pub(super) async fn show(args: ShowArgs, client: &Client, output: Output) -> Result<Exit> {
    let request = v1::GetSessionRequest { session: args.session.clone() };
    let session = client.get_session(request).await?.session;
    let mut session = session.ok_or_else(|| Error::internal("the server sent no session"))?;
    let mut transcript = Transcript::new(output.out, if args.full { Length::Full } else { Length::Short });
    if output.json {
        output.json_line(&json::session(&session));
    } else {
        if let Some(workspace) = workspace(&session.workspace_id, client).await {
            session.workspace_id = format!("{} ({})", workspace.name, workspace.root);
        }
        header(session, output);
        output.out.line("");
    }
    let mut show = |message: &v1::Message| {
        if output.json {
            output.json_line(&json::message(message));
        } else {
            transcript.show(message);
        }
    };
    let mut newest = VecDeque::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListMessagesRequest {
            session: args.session.clone(),
            page_size: i32::try_from(PageRequest::MAX_SIZE).unwrap_or(i32::MAX),
            page_token,
        };
        let page = client.list_messages(request).await?;
        match args.tail {
            None => page.messages.iter().for_each(&mut show),
            Some(count) => {
                newest.extend(page.messages);
                newest.drain(..newest.len().saturating_sub(count));
            }
        }
        if page.next_page_token.is_empty() {
            break;
        }
        page_token = page.next_page_token;
    }
    newest.iter().for_each(show);
    transcript.finish();
    Ok(Exit::Ok)
}

/// The workspace with that id, if it can be found.
async fn workspace(id: &str, client: &Client) -> Option<v1::Workspace> {
    let mut page_token = String::new();
    // With more workspaces than this, the id is shown instead of the name.
    for _ in 0..10 {
        let request = v1::ListWorkspacesRequest { page_size: 0, page_token };
        let page = client.list_workspaces(request).await.ok()?;
        if let Some(found) = page.workspaces.into_iter().find(|workspace| workspace.id == id) {
            return Some(found);
        }
        if page.next_page_token.is_empty() {
            return None;
        }
        page_token = page.next_page_token;
    }
    None
}
