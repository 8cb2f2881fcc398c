//! Transcripts, the texts behind them, and runs of agents.

use anyhow::{Context as _, Result};
use remuda_domain::{
    MessageId, RunInput, RunState, SessionId, StepId,
    content::{Content, ContentHash},
    message::Role,
    model::{ModelParameters, ModelRef, Registry},
    page::PageRequest,
    run::MessageInput,
    step::{ModelOutcome, ModelRequest, Purpose, Sent, Step, StepWork},
    tool::CallStatus,
};
use remuda_store::{Commit, Grant, NewMessage, NewRun, Then};

use crate::lab::{
    LONG_LEASE, Lab, completed, message, message_input, names, page, progress, refusal, saying, step,
};

/// The ids of a whole transcript, read in pages of that size.
async fn transcript(lab: &Lab, session: SessionId, size: u32) -> Result<Vec<MessageId>> {
    let mut ids = Vec::new();
    let mut request = page(size);
    loop {
        let got = lab.store.list_messages(lab.tenant, session, &request).await?;
        anyhow::ensure!(got.items.len() <= size as usize, "a page of {}", got.items.len());
        ids.extend(got.items.iter().map(|it| it.id));
        request.token = got.next;
        if request.token.is_none() {
            return Ok(ids);
        }
    }
}

async fn submit_message(lab: &Lab, session: SessionId, input: MessageInput) -> Result<()> {
    lab.store.submit(NewRun { input: RunInput::Message(input), ..lab.new_run(session) }).await?;
    Ok(())
}

pub(crate) async fn messages_are_in_the_order_of_their_commits(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    // The second message has its id while the first run has yet to be answered.
    let inputs = [message_input("first"), message_input("second")];
    let mut expected = Vec::new();
    for input in &inputs {
        submit_message(lab, session, input.clone()).await?;
    }
    let mut grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    for input in inputs {
        let asked = NewMessage { id: input.id, ..message(Role::User, "asked") };
        // Made in another order than they are said in.
        let (late, early) = (message(Role::Tool, "result"), message(Role::Assistant, "call"));
        let answer = message(Role::Assistant, "answer");
        let said = [asked, early, late, answer];
        expected.extend(said.iter().map(|it| it.id));
        let [asked, early, late, answer] = said;
        lab.store.commit(saying(&grant, vec![asked])).await?;
        lab.store.commit(saying(&grant, vec![early, late])).await?;
        let last = Commit { messages: vec![answer], ..completed(&grant) };
        let committed = lab.store.commit(last).await?;
        if let Some(next) = committed.next {
            grant = *next;
        }
    }
    for size in [1, 2, 3, 100] {
        assert_eq!(transcript(lab, session, size).await?, expected, "in pages of {size}");
    }
    lab.check(session).await
}

pub(crate) async fn messages_keep_what_they_say(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    let said = NewMessage { agent: Some("build".into()), ..message(Role::Assistant, "one\0 \u{1f40e}") };
    lab.store.commit(saying(&grant, vec![said.clone()])).await?;
    let stored = lab.store.list_messages(lab.tenant, session, &page(5)).await?.items.remove(0);
    assert_eq!((stored.id, stored.session, stored.run), (said.id, session, Some(run)));
    assert_eq!((stored.role, stored.agent, stored.parts), (said.role, said.agent, said.parts));
    // One that nobody could place is refused.
    let lost = Commit { messages: vec![message(Role::User, "lost")], ..progress(&grant, Vec::new()) };
    assert_eq!(refusal(lab.store.commit(lost).await), remuda_domain::Code::Internal);
    let unknown = PageRequest { size: 5, token: Some(MessageId::new().to_string()) };
    assert_eq!(lab.store.list_messages(lab.tenant, session, &unknown).await?.items, []);
    Ok(())
}

pub(crate) async fn contents_are_stored_once_and_belong_to_their_tenant(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    let texts = ["", "You are \"it\".\n", "nul \0 and \u{1f40e}"];
    let contents: Vec<_> = texts.iter().map(|text| Content::new((*text).to_owned())).collect();
    let with = |contents: &[Content]| Commit { contents: contents.to_vec(), ..progress(&grant, Vec::new()) };
    assert_eq!(lab.store.get_content(lab.tenant, contents[1].hash).await?, None);
    lab.store.commit(with(&contents)).await?;
    // Known ones are left alone, also twice in one commit.
    lab.store.commit(with(&[contents.clone(), contents.clone()].concat())).await?;
    let stranger = lab.stranger().await?;
    for content in &contents {
        assert_eq!(lab.store.get_content(lab.tenant, content.hash).await?.as_ref(), Some(&content.text));
        assert_eq!(lab.store.get_content(stranger, content.hash).await?, None);
    }
    Ok(())
}

