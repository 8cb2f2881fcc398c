//! Conversations that are longer than the model's window.

use remuda_domain::{
    EventBody, RunState,
    message::{Part, Role},
    step::{ModelRequest, Purpose, SentMessages},
};

use crate::harness::Harness;

const STEPS: usize = 500;

/// Reads a file line by line, and summarizes when requested.
fn reading_scenario(summary_turn: &str) -> String {
    format!(
        "conversations:\n  - {{ on: {{ system_contains: You sum up }}, turns: [{{ {summary_turn} }}] }}\n\
         turns:\n  - when: {{ may_call: true }}\n    say: I read on.\n    repeat: {STEPS}\n    call: \
         [{{ tool: Grep, arguments: {{ pattern: \"page {{{{turn}}}}[0-9]?:\", path: book, output_mode: content }} }}]\notherwise: {{ say: The end. }}\n"
    )
}

async fn harness(window: u64, scenario: &str) -> Harness {
    let harness = Harness::new(scenario).await;
    let page = |n| {
        format!("page {n}: It was a dark and stormy night, and the rain fell on the roofs of the town.\n")
    };
    harness.write("book", &(0..STEPS).map(page).collect::<String>());
    harness.write(
        ".openharness/models/m.yaml",
        &format!("m: {{ provider: scripted, name: ../scenario.yaml, context_window: {window}, max_output_tokens: 500 }}\n"),
    );
    harness
}

/// The size of the sent messages, in characters.
async fn size(harness: &Harness, request: &ModelRequest) -> usize {
    let rebuilt = harness.sent_messages(request).await;
    let cleared: u32 = request
        .messages
        .iter()
        .map(|sent| if let SentMessages::Cleared { count, .. } = sent { *count } else { 0 })
        .sum();
    let whole: usize = rebuilt.iter().map(|it| serde_json::to_string(&it.parts).unwrap().len()).sum();
    // Only a note was sent of a cleared message.
    whole.saturating_sub(cleared as usize * 600)
}

#[tokio::test]
async fn five_hundred_steps_in_a_small_window_stay_bounded() {
    let harness =
        harness(8_000, &reading_scenario("say: \"Pages were read, and none was surprising.\"")).await;
    harness.write_agent(&format!("policy: {{ max_steps: {} }}", STEPS + 1));
    let run = harness.run_message("Read the book.").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("The end.")),
        "{:?}",
        run.failure
    );
    assert_eq!(run.outcomes.len(), STEPS);

    let requests = harness.requests(run.id).await;
    let (summaries, model_calls): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|request| request.purpose == Purpose::Summary);
    assert_eq!(model_calls.len(), STEPS + 1);
    assert!(summaries.len() > 3, "{} summaries", summaries.len());
    let compacted = harness.events().await.into_iter().filter_map(|event| match event.body {
        EventBody::ContextCompacted { tokens_before, tokens_after, .. } => {
            Some((tokens_before, tokens_after))
        }
        _ => None,
    });
    let compacted: Vec<_> = compacted.collect();
    assert_eq!(compacted.len(), summaries.len());
    assert!(compacted.iter().all(|(before, after)| after < before && *before < 8_000), "{compacted:?}");
    // Every tenth, because this is slow. Four characters are a token or less.
    for request in model_calls.iter().step_by(10) {
        let size = size(&harness, request).await;
        assert!(size < 4 * 8_000, "{size} characters were sent");
    }
    // The transcript has everything: the user message, a response with its result for each step, the summaries, and
    // the last response.
    let messages = harness.messages().await;
    assert_eq!(messages.len(), 1 + 2 * STEPS + summaries.len() + 1);
    let summaries_stored: Vec<_> = messages.iter().filter(|it| it.role == Role::System).collect();
    assert!(summaries_stored.iter().all(
        |it| matches!(&it.parts[0], Part::Summary { text, .. } if text.contains("none was surprising"))
    ));
    harness.assert_results_complete().await;
    // The next run continues from the newest summary.
    harness.write_scenario("otherwise: { say: \"I remember: {{user}}\" }");
    let next = harness.run_message("And?").await;
    assert_eq!(next.state, RunState::Completed, "{:?}", next.failure);
}

#[tokio::test]
async fn failed_summaries_do_not_stop_the_run() {
    let harness = harness(6_000, &reading_scenario("fail: { status: 500, retry: false }, say: x")).await;
    harness.write_agent("policy: { max_steps: 60 }");
    let run = harness.run_message("Read the book.").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let summary_requests =
        harness.requests(run.id).await.into_iter().filter(|it| it.purpose == Purpose::Summary).count();
    assert!((1..=3).contains(&summary_requests), "{summary_requests} times a summary was asked for");
    let transcript = harness.transcript().await;
    assert!(transcript.iter().any(|line| line.contains("No model could sum this up")), "{transcript:?}");
    harness.assert_results_complete().await;
}

