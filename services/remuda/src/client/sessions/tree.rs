//! `remuda sessions tree`: shows a session and its child sessions.

use std::collections::HashSet;

use remuda_client::Client;
use remuda_domain::{Error, error::Result, page::PageRequest};
use remuda_proto::v1;

use crate::{
    client::{exit::Exit, json, render, spending},
    output::{Output, Sink, Style, one_line},
};

/// Limit of sessions shown; for larger trees, show a subtree.
const MAX_SESSIONS: usize = 500;
const MAX_TITLE_CHARS: usize = 60;

/// A session with the state of its newest run.
struct Node {
    session: v1::Session,
    newest_run: Option<v1::Run>,
}

/// A session that is still to be shown, and its position in the tree.
struct TreePosition {
    id: String,
    /// For each level: whether another sibling follows.
    has_next: Vec<bool>,
}

pub(super) async fn tree(session: String, client: &Client, output: Output) -> Result<Exit> {
    let (mut seen, mut cut) = (HashSet::new(), false);
    let mut stack = vec![TreePosition { id: session, has_next: Vec::new() }];
    while let Some(position) = stack.pop() {
        let node = node(position.id, client).await?;
        if !seen.insert(node.session.id.clone()) {
            continue;
        }
        if output.json {
            output.json_line(&to_json(&node));
        } else {
            output.out.line(&line(output.out, &position.has_next, &node));
        }
        let children = children(&node.session.id, client).await?;
        let last = children.len().saturating_sub(1);
        // The stack pops from the end, so push the first child last.
        for (index, child) in children.into_iter().enumerate().rev() {
            if seen.len() + stack.len() >= MAX_SESSIONS {
                cut = true;
                break;
            }
            let has_next = [position.has_next.as_slice(), &[index < last]].concat();
            stack.push(TreePosition { id: child, has_next });
        }
    }
    if cut {
        output
            .note(&format!("there are more than {MAX_SESSIONS} sessions: show the tree of a child session"));
    }
    Ok(Exit::Ok)
}

async fn node(session: String, client: &Client) -> Result<Node> {
    let found = client.get_session(v1::GetSessionRequest { session }).await?.session;
    let session = found.ok_or_else(|| Error::internal("the server sent no session"))?;
    let request = v1::ListRunsRequest { session: session.id.clone(), page_size: 1, ..Default::default() };
    let newest_run = client.list_runs(request).await?.runs.into_iter().next();
    Ok(Node { session, newest_run })
}

async fn children(session: &str, client: &Client) -> Result<Vec<String>> {
    let (mut found, mut page_token) = (Vec::new(), String::new());
    while found.len() <= MAX_SESSIONS {
        let request = v1::ListChildSessionsRequest {
            session: session.to_owned(),
            page_size: i32::try_from(PageRequest::MAX_SIZE).unwrap_or(i32::MAX),
            page_token,
        };
        let page = client.list_child_sessions(request).await?;
        found.extend(page.sessions.into_iter().map(|session| session.id));
        if page.next_page_token.is_empty() {
            break;
        }
        page_token = page.next_page_token;
    }
    Ok(found)
}

/// The state of the session, which is that of its newest run.
fn state(node: &Node) -> String {
    match &node.newest_run {
        Some(run) if !run.park_reason.is_empty() => format!("parked ({})", run.park_reason),
        Some(run) => json::state_name(run.state).to_owned(),
        None => "no run yet".to_owned(),
    }
}

fn line(sink: Sink, has_next: &[bool], node: &Node) -> String {
    let session = &node.session;
    let mut text = String::new();
    if let Some((last, above)) = has_next.split_last() {
        above.iter().for_each(|has_next| text.push_str(if *has_next { "│  " } else { "   " }));
        text.push_str(if *last { "├─ " } else { "└─ " });
        text = sink.paint(Style::Dim, &text);
    }
    let agent = if session.agent.is_empty() { "default agent" } else { &session.agent };
    text.push_str(&sink.paint(Style::Bold, &one_line(agent)));
    let name = if session.name.is_empty() { &session.id } else { &session.name };
    text.push_str(&format!("  {}  {}", one_line(name), painted_state(sink, node)));
    let spent = spending::summary(session.spent.as_ref());
    if !spent.is_empty() {
        text.push_str(&format!("  {}", sink.paint(Style::Dim, &spent)));
    }
    let tree = spending::tree_summary(session.spent.as_ref(), session.tree_spent.as_ref());
    if !tree.is_empty() {
        text.push_str(&sink.paint(Style::Dim, &format!(" (with child sessions: {tree})")));
    }
    let title: String = one_line(&session.title).chars().take(MAX_TITLE_CHARS).collect();
    if !title.is_empty() {
        text.push_str(&format!("  {title}"));
    }
    text
}

fn painted_state(sink: Sink, node: &Node) -> String {
    let state = state(node);
    let word = state.split(' ').next().unwrap_or_default();
    match render::state_style(word) {
        Some(style) => sink.paint(style, &state.replace('_', " ")),
        None => state,
    }
}

fn to_json(node: &Node) -> serde_json::Value {
    let mut document = json::session(&node.session);
    if let Some(run) = &node.newest_run {
        document["newest_run"] = serde_json::json!({ "id": run.id, "state": json::state_name(run.state) });
        if !run.park_reason.is_empty() {
            document["newest_run"]["park_reason"] = run.park_reason.as_str().into();
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use remuda_domain::RunState;

    use super::*;
    use crate::output::ColorChoice;

    #[test]
    fn tree_shows_parents_and_children() {
        let sink = Output::new(false, ColorChoice::Never).out;
        let session = v1::Session {
            id: "ses_1".into(),
            agent: "explore".into(),
            title: "look around".into(),
            ..Default::default()
        };
        let state = v1::RunState::from(RunState::Parked).into();
        let run = v1::Run { state, park_reason: "approval".into(), ..Default::default() };
        let node = Node { session, newest_run: Some(run) };
        let shown = |has_next: &[bool]| line(sink, has_next, &node);
        assert_eq!(shown(&[]), "explore  ses_1  parked (approval)  look around");
        assert_eq!(shown(&[true]), "├─ explore  ses_1  parked (approval)  look around");
        assert_eq!(shown(&[true, false]), "│  └─ explore  ses_1  parked (approval)  look around");
        let node = Node { newest_run: None, ..node };
        assert_eq!(line(sink, &[false, true], &node), "   ├─ explore  ses_1  no run yet  look around");
    }
}
