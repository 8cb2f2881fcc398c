//! Conversations that are longer than a model's window.

use remuda_domain::{
    EventBody, RunState,
    message::{Part, Role},
    step::{ModelRequest, Purpose, Sent},
};

use crate::lab::Lab;

const STEPS: usize = 500;

/// Reads a file line by line, and sums up when it is asked to.
fn reader(sum_up: &str) -> String {
    format!(
        "conversations:\n  - {{ on: {{ system_contains: You sum up }}, turns: [{{ {sum_up} }}] }}\n\
         turns:\n  - when: {{ may_call: true }}\n    say: I read on.\n    repeat: {STEPS}\n    call: \
         [{{ tool: Grep, arguments: {{ pattern: \"page {{{{turn}}}}[0-9]?:\", path: book, output_mode: content }} }}]\notherwise: {{ say: The end. }}\n"
    )
}

async fn lab(window: u64, scenario: &str) -> Lab {
    let lab = Lab::new(scenario).await;
    let page = |n| {
        format!("page {n}: It was a dark and stormy night, and the rain fell on the roofs of the town.\n")
    };
    lab.write("book", &(0..STEPS).map(page).collect::<String>());
    lab.write(
        ".openharness/models/m.yaml",
        &format!("m: {{ provider: scripted, name: ../scenario.yaml, context_window: {window}, max_output_tokens: 500 }}\n"),
    );
    lab
}

/// What was sent, in characters.
async fn size(lab: &Lab, request: &ModelRequest) -> usize {
    let rebuilt = lab.rebuild(request).await;
    let cleared: u32 = request
        .messages
        .iter()
        .map(|sent| if let Sent::Cleared { count, .. } = sent { *count } else { 0 })
        .sum();
    let whole: usize = rebuilt.iter().map(|it| serde_json::to_string(&it.parts).unwrap().len()).sum();
    // Of a cleared message only a note was sent.
    whole.saturating_sub(cleared as usize * 600)
}

#[tokio::test]
async fn five_hundred_steps_in_a_small_window_stay_bounded_and_lose_nothing() {
    let lab = lab(8_000, &reader("say: \"Pages were read, and none was surprising.\"")).await;
    lab.write_agent(&format!("policy: {{ max_steps: {} }}", STEPS + 1));
    let run = lab.ask("Read the book.").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("The end.")),
        "{:?}",
        run.failure
    );
    assert_eq!(run.outcomes.len(), STEPS);

    let requests = lab.requests(run.id).await;
    let (summaries, questions): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|request| request.purpose == Purpose::Summary);
    assert_eq!(questions.len(), STEPS + 1);
    assert!(summaries.len() > 3, "{} summaries", summaries.len());
    let compacted = lab.events().await.into_iter().filter_map(|event| match event.body {
        EventBody::ContextCompacted { tokens_before, tokens_after, .. } => {
            Some((tokens_before, tokens_after))
        }
        _ => None,
    });
    let compacted: Vec<_> = compacted.collect();
    assert_eq!(compacted.len(), summaries.len());
    assert!(compacted.iter().all(|(before, after)| after < before && *before < 8_000), "{compacted:?}");
    // Every tenth, for this takes long: four characters are a token or less.
    for request in questions.iter().step_by(10) {
        let size = size(&lab, request).await;
        assert!(size < 4 * 8_000, "{size} characters were sent");
    }
    // The transcript has it all: the message, an answer with its result for each step, the summaries, and the last answer.
    let messages = lab.messages().await;
    assert_eq!(messages.len(), 1 + 2 * STEPS + summaries.len() + 1);
    let summed: Vec<_> = messages.iter().filter(|it| it.role == Role::System).collect();
    assert!(summed.iter().all(
        |it| matches!(&it.parts[0], Part::Summary { text, .. } if text.contains("none was surprising"))
    ));
    lab.assert_complete().await;
    // And the next message goes on from the newest summary.
    lab.write_scenario("otherwise: { say: \"I remember: {{user}}\" }");
    let next = lab.ask("And?").await;
    assert_eq!(next.state, RunState::Completed, "{:?}", next.failure);
}

#[tokio::test]
async fn a_model_that_cannot_sum_up_does_not_stop_the_run() {
    let lab = lab(6_000, &reader("fail: { status: 500, retry: false }, say: x")).await;
    lab.write_agent("policy: { max_steps: 60 }");
    let run = lab.ask("Read the book.").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let asked = lab.requests(run.id).await.into_iter().filter(|it| it.purpose == Purpose::Summary).count();
    assert!((1..=3).contains(&asked), "{asked} times a summary was asked for");
    let told = lab.transcript().await;
    assert!(told.iter().any(|line| line.contains("No model could sum this up")), "{told:?}");
    lab.assert_complete().await;
}