#[tokio::test]
async fn request_rejected_as_too_long_is_compacted_once() {
    let scenario = "turns:\n  - { when: { user_contains: summary }, say: \"Shorter now.\" }\n\
                    \x20 - { when: { turn: 1 }, fail: { status: 400, message: this model's maximum context length is 10 }, say: x }\n\
                    conversations:\n  - { on: { system_contains: You sum up }, turns: [{ say: \"We talked.\" }] }\n";
    let harness = harness(200_000, "otherwise: { say: fine }").await;
    for text in ["one", "two", "three", "four", "five"] {
        harness.run_message(text).await;
    }
    harness.write_scenario(scenario);
    let run = harness.run_message("six").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Shorter now.")),
        "{:?}",
        run.failure
    );
    assert!(harness.transcript().await.iter().any(|line| line.contains("We talked.")));
}

#[tokio::test]
async fn compaction_survives_a_crash_after_any_commit() {
    async fn start() -> Harness {
        let harness = harness(4_000, &reading_scenario("say: \"Read.\"")).await;
        harness.write_agent("policy: { max_steps: 25 }");
        harness
    }
    let whole = start().await;
    let run = whole.run_message("Read the book.").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let commits = whole.transport.published();
    let results =
        |transcript: &[String]| transcript.iter().filter(|line| line.starts_with("Grep completed")).count();
    let expected = results(&whole.transcript().await);
    for commit in (1..commits).step_by(3) {
        let harness = start().await;
        harness.submit("Read the book.").await;
        assert!(harness.killed_after_commit(commit).await);
        let run = harness.execute().await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        let transcript = harness.transcript().await;
        assert_eq!(results(&transcript), expected, "after commit {commit}");
        assert_eq!(
            transcript.iter().filter(|line| line.starts_with("user:")).count(),
            1,
            "after commit {commit}: {transcript:?}"
        );
        harness.assert_results_complete().await;
    }
}

#[tokio::test]
async fn long_result_is_stored_in_a_file() {
    let scenario = "turns:\n  - { when: { turn: 1 }, call: [{ tool: Grep, arguments: { pattern: rain, path: book, output_mode: content, head_limit: 5000 } }] }\n\
                    otherwise: { say: \"{{last_tool_result}}\" }";
    let harness = Harness::new(scenario).await;
    let line = "It was a dark and stormy night, and the rain fell in torrents on the roofs of the town.\n";
    harness.write("book", &line.repeat(3000));
    let run = harness.run_message("look").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let output = &run.outcomes[0].output;
    let text = output.to_string();
    assert!(text.len() < 70_000, "{} bytes", text.len());
    let path = output["artifacts"]["output"].as_str().unwrap_or_else(|| panic!("{text:.500}"));
    assert!(harness.read(path).lines().count() > 2000);
    assert!(run.answer.unwrap().contains(path));
}

/// The results of one response can exceed the whole window.
#[tokio::test]
async fn results_longer_than_the_window_are_truncated() {
    let calls: Vec<String> =
        (0..4).map(|n| format!("{{ tool: Read, arguments: {{ file_path: long{n} }} }}")).collect();
    let scenario = format!(
        "turns:\n  - {{ when: {{ turn: 1 }}, call: [{}] }}\notherwise: {{ say: \"Read all.\" }}",
        calls.join(", ")
    );
    let harness = harness(16_000, &scenario).await;
    for n in 0..4 {
        harness.write(&format!("long{n}"), &"A line of a long file.\n".repeat(1900));
    }
    let run = harness.run_message("Read them.").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Read all.")),
        "{:?}",
        run.failure
    );
    let last = harness.requests(run.id).await.pop().unwrap();
    let size = size(&harness, &last).await;
    assert!(size < 4 * 16_000, "{size} characters were sent");
    let inserted = last.messages.iter().any(|sent| matches!(sent, SentMessages::Given { .. }));
    assert!(inserted, "what was sent is recorded word for word");
    let kept = harness
        .transcript()
        .await
        .iter()
        .filter(|line| line.starts_with("Read completed"))
        .map(String::len)
        .sum::<usize>();
    assert!(kept > 4 * 35_000, "the transcript keeps it all");
}

#[tokio::test]
async fn workspace_settings_select_or_disable_the_summary_model() {
    for (settings, model, fallback) in [
        ("context: { model: fast }", Some("workspace/fast"), false),
        ("context: { summarize: false }", None, true),
    ] {
        let harness = harness(6_000, &reading_scenario("say: \"I sum up myself.\"")).await;
        harness.write_agent("policy: { max_steps: 60 }");
        harness.write(".openharness/settings.yaml", &format!("default_agent: tested\n{settings}\n"));
        harness.write_agent_with_model(
            "fast",
            "mode: subagent",
            "otherwise: { say: \"Quickly summed up.\" }",
        );
        let run = harness.run_message("Read the book.").await;
        assert_eq!(run.state, RunState::Completed, "{settings}: {:?}", run.failure);
        let requests = harness.requests(run.id).await;
        let summaries = requests.iter().filter(|it| it.purpose == Purpose::Summary);
        let models: Vec<String> = summaries.map(|it| it.model.to_string()).collect();
        assert_eq!(models.first().map(String::as_str), model, "{settings}");
        assert!(models.iter().all(|it| Some(it.as_str()) == model), "{settings}: {models:?}");
        let transcript = harness.transcript().await;
        let has = |text: &str| transcript.iter().any(|line| line.contains(text));
        assert_eq!(has("No model could sum this up"), fallback, "{settings}");
        assert_eq!(has("Quickly summed up."), !fallback, "{settings}");
    }
}
