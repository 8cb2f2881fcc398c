//! Ctrl-C and SIGTERM as a flag, so that `main` returns and everything that was started is stopped by its `Drop`.

use std::{
    process::Child,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};

/// The signals that arrived, and whom they concern.
#[derive(Clone)]
pub(crate) struct Interrupt {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    count: usize,
    /// The process group of the child that runs now.
    group: Option<Pid>,
}

impl Interrupt {
    /// Takes over the signals of this process. By handlers, not by blocking them: children inherit what is blocked.
    pub(crate) fn install() -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().build().context("cannot start a runtime")?;
        let guard = runtime.enter();
        let listen = |kind| signal(kind).context("cannot listen to signals");
        let mut interrupts = listen(SignalKind::interrupt())?;
        let mut terminations = listen(SignalKind::terminate())?;
        let mut hangups = listen(SignalKind::hangup())?;
        drop(guard);
        let interrupt = Self { shared: Arc::default() };
        let handle = interrupt.clone();
        let listen = async move {
            loop {
                tokio::select! {
                    _ = interrupts.recv() => handle.arrived(Signal::SIGINT),
                    _ = terminations.recv() => handle.arrived(Signal::SIGTERM),
                    _ = hangups.recv() => handle.arrived(Signal::SIGHUP),
                }
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(listen))?;
        Ok(interrupt)
    }

    fn arrived(&self, signal: Signal) {
        let mut state = self.lock();
        state.count += 1;
        if let Some(group) = state.group {
            // The second one means it.
            let signal = if state.count == 1 { signal } else { Signal::SIGKILL };
            if let Err(error) = killpg(group, signal) {
                eprintln!("cannot pass on {signal}: {error}");
            }
        }
        self.shared.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails once a signal has arrived; ask between steps.
    pub(crate) fn check(&self) -> Result<()> {
        if self.happened() { bail!("interrupted") } else { Ok(()) }
    }

    pub(crate) fn happened(&self) -> bool {
        self.lock().count > 0
    }

    /// Waits for a signal.
    pub(crate) fn wait(&self) {
        let mut state = self.lock();
        while state.count == 0 {
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Passes signals on to a child that leads its own process group, until the guard is dropped.
    pub(crate) fn forward(&self, child: &Child) -> Result<Forward> {
        let group = Pid::from_raw(i32::try_from(child.id()).context("process id out of range")?);
        let mut state = self.lock();
        state.group = Some(group);
        if state.count > 0 {
            killpg(group, Signal::SIGTERM).context("cannot stop the child")?;
        }
        drop(state);
        Ok(Forward(self.clone()))
    }
}

/// While it lives, signals go to the child too.
pub(crate) struct Forward(Interrupt);

impl Drop for Forward {
    fn drop(&mut self) {
        self.0.lock().group = None;
    }
}
