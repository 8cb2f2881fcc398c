//! `remuda webhooks`: events sent to a URL.

mod dead;
mod show;

use remuda_client::Client;
use remuda_domain::{Error, error::Result};
use remuda_proto::{convert, v1};

use super::{exit::Exit, json, pages::PageArgs, render};
use crate::output::{Output, Style, Table, ago, one_line};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda webhooks create https://ci.example/hook --session s1          everything that happens in s1 from now on
  remuda webhooks create https://ci.example/hook --session s1 --type 'run.*' --type approval.requested
  remuda webhooks create https://ci.example/hook --run run_01k9…       one run, from its beginning to its end
  remuda webhooks test whk_01k9…                what does the receiver answer?
  remuda webhooks list --session s1
  remuda webhooks show whk_01k9…                where it stands, and what the last attempt failed of
  remuda webhooks dead-letters whk_01k9…        what was given up
  remuda webhooks redeliver whk_01k9… --all     the receiver works again: send it
  remuda webhooks rotate whk_01k9…              another secret; both sign for a day

Deliveries are signed (Standard Webhooks: webhook-id, webhook-timestamp, webhook-signature). The secret is shown when it is made
and never again. An event is delivered at least once, in order; what fails is tried again after 5 s, 10 s, 20 s … and goes to the
dead letters after 12 attempts. A receiver that answers 410 is left alone until `remuda webhooks enable`. Receivers on private
addresses must be allowed by the operator (webhooks.allowed). docs/webhooks.md shows how to check signatures.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum WebhooksCommand {
    /// Send events of a session, or of one run, to a URL.
    ///
    /// Prints the secret that deliveries are signed with. It is not shown again.
    Create {
        /// Where to send them: https://…
        url: String,
        /// Tell what happens in this session from now on (name or id).
        #[arg(
            long,
            short,
            value_name = "NAME_OR_ID",
            required_unless_present = "run",
            conflicts_with = "run"
        )]
        session: Option<String>,
        /// Tell what happened and happens in this run, up to its end.
        #[arg(long, value_name = "RUN_ID")]
        run: Option<String>,
        /// Only events of this type, such as run.completed, or of this kind, such as 'run.*'. May be repeated.
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<String>,
    },
    /// List webhooks, newest first.
    List {
        /// Only those of this session (name or id).
        #[arg(long, short, value_name = "NAME_OR_ID")]
        session: Option<String>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Show where a webhook stands.
    Show {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// Delete a webhook with its dead letters.
    Delete {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// Let deliveries go on where they stopped.
    Enable {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// Stop deliveries. What happens meanwhile is delivered once it is enabled again.
    Disable {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// Make another secret. For a day deliveries are signed with both.
    Rotate {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// Send an event of the type webhook.test, once, and say what the receiver answers.
    Test {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
    },
    /// List events that were given up, newest first.
    DeadLetters {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Deliver dead letters again, with all attempts anew.
    Redeliver {
        #[arg(value_name = "WEBHOOK_ID")]
        webhook: String,
        /// Which one.
        #[arg(value_name = "DELIVERY_ID", required_unless_present = "all")]
        letter: Option<String>,
        /// All of them.
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
            let answer = client.create_webhook(request).await?;
            show::with_secret(&expect(answer.webhook)?, &answer.secret, output);
        }
        WebhooksCommand::List { session, pages } => {
            return list(session.unwrap_or_default(), pages, client, output).await;
        }
        WebhooksCommand::Show { webhook } => {
            let request = v1::GetWebhookRequest { webhook_id: webhook };
            show::webhook(&expect(client.get_webhook(request).await?.webhook)?, output);
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
            let answer = client.rotate_webhook_secret(request).await?;
            show::with_secret(&expect(answer.webhook)?, &answer.secret, output);
        }
        WebhooksCommand::Test { webhook } => {
            let answer = client.test_webhook(v1::TestWebhookRequest { webhook_id: webhook }).await?;
            return Ok(show::test(&answer, output));
        }
        WebhooksCommand::DeadLetters { webhook, pages } => {
            return dead::list(webhook, pages, client, output).await;
        }
        WebhooksCommand::Redeliver { webhook, letter, all: _ } => {
            dead::redeliver(webhook, letter.unwrap_or_default(), client, output).await?;
        }
    }
    Ok(Exit::Ok)
}

fn expect(webhook: Option<v1::Webhook>) -> Result<v1::Webhook> {
    webhook.ok_or_else(|| Error::internal("the server sent no webhook"))
}

async fn enable(webhook_id: String, enabled: bool, client: &Client, output: Output) -> Result<()> {
    let answer = client.enable_webhook(v1::EnableWebhookRequest { webhook_id, enabled }).await?;
    show::webhook(&expect(answer.webhook)?, output);
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
        let of = if webhook.run_id.is_empty() { webhook.session_id.clone() } else { webhook.run_id.clone() };
        table.row([
            (webhook.id.clone(), Some(Style::Bold)),
            (webhook.state.clone(), style),
            (webhook.url.clone(), None),
            (show::types(&webhook), None),
            (webhook.cursor.to_string(), None),
            (webhook.attempts.to_string(), (webhook.attempts > 0).then_some(Style::Warn)),
            (webhook.dead_letters.to_string(), (webhook.dead_letters > 0).then_some(Style::Bad)),
            (delivered.map_or_else(|| "never".to_owned(), |at| ago(at, now)), None),
            (of, Some(Style::Dim)),
        ]);
    };
    let more = pages.each(fetch, show).await?;
    if output.json {
        return Ok(Exit::Ok);
    }
    if found == 0 {
        output.note("there is none; `remuda webhooks create URL --session NAME` makes one");
        return Ok(Exit::Ok);
    }
    table.print();
    if more {
        output.note("there are more: use --limit or --all");
    }
    Ok(Exit::Ok)
}
