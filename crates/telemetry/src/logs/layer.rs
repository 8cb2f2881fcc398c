//! The `tracing` layer that writes log lines.

use std::{cell::RefCell, io::Write as _};

use tracing::{Event, Subscriber, span};
use tracing_subscriber::{
    Layer,
    fmt::{
        MakeWriter,
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
    layer::Context,
    registry::LookupSpan,
};

use super::{fields::Fields, json, pretty, record::Record};

thread_local! {
    /// A reusable buffer, so that a line needs no allocation.
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Bytes of the buffer that a thread keeps.
const KEPT: usize = 8 * 1024;

#[derive(Debug)]
enum LineFormat {
    Json { service: String },
    Pretty { ansi: bool },
}

/// Writes a line for each event, with the fields of the enclosing spans.
///
/// Spans store their fields unformatted: every run and every request has a span, but few of them log.
#[derive(Debug)]
pub(crate) struct LogLayer<W> {
    format: LineFormat,
    writer: W,
}

impl<W> LogLayer<W> {
    pub(crate) fn json(writer: W, service: &str, instance: &str) -> Self {
        Self { format: LineFormat::Json { service: json::service(service, instance) }, writer }
    }

    pub(crate) fn pretty(writer: W, ansi: bool) -> Self {
        Self { format: LineFormat::Pretty { ansi }, writer }
    }

    fn write(&self, line: &mut String, record: &Record<'_>) {
        let mut time = String::with_capacity(32);
        if SystemTime.format_time(&mut Writer::new(&mut time)).is_err() {
            time.clear();
        }
        match &self.format {
            LineFormat::Json { service } => json::write(line, record, &time, service),
            LineFormat::Pretty { ansi } => pretty::write(line, record, &time, *ansi),
        }
        line.push('\n');
    }
}

impl<S, W> Layer<S> for LogLayer<W>
where
    S: Subscriber + for<'l> LookupSpan<'l>,
    W: for<'w> MakeWriter<'w> + 'static,
{
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields(Vec::with_capacity(attributes.fields().len()));
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let record = Record::new(event, &context);
        let write = |line: &mut String| {
            line.clear();
            self.write(line, &record);
            let mut writer = self.writer.make_writer_for(event.metadata());
            // A failed write cannot be reported anywhere. A single write keeps lines of several threads apart.
            drop(writer.write_all(line.as_bytes()));
            line.shrink_to(KEPT);
        };
        LINE.with(|line| match line.try_borrow_mut() {
            Ok(mut line) => write(&mut line),
            // The writer itself has logged.
            Err(_) => write(&mut String::new()),
        });
    }
}
