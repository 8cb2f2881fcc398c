use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;

use super::{
    super::{
        driver::Driver,
        leadership::Leadership,
        record::Recorder,
        task::{BackgroundTask, Round},
    },
    lab::{Lab, NEVER},
};

const SOON: Duration = Duration::from_millis(50);

#[tokio::test]
async fn one_control_plane_runs_the_tasks_and_the_next_takes_over() {
    let lab = Lab::new().await;
    let (first, second) = (lab.app.clone(), lab.other_app());
    let stop_first = lab.start(&first, SOON);
    let leader = lab.wait_for_task("wake_sessions", |_| true).await.last.holder;
    lab.start(&second, SOON);
    // Both are up for many rounds, and all work is the first one's.
    for _ in 0..5 {
        lab.runnable().await;
        let rounds = lab.task("wake_sessions").await.unwrap().rounds;
        let task = lab.wait_for_task("wake_sessions", |task| task.rounds > rounds).await;
        assert_eq!(task.last.holder, leader);
        assert_eq!(task.last_notable.unwrap().result.unwrap()["woken"], 1);
    }
    let tasks = lab.store.list_tasks().await.unwrap();
    assert!(tasks.iter().all(|task| task.last.holder == leader), "{tasks:?}");
    assert_eq!(tasks.len(), 12);

    stop_first.cancel();
    lab.runnable().await;
    let task = lab.wait_for_task("wake_sessions", |task| task.last.holder != leader).await;
    assert!(task.last.holder.starts_with("lab/"), "{}", task.last.holder);
    lab.wait_for_tokens(6).await;
    drop((first, second));
    lab.end().await;
}

#[tokio::test]
async fn a_failing_task_does_not_stop_the_others() {
    let lab = Lab::new().await;
    lab.runnable().await;
    lab.transport.set_down(true);
    lab.start(&lab.app, SOON);
    let failing = lab.wait_for_task("wake_sessions", |task| task.failures >= 2).await;
    assert_eq!(failing.last.result.unwrap_err(), "turned off");
    lab.wait_for_task("heal_orphans", |task| task.failures >= 1).await;
    for well in ["take_back", "end_overdue", "delete_expired_keys"] {
        assert_eq!(lab.wait_for_task(well, |_| true).await.failures, 0);
    }
    // Work of a task that is well gets done meanwhile.
    let session = lab.runnable().await;
    lab.claim(session, lab.worker(Duration::from_millis(50)).await).await;
    lab.wait_for_task("take_back", |task| task.last_notable.is_some()).await;
    lab.transport.set_down(false);
    lab.wait_for_task("wake_sessions", |task| task.last.result.is_ok()).await;
    lab.wait_for_tokens(2).await;
    lab.end().await;
}

/// Panics in its first round.
struct Clumsy(u64);

#[async_trait]
impl BackgroundTask for Clumsy {
    fn name(&self) -> &'static str {
        "clumsy"
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
async fn a_panic_is_a_failed_round() {
    let lab = Lab::new().await;
    let (leadership, term) = Leadership::new(Arc::clone(&lab.store), "me".to_owned(), NEVER, SOON);
    let recorder = Recorder::new(Arc::clone(&lab.store), "me".to_owned());
    let stop = lab.stop.clone();
    lab.tasks.spawn(async move { leadership.keep(&stop).await });
    lab.tasks.spawn(Driver { term, recorder }.run(Box::new(Clumsy(0)), lab.stop.clone()));
    let task = lab.wait_for_task("clumsy", |task| task.rounds >= 3).await;
    assert_eq!(task.failures, 1);
    assert!(task.last.result.unwrap()["rounds"] >= 3);
    lab.end().await;
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
    let lab = Lab::new().await;
    let mut recorder = Recorder::new(Arc::clone(&lab.store), "me".to_owned());
    let now = chrono::Utc::now();
    let mut task = Idle;
    for _ in 0..100 {
        let round = task.round().await.unwrap();
        recorder.record(task.name(), now, SOON, Ok(&round.counts)).await;
    }
    assert_eq!(lab.task("idle").await.unwrap().rounds, 1);
    let busy = Round::of([("things", 2), ("others", 0)]);
    recorder.record(task.name(), now, SOON, Ok(&busy.counts)).await;
    let failure = remuda_domain::Error::unavailable("away");
    recorder.record(task.name(), now, SOON, Err(&failure)).await;
    let task = lab.task("idle").await.unwrap();
    assert_eq!((task.rounds, task.failures), (3, 1));
    assert_eq!(task.last.result, Err("away".to_owned()));
    // That it works again is news.
    recorder.record("idle", now, SOON, Ok(&Round::default().counts)).await;
    assert_eq!(lab.task("idle").await.unwrap().last.result, Ok(Round::default().counts));
    lab.end().await;
}
