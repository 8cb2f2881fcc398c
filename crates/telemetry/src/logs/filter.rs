//! The log filter, which can be replaced at run time.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::{RwLock, RwLockReadGuard};
use tracing::{Level, Metadata, level_filters::LevelFilter, span, subscriber::Interest};
use tracing_subscriber::{
    EnvFilter,
    layer::{self, Context},
};

use crate::Error;

/// Target of audit lines. They are written regardless of the filter.
pub const AUDIT: &str = "remuda_audit";
/// Target of spans that are exported as traces. Logs ignore them.
pub const TRACES: &str = "remuda_trace";
const OURS: &str = "remuda";

/// The log filter. Cheap to clone; clones share the rules.
///
/// Our own spans at level `error` are never filtered: they carry the ids for the lines within them, of any module.
#[derive(Clone, Debug)]
pub(crate) struct Filter(Arc<Rules>);

#[derive(Debug)]
struct Rules {
    rules: RwLock<EnvFilter>,
    /// Whether the rules depend on spans. If not, which is the common case, entering a span takes no lock.
    scoped: AtomicBool,
}

pub(crate) fn parse(text: &str) -> Result<EnvFilter, Error> {
    EnvFilter::builder().parse(text).map_err(Error::Filter)
}

fn is_scoped(text: &str) -> bool {
    text.contains('[')
}

impl Filter {
    pub(crate) fn new(text: &str) -> Result<Self, Error> {
        let rules = RwLock::new(parse(text)?);
        Ok(Self(Arc::new(Rules { rules, scoped: AtomicBool::new(is_scoped(text)) })))
    }

    /// Replaces the rules; takes effect at once for all threads.
    pub(crate) fn set(&self, text: &str) -> Result<(), Error> {
        let rules = parse(text)?;
        *self.0.rules.write() = rules;
        self.0.scoped.store(is_scoped(text), Ordering::Release);
        // Not under the lock: this evaluates the filter for every callsite again.
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    }

    fn rules(&self) -> RwLockReadGuard<'_, EnvFilter> {
        self.0.rules.read()
    }

    /// The rules, if they depend on spans.
    fn scoped(&self) -> Option<RwLockReadGuard<'_, EnvFilter>> {
        self.0.scoped.load(Ordering::Acquire).then(|| self.rules())
    }
}

/// Decisions that do not depend on the rules.
fn settled(metadata: &Metadata<'_>) -> Option<bool> {
    if metadata.is_event() {
        return (metadata.target() == AUDIT).then_some(true);
    }
    if metadata.target() == TRACES {
        return Some(false);
    }
    (*metadata.level() == Level::ERROR && metadata.target().starts_with(OURS)).then_some(true)
}

impl<S> layer::Filter<S> for Filter {
    fn enabled(&self, metadata: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        settled(metadata).unwrap_or_else(|| self.rules().enabled(metadata, context.clone()))
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Always call it: the rules register the spans they match.
        let interest = layer::Filter::<S>::callsite_enabled(&*self.rules(), metadata);
        match settled(metadata) {
            Some(true) => Interest::always(),
            Some(false) => Interest::never(),
            None => interest,
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let hint = layer::Filter::<S>::max_level_hint(&*self.rules())?;
        Some(hint.max(LevelFilter::INFO))
    }

    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if let Some(rules) = self.scoped() {
            rules.on_new_span(attributes, id, context);
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        if let Some(rules) = self.scoped() {
            rules.on_record(id, values, context);
        }
    }

    fn on_enter(&self, id: &span::Id, context: Context<'_, S>) {
        if let Some(rules) = self.scoped() {
            rules.on_enter(id, context);
        }
    }

    fn on_exit(&self, id: &span::Id, context: Context<'_, S>) {
        if let Some(rules) = self.scoped() {
            rules.on_exit(id, context);
        }
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        if let Some(rules) = self.scoped() {
            rules.on_close(id, context);
        }
    }
}