#[tokio::test]
async fn a_question_that_the_provider_finds_too_long_is_shortened_once() {
    let scenario = "turns:\n  - { when: { user_contains: summary }, say: \"Shorter now.\" }\n\
                    \x20 - { when: { turn: 1 }, fail: { status: 400, message: this model's maximum context length is 10 }, say: x }\n\
                    conversations:\n  - { on: { system_contains: You sum up }, turns: [{ say: \"We talked.\" }] }\n";
    let lab = lab(200_000, "otherwise: { say: fine }").await;
    for text in ["one", "two", "three", "four", "five"] {
        lab.ask(text).await;
    }
    lab.write_scenario(scenario);
    let run = lab.ask("six").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Shorter now.")),
        "{:?}",
        run.failure
    );
    assert!(lab.transcript().await.iter().any(|line| line.contains("We talked.")));
}

#[tokio::test]
async fn dying_after_any_commit_while_it_is_summed_up_changes_nothing() {
    async fn start() -> Lab {
        let lab = lab(4_000, &reader("say: \"Read.\"")).await;
        lab.write_agent("policy: { max_steps: 25 }");
        lab
    }
    let whole = start().await;
    let run = whole.ask("Read the book.").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let commits = whole.transport.published();
    let results = |told: &[String]| told.iter().filter(|line| line.starts_with("Grep completed")).count();
    let expected = results(&whole.transcript().await);
    for commit in (1..commits).step_by(3) {
        let lab = start().await;
        lab.submit("Read the book.").await;
        assert!(lab.die_after(commit).await);
        let run = lab.execute().await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        let told = lab.transcript().await;
        assert_eq!(results(&told), expected, "after commit {commit}");
        assert_eq!(
            told.iter().filter(|line| line.starts_with("user:")).count(),
            1,
            "after commit {commit}: {told:?}"
        );
        lab.assert_complete().await;
    }
}

#[tokio::test]
async fn a_long_result_is_kept_in_a_file() {
    let scenario = "turns:\n  - { when: { turn: 1 }, call: [{ tool: Grep, arguments: { pattern: rain, path: book, output_mode: content, head_limit: 5000 } }] }\n\
                    otherwise: { say: \"{{last_tool_result}}\" }";
    let lab = Lab::new(scenario).await;
    let line = "It was a dark and stormy night, and the rain fell in torrents on the roofs of the town.\n";
    lab.write("book", &line.repeat(3000));
    let run = lab.ask("look").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let output = &run.outcomes[0].output;
    let text = output.to_string();
    assert!(text.len() < 70_000, "{} bytes", text.len());
    let path = output["artifacts"]["output"].as_str().unwrap_or_else(|| panic!("{text:.500}"));
    assert!(lab.read(path).lines().count() > 2000);
    assert!(run.answer.unwrap().contains(path));
}

/// What one answer asks for can be more than the whole window.
#[tokio::test]
async fn results_that_are_longer_than_the_window_are_shortened() {
    let calls: Vec<String> =
        (0..4).map(|n| format!("{{ tool: Read, arguments: {{ file_path: long{n} }} }}")).collect();
    let scenario = format!(
        "turns:\n  - {{ when: {{ turn: 1 }}, call: [{}] }}\notherwise: {{ say: \"Read all.\" }}",
        calls.join(", ")
    );
    let lab = lab(16_000, &scenario).await;
    for n in 0..4 {
        lab.write(&format!("long{n}"), &"A line of a long file.\n".repeat(1900));
    }
    let run = lab.ask("Read them.").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Read all.")),
        "{:?}",
        run.failure
    );
    let last = lab.requests(run.id).await.pop().unwrap();
    let size = size(&lab, &last).await;
    assert!(size < 4 * 16_000, "{size} characters were sent");
    let given = last.messages.iter().any(|sent| matches!(sent, Sent::Given { .. }));
    assert!(given, "what was sent is recorded word for word");
    let kept = lab
        .transcript()
        .await
        .iter()
        .filter(|line| line.starts_with("Read completed"))
        .map(String::len)
        .sum::<usize>();
    assert!(kept > 4 * 35_000, "the transcript keeps it all");
}

#[tokio::test]
async fn a_workspace_says_who_sums_up_and_whether() {
    for (settings, model, fallback) in [
        ("context: { model: fast }", Some("workspace/fast"), false),
        ("context: { summarize: false }", None, true),
    ] {
        let lab = lab(6_000, &reader("say: \"I sum up myself.\"")).await;
        lab.write_agent("policy: { max_steps: 60 }");
        lab.write(".openharness/settings.yaml", &format!("default_agent: tested\n{settings}\n"));
        lab.write_other("fast", "mode: subagent", "otherwise: { say: \"Quickly summed up.\" }");
        let run = lab.ask("Read the book.").await;
        assert_eq!(run.state, RunState::Completed, "{settings}: {:?}", run.failure);
        let requests = lab.requests(run.id).await;
        let summaries = requests.iter().filter(|it| it.purpose == Purpose::Summary);
        let models: Vec<String> = summaries.map(|it| it.model.to_string()).collect();
        assert_eq!(models.first().map(String::as_str), model, "{settings}");
        assert!(models.iter().all(|it| Some(it.as_str()) == model), "{settings}: {models:?}");
        let told = lab.transcript().await;
        let has = |text: &str| told.iter().any(|line| line.contains(text));
        assert_eq!(has("No model could sum this up"), fallback, "{settings}");
        assert_eq!(has("Quickly summed up."), !fallback, "{settings}");
    }
}
