//! Transcripts, stored contents, and message runs.

use anyhow::{Context as _, Result};
use remuda_domain::{
    MessageId, RunInput, RunState, SessionId, StepId,
    content::{Content, ContentHash},
    message::Role,
    model::{ModelParameters, ModelRef, Registry},
    page::PageRequest,
    run::MessageInput,
    step::{ModelOutcome, ModelRequest, Purpose, SentMessages, Step, StepWork},
    tool::CallStatus,
};
use remuda_store::{Commit, Grant, NewMessage, RunTransition};

use crate::fixture::{
    Fixture, LONG_LEASE, completed, message, message_input, names, page, progress, refusal, saying, step,
};

/// The message ids of a whole transcript, read in pages of this size.
async fn transcript(fixture: &Fixture, session: SessionId, size: u32) -> Result<Vec<MessageId>> {
    let mut ids = Vec::new();
    let mut request = page(size);
    loop {
        let got = fixture.store.list_messages(fixture.tenant, session, &request).await?;
        anyhow::ensure!(got.items.len() <= size as usize, "a page of {}", got.items.len());
        ids.extend(got.items.iter().map(|it| it.id));
        request.token = got.next;
        if request.token.is_none() {
            return Ok(ids);
        }
    }
}

async fn submit_message(fixture: &Fixture, session: SessionId, input: MessageInput) -> Result<()> {
    let mut run = fixture.new_run(session);
    run.run.input = RunInput::Message(input);
    fixture.store.submit(run).await?;
    Ok(())
}

pub(crate) async fn messages_are_listed_in_commit_order(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    // The second message gets its id before the first run is answered.
    let inputs = [message_input("first"), message_input("second")];
    let mut expected = Vec::new();
    for input in &inputs {
        submit_message(fixture, session, input.clone()).await?;
    }
    let mut grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    for input in inputs {
        let asked = NewMessage { id: input.id, ..message(Role::User, "asked") };
        // Created in another order than committed.
        let (late, early) = (message(Role::Tool, "result"), message(Role::Assistant, "call"));
        let answer = message(Role::Assistant, "answer");
        let said = [asked, early, late, answer];
        expected.extend(said.iter().map(|it| it.id));
        let [asked, early, late, answer] = said;
        fixture.store.commit(saying(&grant, vec![asked])).await?;
        fixture.store.commit(saying(&grant, vec![early, late])).await?;
        let last = Commit { messages: vec![answer], ..completed(&grant) };
        let committed = fixture.store.commit(last).await?;
        if let Some(next) = committed.next {
            grant = *next;
        }
    }
    for size in [1, 2, 3, 100] {
        assert_eq!(transcript(fixture, session, size).await?, expected, "in pages of {size}");
    }
    fixture.check(session).await
}

pub(crate) async fn message_contents_survive_a_round_trip(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    let said = NewMessage { agent: Some("build".into()), ..message(Role::Assistant, "one\0 \u{1f40e}") };
    fixture.store.commit(saying(&grant, vec![said.clone()])).await?;
    let stored = fixture.store.list_messages(fixture.tenant, session, &page(5)).await?.items.remove(0);
    assert_eq!((stored.id, stored.session, stored.run), (said.id, session, Some(run)));
    assert_eq!((stored.role, stored.agent, stored.parts), (said.role, said.agent, said.parts));
    // A message without an event has no position and is refused.
    let lost = Commit { messages: vec![message(Role::User, "lost")], ..progress(&grant, Vec::new()) };
    assert_eq!(refusal(fixture.store.commit(lost).await), remuda_domain::Code::Internal);
    let unknown = PageRequest { size: 5, token: Some(MessageId::new().to_string()) };
    assert_eq!(fixture.store.list_messages(fixture.tenant, session, &unknown).await?.items, []);
    Ok(())
}

pub(crate) async fn contents_are_stored_once_per_tenant(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    let texts = ["", "You are \"it\".\n", "nul \0 and \u{1f40e}"];
    let contents: Vec<_> = texts.iter().map(|text| Content::new((*text).to_owned())).collect();
    let with = |contents: &[Content]| Commit { contents: contents.to_vec(), ..progress(&grant, Vec::new()) };
    assert_eq!(fixture.store.get_content(fixture.tenant, contents[1].hash).await?, None);
    fixture.store.commit(with(&contents)).await?;
    // Texts that are already stored are left alone, even if they occur twice in one commit.
    fixture.store.commit(with(&[contents.clone(), contents.clone()].concat())).await?;
    let stranger = fixture.stranger().await?;
    for content in &contents {
        assert_eq!(
            fixture.store.get_content(fixture.tenant, content.hash).await?.as_ref(),
            Some(&content.text)
        );
        assert_eq!(fixture.store.get_content(stranger, content.hash).await?, None);
    }
    Ok(())
}

