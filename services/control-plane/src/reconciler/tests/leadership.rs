use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;

use super::{
    super::{
        background_task::{BackgroundTask, Round},
        leadership::Leadership,
        task_driver::Driver,
        task_record::Recorder,
    },
    fixture::{Fixture, NEVER},
};

const SOON: Duration = Duration::from_millis(50);

#[tokio::test]
async fn one_control_plane_runs_the_tasks_until_the_next_takes_over() {
    let fixture = Fixture::new().await;
    let (first, second) = (fixture.app.clone(), fixture.other_app());
    let stop_first = fixture.start(&first, SOON);
    let leader = fixture.wait_for_task("wake_sessions", |_| true).await.last.holder;
    fixture.start(&second, SOON);
    // Both run for many rounds, and the first one does all the work.
    for _ in 0..5 {
        fixture.runnable().await;
        let rounds = fixture.task("wake_sessions").await.unwrap().rounds;
        let task = fixture.wait_for_task("wake_sessions", |task| task.rounds > rounds).await;
        assert_eq!(task.last.holder, leader);
        assert_eq!(task.last_notable.unwrap().result.unwrap()["woken"], 1);
    }
    let tasks = fixture.store.list_tasks().await.unwrap();
    assert!(tasks.iter().all(|task| task.last.holder == leader), "{tasks:?}");
    assert_eq!(tasks.len(), 11);

    stop_first.cancel();
    fixture.runnable().await;
    let task = fixture.wait_for_task("wake_sessions", |task| task.last.holder != leader).await;
    assert!(task.last.holder.starts_with("lab/"), "{}", task.last.holder);
    fixture.wait_for_tokens(6).await;
    drop((first, second));
    fixture.shut_down().await;
}

#[tokio::test]
async fn failing_task_does_not_stop_the_others() {
    let fixture = Fixture::new().await;
    fixture.runnable().await;
    fixture.transport.set_down(true);
    fixture.start(&fixture.app, SOON);
    let failing = fixture.wait_for_task("wake_sessions", |task| task.failures >= 2).await;
    assert_eq!(failing.last.result.unwrap_err(), "turned off");
    fixture.wait_for_task("heal_orphans", |task| task.failures >= 1).await;
    for healthy in ["take_back", "expire_approvals", "delete_expired_keys"] {
        assert_eq!(fixture.wait_for_task(healthy, |_| true).await.failures, 0);
    }
    // Healthy tasks do their work meanwhile.
    let session = fixture.runnable().await;
    fixture.claim(session, fixture.worker(Duration::from_millis(50)).await).await;
    fixture.wait_for_task("take_back", |task| task.last_notable.is_some()).await;
    fixture.transport.set_down(false);
    fixture.wait_for_task("wake_sessions", |task| task.last.result.is_ok()).await;
    fixture.wait_for_tokens(2).await;
    fixture.shut_down().await;
}

/// Panics in its first round.
struct PanicsOnce(u64);

#[async_trait]
impl BackgroundTask for PanicsOnce {
    fn name(&self) -> &'static str {
        "panics_once"
    }

    fn pace(&self) -> Duration {
        SOON
    }

    async fn round(&mut self) -> Result<Round> {
        self.0 += 1;
        assert!(self.0 > 1, "on purpose");
        Ok(Round::of([("rounds", self.0)]))
    }
}

#[tokio::test]
async fn panic_counts_as_a_failed_round() {
    let fixture = Fixture::new().await;
    let (leadership, term) = Leadership::new(Arc::clone(&fixture.store), "me".to_owned(), NEVER, SOON);
    let recorder = Recorder::new(Arc::clone(&fixture.store), "me".to_owned());
    let stop = fixture.stop.clone();
    fixture.tasks.spawn(async move { leadership.keep(&stop).await });
    fixture.tasks.spawn(Driver { term, recorder }.run(Box::new(PanicsOnce(0)), fixture.stop.clone()));
    let task = fixture.wait_for_task("panics_once", |task| task.rounds >= 3).await;
    assert_eq!(task.failures, 1);
    assert!(task.last.result.unwrap()["rounds"] >= 3);
    fixture.shut_down().await;
}

/// Never has anything to do.
struct Idle;

#[async_trait]
impl BackgroundTask for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn pace(&self) -> Duration {
        Duration::from_millis(1)
    }

    async fn round(&mut self) -> Result<Round> {
        Ok(Round::default())
    }
}

#[tokio::test]
async fn idle_rounds_are_seldom_written() {
    let fixture = Fixture::new().await;
    let mut recorder = Recorder::new(Arc::clone(&fixture.store), "me".to_owned());
    let now = chrono::Utc::now();
    let mut task = Idle;
    for _ in 0..100 {
        let round = task.round().await.unwrap();
        recorder.record(task.name(), now, SOON, Ok(&round.counts)).await;
    }
    assert_eq!(fixture.task("idle").await.unwrap().rounds, 1);
    let busy = Round::of([("things", 2), ("others", 0)]);
    recorder.record(task.name(), now, SOON, Ok(&busy.counts)).await;
    let failure = remuda_domain::Error::unavailable("away");
    recorder.record(task.name(), now, SOON, Err(&failure)).await;
    let task = fixture.task("idle").await.unwrap();
    assert_eq!((task.rounds, task.failures), (3, 1));
    assert_eq!(task.last.result, Err("away".to_owned()));
    // The recovery is written at once.
    recorder.record("idle", now, SOON, Ok(&Round::default().counts)).await;
    assert_eq!(fixture.task("idle").await.unwrap().last.result, Ok(Round::default().counts));
    fixture.shut_down().await;
}