/// Workers write the same texts at the same time, each in the order in which it needs them.
pub(crate) async fn contents_of_many_sessions_do_not_collide(lab: &Lab) -> Result<()> {
    let worker = lab.worker(LONG_LEASE).await?;
    let other = remuda_store::connect(&lab.options()).await?;
    let contents: Vec<_> = (0..40).map(|n| Content::new(format!("text {n}"))).collect();
    let mut commits = Vec::new();
    for n in 0..20_usize {
        let session = lab.session().await?;
        lab.submit(session).await?;
        let grant = lab.granted(session, worker).await?;
        let mut contents = contents.clone();
        if n % 2 == 0 {
            contents.reverse();
        }
        let store = if n % 2 == 0 { &lab.store } else { &other };
        commits.push(store.commit(Commit { contents, ..progress(&grant, Vec::new()) }));
    }
    futures::future::try_join_all(commits).await?;
    assert_eq!(lab.store.get_content(lab.tenant, contents[7].hash).await?.as_deref(), Some("text 7"));
    Ok(())
}

pub(crate) async fn an_end_can_change_who_leads(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    lab.submit(session).await?;
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    assert_eq!(grant.agent, None);
    let led_by = |grant: &Grant, agent: Option<&str>| {
        let mut commit = completed(grant);
        if let Then::End(finish) = &mut commit.then {
            finish.agent = agent.map(str::to_owned);
        }
        commit
    };
    let committed = lab.store.commit(led_by(&grant, Some("plan"))).await?;
    assert_eq!(lab.look(session).await?.agent.as_deref(), Some("plan"));
    let next = committed.next.context("no next run")?;
    assert_eq!(next.agent.as_deref(), Some("plan"));
    // Nothing said, nothing changed.
    lab.store.commit(led_by(&next, None)).await?;
    assert_eq!(lab.look(session).await?.agent.as_deref(), Some("plan"));
    lab.check(session).await
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
        messages: vec![Sent::Stored { first: message, last: message, count: 1 }],
        concluding: false,
        purpose: Purpose::Answer,
        reported: Vec::new(),
        cleared: None,
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

pub(crate) async fn a_message_run_has_an_answer(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let input = message_input("hello \0?");
    submit_message(lab, session, input.clone()).await?;
    let (first, second) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    let grant = lab.granted(session, first).await?;
    assert_eq!(grant.run.input, RunInput::Message(input));
    let asked = model_step(&grant, 0, Some(answered("thinking")));
    lab.store.commit(progress(&grant, vec![asked.clone()])).await?;
    lab.store.release(grant.fence).await?;
    // The next owner finds the step as it was written.
    let grant = lab.granted(session, second).await?;
    assert_eq!(grant.steps, [asked]);
    let steps = vec![model_step(&grant, 1, Some(answered("done")))];
    lab.store.commit(Commit { steps, ..completed(&grant) }).await?;
    let run = lab.run(grant.run.id).await?;
    assert_eq!((run.answer.as_deref(), run.outcomes.len()), (Some("done"), 0));
    lab.check(session).await
}

pub(crate) async fn a_lost_message_run_is_settled(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    submit_message(lab, session, message_input("hello")).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    let steps =
        vec![model_step(&grant, 0, Some(answered("calling"))), step(&grant, 1), model_step(&grant, 2, None)];
    lab.store.commit(progress(&grant, steps.clone())).await?;
    lab.store.request_cancel(lab.tenant, grant.run.id, "enough").await?;
    lab.store.retire_worker(worker).await?;
    let taken = lab.store.take_back(10).await?;
    assert_eq!(
        (taken.ended, names(&taken.changes[0].events)),
        (1, vec!["run.attempt_lost", "tool.failed", "run.cancelled"])
    );
    assert_eq!(lab.run(grant.run.id).await?.state, RunState::Cancelled);
    let settled = lab.store.list_steps(lab.tenant, grant.run.id).await?;
    assert_eq!(
        settled.iter().map(|it| it.id).collect::<Vec<_>>(),
        steps.iter().map(|it| it.id).collect::<Vec<_>>()
    );
    assert!(settled.iter().all(Step::is_finished));
    assert_eq!(settled[0], steps[0], "what was finished stays as it is");
    assert_eq!(settled[1].call_outcome().map(|it| it.status), Some(CallStatus::Interrupted));
    let StepWork::ModelCall { outcome: Some(outcome), .. } = &settled[2].work else {
        anyhow::bail!("no outcome: {:?}", settled[2])
    };
    assert_eq!(outcome.status, CallStatus::Interrupted);
    lab.check(session).await
}
