//! Prints a webhook.

use remuda_proto::{convert, v1};

use crate::{
    client::{exit::Exit, json, render},
    output::{Output, Style, ago, one_line},
};

pub(super) fn types(webhook: &v1::Webhook) -> String {
    if webhook.types.is_empty() { "all".to_owned() } else { webhook.types.join(" ") }
}

pub(super) fn webhook(webhook: &v1::Webhook, output: Output) {
    if output.json {
        output.json_line(&json::webhook(webhook));
    } else {
        fields(webhook, output);
    }
}

/// Prints a webhook with its secret, which no other command shows.
pub(super) fn with_secret(webhook: &v1::Webhook, secret: &str, output: Output) {
    if output.json {
        let mut document = json::webhook(webhook);
        document["secret"] = secret.into();
        return output.json_line(&document);
    }
    fields(webhook, output);
    let sink = output.out;
    sink.line(&format!("  {} {}", sink.paint(Style::Dim, "secret    "), one_line(secret)));
    output.note("save the secret: it is not shown again, and receivers need it to check signatures");
}

fn fields(webhook: &v1::Webhook, output: Output) {
    let (sink, now) = (output.out, chrono::Utc::now());
    let state = render::paint_state(sink, &webhook.state);
    sink.line(&format!("{}  {state}", sink.paint(Style::Bold, &one_line(&webhook.id))));
    let field = |name: &str, value: &str| {
        if !value.is_empty() {
            sink.line(&format!("  {} {}", sink.paint(Style::Dim, &format!("{name:10}")), one_line(value)));
        }
    };
    let when = |at: &Option<_>| at.as_ref().and_then(convert::from_timestamp).map(|at| ago(at, now));
    field("url", &webhook.url);
    field("types", &types(webhook));
    field("session", &webhook.session_id);
    field("run", &webhook.run_id);
    field("cursor", &webhook.cursor.to_string());
    field("delivered", &when(&webhook.delivered_at).unwrap_or_else(|| "never".to_owned()));
    if webhook.attempts > 0 {
        let next = webhook.next_attempt_at.as_ref().and_then(convert::from_timestamp);
        let next = next.map(|at| format!(", next at {}", at.format("%H:%M:%S UTC"))).unwrap_or_default();
        field("failed", &format!("{} attempts{next}", webhook.attempts));
    }
    if let Some(failure) = &webhook.last_failure {
        field("failure", &failure.message);
    }
    if webhook.dead_letters > 0 {
        let dropped = match webhook.dropped_dead_letters {
            0 => String::new(),
            dropped => format!(", {dropped} older ones were dropped"),
        };
        field("dead", &format!("{} letters{dropped}", webhook.dead_letters));
    }
    match webhook.state.as_str() {
        "disabled" => output.note("  enable:    remuda webhooks enable ID"),
        _ if webhook.dead_letters > 0 => output.note("  redeliver: remuda webhooks redeliver ID --all"),
        _ => {}
    }
}

pub(super) fn test(response: &v1::TestWebhookResponse, output: Output) -> Exit {
    let exit = if response.accepted { Exit::Ok } else { Exit::RunFailed };
    if output.json {
        output.json_line(&json::webhook_test(response));
        return exit;
    }
    let took = response.duration.and_then(|duration| std::time::Duration::try_from(duration).ok());
    let took = format!("after {} ms", took.unwrap_or_default().as_millis());
    let sink = output.out;
    match &response.failure {
        None => {
            sink.line(&format!("{} {} {took}", sink.paint(Style::Good, "accepted with"), response.status))
        }
        Some(failure) => {
            let failed = sink.paint(Style::Bad, "not accepted:");
            sink.line(&format!("{failed} {} {took}", one_line(&failure.message)));
        }
    }
    exit
}
