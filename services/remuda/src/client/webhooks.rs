//! `remuda webhooks`: manages webhooks and their dead letters.

mod dead_letters;
mod show;

use remuda_client::Client;
use remuda_domain::{Error, error::Result};
use remuda_proto::{convert, v1};

use super::{exit::Exit, json, pages::PageArgs, render};
use crate::output::{Output, Style, Table, ago, one_line};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda webhooks create https://ci.example/hook --session s1          all events of s1 from now on
  remuda webhooks create https://ci.example/hook --session s1 --type 'run.*' --type approval.requested
  remuda webhooks create https://ci.example/hook --run run_01k9…       all events of one run
  remuda webhooks test whk_01k9…                send a test event and show the response
  remuda webhooks list --session s1
  remuda webhooks show whk_01k9…                position and last failure
  remuda webhooks dead-letters whk_01k9…        events that could not be delivered
  remuda webhooks redeliver whk_01k9… --all     deliver all dead letters again
  remuda webhooks rotate whk_01k9…              create a new secret; both are used for a day

Deliveries are signed (Standard Webhooks: webhook-id, webhook-timestamp, webhook-signature). The secret is shown only when it is
created. Events are delivered at least once and in order. A failed delivery is retried after 5 s, 10 s, 20 s and so on, and becomes
a dead letter after 12 attempts. If the receiver answers 410, the webhook is disabled until `remuda webhooks enable`. Receivers on
private addresses must be allowed by the operator (webhooks.allowed). docs/webhooks.md shows how to check signatures.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum WebhooksCommand {
    /// Create a webhook that sends the events of a session, or of one run, to a URL.
    ///
    /// Prints the secret that signs the deliveries. It is not shown again.
    Create {
        /// URL of the receiver: https://…
        url: String,
        /// Send the events of this session from now on (name or id).
        #[arg(
            long,
            short,
            value_name = "NAME_OR_ID",
            required_unless_present = "run",
            conflicts_with = "run"
        )]
        session: Option<String>,
        /// Send all events of this run, past and future.
        #[arg(long, value_name = "RUN_ID")]
        run: Option<String>,
        /// Only events of this type, such as run.completed, or of a group of types, such as 'run.*'. May be repeated.
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<String>,
    },
    /// List webhooks, newest first.
    List {
        /// Only webhooks of this session (name or id).
        #[arg(long, short, value_name = "NAME_OR_ID")]
        session: Option<String>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Show the state of a webhook.
    Show {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// Delete a webhook and its dead letters.
    Delete {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// Resume deliveries where they stopped.
    Enable {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// Pause deliveries. Events are kept and delivered after the webhook is enabled again.
    Disable {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// Create a new secret. For a day, deliveries are signed with both the old and the new one.
    Rotate {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// Send one event of type webhook.test and show the response.
    Test {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// List events that could not be delivered, newest first.
    DeadLetters {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Deliver dead letters again, with a full set of attempts.
    Redeliver {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
        /// Dead letter to deliver again.
        #[arg(value_name = "DELIVERY_ID", required_unless_present = "all")]
        letter: Option<String>,
        /// Deliver all dead letters again.
        #[arg(long, conflicts_with = "letter")]
        all: bool,
    },
}

pub(super) async fn execute(command: WebhooksCommand, client: &Client, output: Output) -> Result<Exit> {
    match command {
        WebhooksCommand::Create { url, session, run, types } => {
            let request = v1::CreateWebhookRequest {
                session: session.unwrap_or_default(),
                run_id: run.unwrap_or_default(),
                url,
                types,
            };
            let response = client.create_webhook(request).await?;
            show::with_secret(&require(response.webhook)?, &response.secret, output);
        }
        WebhooksCommand::List { session, pages } => {
            return list(session.unwrap_or_default(), pages, client, output).await;
        }
        WebhooksCommand::Show { webhook } => {
            let request = v1::GetWebhookRequest { webhook_id: webhook };
            show::webhook(&require(client.get_webhook(request).await?.webhook)?, output);
        }
        WebhooksCommand::Delete { webhook } => {
            client.delete_webhook(v1::DeleteWebhookRequest { webhook_id: webhook.clone() }).await?;
            if !output.json {
                output.out.line(&format!("{} is deleted", one_line(&webhook)));
            }
        }
        WebhooksCommand::Enable { webhook } => enable(webhook, true, client, output).await?,
        WebhooksCommand::Disable { webhook } => enable(webhook, false, client, output).await?,
        WebhooksCommand::Rotate { webhook } => {
            let request = v1::RotateWebhookSecretRequest { webhook_id: webhook };
            let response = client.rotate_webhook_secret(request).await?;
            show::with_secret(&require(response.webhook)?, &response.secret, output);
        }
        WebhooksCommand::Test { webhook } => {
            let response = client.test_webhook(v1::TestWebhookRequest { webhook_id: webhook }).await?;
            return Ok(show::test(&response, output));
        }
        WebhooksCommand::DeadLetters { webhook, pages } => {
            return dead_letters::list(webhook, pages, client, output).await;
        }
        WebhooksCommand::Redeliver { webhook, letter, all: _ } => {
            dead_letters::redeliver(webhook, letter.unwrap_or_default(), client, output).await?;
        }
    }
    Ok(Exit::Ok)
}

fn require(webhook: Option<v1::Webhook>) -> Result<v1::Webhook> {
    webhook.ok_or_else(|| Error::internal("the server sent no webhook"))
}

async fn enable(webhook_id: String, enabled: bool, client: &Client, output: Output) -> Result<()> {
    let response = client.enable_webhook(v1::EnableWebhookRequest { webhook_id, enabled }).await?;
    show::webhook(&require(response.webhook)?, output);
    Ok(())
}

async fn list(session: String, pages: PageArgs, client: &Client, output: Output) -> Result<Exit> {
    let fetch = |page_size, page_token| {
        let request = v1::ListWebhooksRequest { session: session.clone(), page_size, page_token };
        async { client.list_webhooks(request).await.map(|page| (page.webhooks, page.next_page_token)) }
    };
    let now = chrono::Utc::now();
    let header = ["WEBHOOK", "STATE", "URL", "TYPES", "CURSOR", "FAILED", "DEAD", "DELIVERED", "OF"];
    let (mut table, mut found) = (Table::new(output.out, &header), 0);
    let show = |webhook: v1::Webhook| {
        found += 1;
        if output.json {
            return output.json_line(&json::webhook(&webhook));
        }
        let delivered = webhook.delivered_at.as_ref().and_then(convert::from_timestamp);
        let style = render::state_style(&webhook.state);
        let source =
            if webhook.run_id.is_empty() { webhook.session_id.clone() } else { webhook.run_id.clone() };
        table.row([
            (webhook.id.clone(), Some(Style::Bold)),
            (webhook.state.clone(), style),
            (webhook.url.clone(), None),
            (show::types(&webhook), None),
            (webhook.cursor.to_string(), None),
            (webhook.attempts.to_string(), (webhook.attempts > 0).then_some(Style::Warn)),
            (webhook.dead_letters.to_string(), (webhook.dead_letters > 0).then_some(Style::Bad)),
            (delivered.map_or_else(|| "never".to_owned(), |at| ago(at, now)), None),
            (source, Some(Style::Dim)),
        ]);
    };
    let more = pages.each(fetch, show).await?;
    if output.json {
        return Ok(Exit::Ok);
    }
    if found == 0 {
        output.note("there are no webhooks; `remuda webhooks create URL --session NAME` creates one");
        return Ok(Exit::Ok);
    }
    table.print();
    if more {
        output.note("there are more: use --limit or --all");
    }
    Ok(Exit::Ok)
}