/// Workers write the same texts concurrently, each in its own order.
pub(crate) async fn concurrent_commits_of_the_same_contents_do_not_deadlock(fixture: &Fixture) -> Result<()> {
    let worker = fixture.worker(LONG_LEASE).await?;
    let other = remuda_store::connect(&fixture.options()).await?;
    let contents: Vec<_> = (0..40).map(|n| Content::new(format!("text {n}"))).collect();
    let mut commits = Vec::new();
    for n in 0..20_usize {
        let session = fixture.session().await?;
        fixture.submit(session).await?;
        let grant = fixture.granted(session, worker).await?;
        let mut contents = contents.clone();
        if n % 2 == 0 {
            contents.reverse();
        }
        let store = if n % 2 == 0 { &fixture.store } else { &other };
        commits.push(store.commit(Commit { contents, ..progress(&grant, Vec::new()) }));
    }
    futures::future::try_join_all(commits).await?;
    assert_eq!(fixture.store.get_content(fixture.tenant, contents[7].hash).await?.as_deref(), Some("text 7"));
    Ok(())
}

pub(crate) async fn end_can_change_the_active_agent(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    fixture.submit(session).await?;
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    assert_eq!(grant.agent, None);
    let led_by = |grant: &Grant, agent: Option<&str>| {
        let mut commit = completed(grant);
        if let RunTransition::End(finish) = &mut commit.then {
            finish.agent = agent.map(str::to_owned);
        }
        commit
    };
    let committed = fixture.store.commit(led_by(&grant, Some("plan"))).await?;
    assert_eq!(fixture.get_session(session).await?.agent.as_deref(), Some("plan"));
    let next = committed.next.context("no next run")?;
    assert_eq!(next.agent.as_deref(), Some("plan"));
    // Without a new agent nothing changes.
    fixture.store.commit(led_by(&next, None)).await?;
    assert_eq!(fixture.get_session(session).await?.agent.as_deref(), Some("plan"));
    fixture.check(session).await
}

pub(crate) fn model_step(grant: &Grant, index: u32, outcome: Option<ModelOutcome>) -> Step {
    let message = MessageId::new();
    let request = ModelRequest {
        message,
        agent: "build".into(),
        definitions: ContentHash::of("definitions"),
        model: ModelRef::new(Registry::Platform, "small"),
        provider: None,
        model_name: "small-1".into(),
        parameters: ModelParameters { temperature: Some(0.25), ..ModelParameters::default() },
        system: ContentHash::of("system"),
        tools: ContentHash::of("tools"),
        messages: vec![SentMessages::Stored { first: message, last: message, count: 1 }],
        concluding: false,
        purpose: Purpose::Answer,
        reported: Vec::new(),
        cleared: None,
        retry: None,
    };
    let finished_at = outcome.is_some().then(chrono::Utc::now);
    let work = StepWork::ModelCall { request: Box::new(request), outcome: outcome.map(Box::new) };
    Step {
        id: StepId::new(),
        index,
        work,
        started_at: chrono::Utc::now(),
        finished_at,
        epoch: grant.fence.epoch,
    }
}

pub(crate) fn answered(text: &str) -> ModelOutcome {
    ModelOutcome {
        parts: vec![remuda_domain::message::Part::text(text)],
        ..ModelOutcome::without_answer(CallStatus::Completed, None)
    }
}

pub(crate) async fn message_run_has_an_answer(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let input = message_input("hello \0?");
    submit_message(fixture, session, input.clone()).await?;
    let (first, second) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    let grant = fixture.granted(session, first).await?;
    assert_eq!(grant.run.input, RunInput::Message(input));
    let asked = model_step(&grant, 0, Some(answered("thinking")));
    fixture.store.commit(progress(&grant, vec![asked.clone()])).await?;
    fixture.store.release(grant.fence).await?;
    // The next owner gets the step as committed.
    let grant = fixture.granted(session, second).await?;
    assert_eq!(grant.steps, [asked]);
    let steps = vec![model_step(&grant, 1, Some(answered("done")))];
    fixture.store.commit(Commit { steps, ..completed(&grant) }).await?;
    let run = fixture.run(grant.run.id).await?;
    assert_eq!((run.answer.as_deref(), run.outcomes.len()), (Some("done"), 0));
    fixture.check(session).await
}

pub(crate) async fn lost_message_run_gets_settled_steps(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    submit_message(fixture, session, message_input("hello")).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    let steps =
        vec![model_step(&grant, 0, Some(answered("calling"))), step(&grant, 1), model_step(&grant, 2, None)];
    fixture.store.commit(progress(&grant, steps.clone())).await?;
    fixture.store.request_cancel(fixture.tenant, grant.run.id, "enough").await?;
    fixture.store.retire_worker(worker).await?;
    let taken = fixture.store.reclaim_sessions(10).await?;
    assert_eq!(
        (taken.ended, names(&taken.changes[0].events)),
        (1, vec!["run.attempt_lost", "tool.failed", "run.cancelled"])
    );
    assert_eq!(fixture.run(grant.run.id).await?.state, RunState::Cancelled);
    let settled = fixture.store.list_steps(fixture.tenant, grant.run.id).await?;
    assert_eq!(
        settled.iter().map(|it| it.id).collect::<Vec<_>>(),
        steps.iter().map(|it| it.id).collect::<Vec<_>>()
    );
    assert!(settled.iter().all(Step::is_finished));
    assert_eq!(settled[0], steps[0], "a finished step is unchanged");
    assert_eq!(settled[1].call_outcome().map(|it| it.status), Some(CallStatus::Interrupted));
    let StepWork::ModelCall { outcome: Some(outcome), .. } = &settled[2].work else {
        anyhow::bail!("no outcome: {:?}", settled[2])
    };
    assert_eq!(outcome.status, CallStatus::Interrupted);
    fixture.check(session).await
}
