//! `remuda webhooks dead-letters` and `redeliver`.

use remuda_client::Client;
use remuda_domain::error::Result;
use remuda_proto::{convert, v1};

use crate::{
    client::{exit::Exit, json, pages::PageArgs},
    output::{Output, Style, Table, ago},
};

pub(super) async fn list(
    webhook_id: String,
    pages: PageArgs,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    let fetch = |page_size, page_token| {
        let request = v1::ListDeadLettersRequest { webhook_id: webhook_id.clone(), page_size, page_token };
        async {
            client.list_dead_letters(request).await.map(|page| (page.dead_letters, page.next_page_token))
        }
    };
    let now = chrono::Utc::now();
    let header = ["DELIVERY", "EVENT", "CURSOR", "ATTEMPTS", "FAILURE", "GIVEN UP", "REDELIVERY", "RUN"];
    let (mut table, mut found) = (Table::new(output.out, &header), 0);
    let show = |letter: v1::DeadLetter| {
        found += 1;
        if output.json {
            return output.json_line(&json::dead_letter(&letter));
        }
        let died = letter.died_at.as_ref().and_then(convert::from_timestamp);
        let redelivery = if letter.next_attempt_at.is_some() { "pending" } else { "" };
        table.row([
            (letter.id, Some(Style::Bold)),
            (letter.event_type, None),
            (letter.cursor.to_string(), None),
            (letter.attempts.to_string(), None),
            (letter.failure.unwrap_or_default().message, None),
            (died.map(|at| ago(at, now)).unwrap_or_default(), None),
            (redelivery.to_owned(), Some(Style::Accent)),
            (letter.run_id, Some(Style::Dim)),
        ]);
    };
    let more = pages.each(fetch, show).await?;
    if output.json {
        return Ok(Exit::Ok);
    }
    if found == 0 {
        output.note("there are no dead letters");
        return Ok(Exit::Ok);
    }
    table.print();
    if more {
        output.note("there are more: use --limit or --all");
    }
    Ok(Exit::Ok)
}

pub(super) async fn redeliver(
    webhook_id: String,
    delivery_id: String,
    client: &Client,
    output: Output,
) -> Result<()> {
    let response = client.redeliver(v1::RedeliverRequest { webhook_id, delivery_id }).await?;
    if output.json {
        output.json_line(&serde_json::json!({ "count": response.count }));
    } else {
        output.out.line(&match response.count {
            0 => "there is no dead letter to deliver again".to_owned(),
            1 => "1 dead letter will be delivered again".to_owned(),
            count => format!("{count} dead letters will be delivered again, oldest first"),
        });
    }
    Ok(())
}
