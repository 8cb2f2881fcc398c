//! Turns SIGINT, SIGTERM and SIGHUP into a flag, so that `main` returns and `Drop` stops everything that was started.

use std::{process::Child, sync::Arc, thread};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};

/// The received signals, and the child that they are forwarded to.
#[derive(Clone)]
pub(crate) struct Interrupt {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    count: usize,
    /// The process group of the running child.
    group: Option<Pid>,
}

impl Interrupt {
    /// Installs handlers for the signals. They are not blocked, because children would inherit the mask.
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
                    _ = interrupts.recv() => handle.on_signal(Signal::SIGINT),
                    _ = terminations.recv() => handle.on_signal(Signal::SIGTERM),
                    _ = hangups.recv() => handle.on_signal(Signal::SIGHUP),
                }
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(listen))?;
        Ok(interrupt)
    }

    fn on_signal(&self, signal: Signal) {
        let mut state = self.lock();
        state.count += 1;
        if let Some(group) = state.group {
            // A second signal kills the child.
            let signal = if state.count == 1 { signal } else { Signal::SIGKILL };
            if let Err(error) = killpg(group, signal) {
                eprintln!("cannot forward {signal}: {error}");
            }
        }
        self.shared.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock()
    }

    /// Fails after a signal was received; call it between steps.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_interrupted() { bail!("interrupted") } else { Ok(()) }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.lock().count > 0
    }

    /// Waits for a signal.
    pub(crate) fn wait(&self) {
        let mut state = self.lock();
        while state.count == 0 {
            self.shared.1.wait(&mut state);
        }
    }

    /// Forwards signals to a child that leads its own process group, until the guard is dropped.
    pub(crate) fn forward(&self, child: &Child) -> Result<ForwardGuard> {
        let group = Pid::from_raw(i32::try_from(child.id()).context("process id out of range")?);
        let mut state = self.lock();
        state.group = Some(group);
        if state.count > 0 {
            killpg(group, Signal::SIGTERM).context("cannot stop the child")?;
        }
        drop(state);
        Ok(ForwardGuard(self.clone()))
    }
}

/// Forwards signals to a child until it is dropped.
pub(crate) struct ForwardGuard(Interrupt);

impl Drop for ForwardGuard {
    fn drop(&mut self) {
        self.0.lock().group = None;
    }
}
