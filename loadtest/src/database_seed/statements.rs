//! The SQL that copies a session, its run and their events.
//!
//! Runs are numbered round-robin over the sessions: the first run of each session, then the second of each, as if many clients
//! had submitted concurrently. So the rows of one session are not adjacent in the tables.

use std::fmt::Write as _;

use anyhow::Context as _;
use remuda_domain::{EventId, RunId, SessionId, ToolCallId};
use uuid::Uuid;

use super::base_id;

/// Base-32 digits of a counter.
const DIGITS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Postgres,
    Sqlite,
}

impl Dialect {
    pub(super) fn literal(self, id: Uuid) -> String {
        match self {
            Self::Postgres => format!("'{id}'::uuid"),
            Self::Sqlite => format!("x'{}'", id.simple()),
        }
    }

    /// An SQL expression for the id with the prefix of `first` and a counter.
    fn id(self, first: Uuid, number: &str) -> String {
        let begin = &first.simple().to_string()[..22];
        match self {
            Self::Postgres => format!("('{begin}' || lpad(to_hex({number}), 10, '0'))::uuid"),
            Self::Sqlite => format!("unhex('{begin}' || printf('%010x', {number}))"),
        }
    }

    /// SQL for a table `g` of the numbers `n` from 0 on: the part before the statement, and the table expression.
    fn numbers(self, count: u64) -> (String, String) {
        match self {
            Self::Postgres => (String::new(), format!("generate_series(0::bigint, {count} - 1) AS g (n)")),
            Self::Sqlite => {
                let last = count - 1;
                let before = format!(
                    "WITH RECURSIVE g (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM g WHERE n < {last}) "
                );
                (before, "g".to_owned())
            }
        }
    }
}

/// The events of the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The creation of the session: one per session.
    Session,
    /// The queueing of the run: one per run.
    Run,
}

pub(super) const EVENTS: [Event; 2] = [Event::Session, Event::Run];

impl Event {
    fn cursor(self) -> i64 {
        match self {
            Self::Session => 1,
            Self::Run => 2,
        }
    }
}

/// A stored event, and its id, which is replaced in the copies.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventTemplate {
    chunk: String,
    id: String,
}

impl EventTemplate {
    pub(super) fn parse(chunk: &str) -> anyhow::Result<Self> {
        let events: Vec<serde_json::Value> = serde_json::from_str(chunk)?;
        let [event] = &events[..] else { anyhow::bail!("{} events instead of one", events.len()) };
        let id = event["id"].as_str().context("event has no id")?.to_owned();
        Ok(Self { chunk: chunk.to_owned(), id })
    }
}

/// What is copied, and how many times.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) dialect: Dialect,
    /// The template.
    pub(super) session: SessionId,
    pub(super) run: RunId,
    /// The copies.
    pub(super) first_session: Uuid,
    pub(super) first_run: Uuid,
    pub(super) sessions: u64,
    pub(super) runs_per_session: u64,
    pub(super) pool: &'static str,
}

impl Statements {
    pub(super) fn sessions(&self, columns: &[String]) -> String {
        let Self { dialect, runs_per_session, pool, .. } = self;
        let changed = [
            ("id", dialect.id(self.first_session, "g.n")),
            ("pool", format!("'{pool}'")),
            ("pending", runs_per_session.to_string()),
            ("last_seq", runs_per_session.to_string()),
            // The first event is the creation of the session.
            ("last_cursor", (runs_per_session + 1).to_string()),
        ];
        self.copy("sessions", columns, &changed, self.session.as_uuid(), self.sessions)
    }

    pub(super) fn runs(&self, columns: &[String], input: &str) -> anyhow::Result<String> {
        let (sessions, number) = (self.sessions, "g.n");
        let tool = tool_call(input).context("the template run has no call")?;
        let tools = ToolCallId::from_uuid(base_id(ToolCallId::new().as_uuid())).to_string();
        let changed = [
            ("id", self.dialect.id(self.first_run, number)),
            ("session_id", self.dialect.id(self.first_session, &format!("g.n % {sessions}"))),
            ("seq", format!("g.n / {sessions} + 1")),
            ("input", format!("replace(t.input, '{tool}', {})", text_id(&tools, number))),
        ];
        Ok(self.copy("runs", columns, &changed, self.run.as_uuid(), sessions * self.runs_per_session))
    }

    /// The statement that inserts the events; `None` if there are none.
    pub(super) fn events(&self, event: Event, template: &EventTemplate) -> Option<String> {
        let sessions = self.sessions;
        let count = match event {
            Event::Session => sessions,
            Event::Run => sessions * self.runs_per_session,
        };
        if count == 0 {
            return None;
        }
        let (of_session, seq) = (format!("g.n % {sessions}"), format!("(g.n / {sessions} + 1)"));
        let first_session = SessionId::from_uuid(self.first_session).to_string();
        let events = EventId::from_uuid(base_id(EventId::new().as_uuid())).to_string();
        let mut chunk = quoted(&template.chunk);
        let mut replace = |old: &str, new: &str| chunk = format!("replace({chunk}, {}, {new})", quoted(old));
        replace(&template.id, &text_id(&events, "g.n"));
        replace(&self.session.to_string(), &text_id(&first_session, &of_session));
        let cursor = match event {
            Event::Session => "1".to_owned(),
            Event::Run => {
                let first_run = RunId::from_uuid(self.first_run).to_string();
                replace(&self.run.to_string(), &text_id(&first_run, "g.n"));
                for field in ["seq", "pending"] {
                    replace(&format!("\"{field}\":1"), &format!("'\"{field}\":' || {seq}"));
                }
                replace("\"cursor\":2", &format!("'\"cursor\":' || ({seq} + 1)"));
                format!("{seq} + 1")
            }
        };
        let (before, numbers) = self.dialect.numbers(count);
        let session = self.dialect.id(self.first_session, &of_session);
        Some(format!(
            "{before}INSERT INTO events (session_id, last_cursor, chunk) SELECT {session}, {cursor}, {chunk} FROM {numbers}"
        ))
    }

    /// A query for the stored chunk of an event of the template.
    pub(super) fn chunk(&self, event: Event) -> String {
        let session = self.dialect.literal(self.session.as_uuid());
        format!("SELECT chunk FROM events WHERE session_id = {session} AND last_cursor = {}", event.cursor())
    }

    /// A query for the input of the template run.
    pub(super) fn input(&self) -> String {
        format!("SELECT input FROM runs WHERE id = {}", self.dialect.literal(self.run.as_uuid()))
    }

    /// The statement that copies a row this many times with some columns changed. Unknown columns are copied unchanged.
    fn copy(
        &self,
        table: &str,
        columns: &[String],
        changed: &[(&str, String)],
        template: Uuid,
        count: u64,
    ) -> String {
        let value = |column: &String| {
            let change = changed.iter().find(|(name, _)| name == column);
            change.map_or_else(|| format!("t.{column}"), |(_, value)| value.clone())
        };
        let values: Vec<String> = columns.iter().map(value).collect();
        let (before, numbers) = self.dialect.numbers(count);
        // Copied through a temporary table: SQLite would materialise a select from the table that it inserts into.
        format!(
            "CREATE TEMP TABLE template AS SELECT * FROM {table} WHERE id = {}; \
             {before}INSERT INTO {table} ({}) SELECT {} FROM {numbers} CROSS JOIN template t; DROP TABLE template",
            self.dialect.literal(template),
            columns.join(", "),
            values.join(", ")
        )
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// An SQL expression for an id as text, with a counter in its last digits.
fn text_id(first: &str, number: &str) -> String {
    let mut sql = quoted(&first[..first.len() - DIGITS]);
    for digit in (0..DIGITS).rev() {
        let shift = 5 * digit;
        let _infallible = write!(
            sql,
            " || substr('0123456789abcdefghjkmnpqrstvwxyz', CAST((({number}) >> {shift}) & 31 AS int) + 1, 1)"
        );
    }
    sql
}

/// The id of the only call.
fn tool_call(input: &str) -> Option<String> {
    let input: serde_json::Value = serde_json::from_str(input).ok()?;
    Some(input["calls"][0]["id"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection, query_as, raw_sql};

    use super::*;

    const TABLES: &str = "CREATE TABLE sessions (id blob PRIMARY KEY, pool text, pending int, last_seq int, last_cursor int, more text); \
         CREATE TABLE runs (id blob PRIMARY KEY, session_id blob, seq int, input text, more text); \
         CREATE TABLE events (session_id blob, last_cursor int, chunk text, PRIMARY KEY (session_id, last_cursor))";
    const TOOL: &str = "tool_01m7mh8hv1edpv9emj6t5kv144";

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn statements(dialect: Dialect) -> Statements {
        Statements {
            dialect,
            session: SessionId::new(),
            run: RunId::new(),
            first_session: base_id(SessionId::new().as_uuid()),
            first_run: base_id(RunId::new().as_uuid()),
            sessions: 40,
            runs_per_session: 3,
            pool: "default",
        }
    }

    #[tokio::test]
    async fn copies_differ_only_in_ids_and_numbers() {
        let it = statements(Dialect::Sqlite);
        let (session, run) = (it.session.to_string(), it.run.to_string());
        let input = format!(r#"{{"calls":[{{"id":"{TOOL}"}}]}}"#);
        let chunk = format!(
            r#"[{{"id":"evt_1","cursor":2,"session":"{session}","run":"{run}","data":{{"seq":1,"pending":1}}}}]"#
        );
        let template = EventTemplate::parse(&chunk).unwrap();
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let rows = format!(
            "INSERT INTO sessions VALUES ({}, 'elsewhere', 1, 1, 2, 'kept'); INSERT INTO runs VALUES ({}, {}, 1, '{input}', 'kept')",
            it.dialect.literal(it.session.as_uuid()),
            it.dialect.literal(it.run.as_uuid()),
            it.dialect.literal(it.session.as_uuid()),
        );
        let copies = [
            it.sessions(&names(&["id", "pool", "pending", "last_seq", "last_cursor", "more"])),
            it.runs(&names(&["id", "session_id", "seq", "input", "more"]), &input).unwrap(),
            it.events(Event::Run, &template).unwrap(),
        ];
        for sql in [TABLES.to_owned(), rows].into_iter().chain(copies) {
            raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        }
        let sessions: Vec<(Uuid, String, i64, i64, String)> =
            query_as("SELECT id, pool, pending, last_cursor, more FROM sessions ORDER BY id LIMIT 41")
                .fetch_all(&mut connection)
                .await
                .unwrap();
        let last = super::super::nth_id(it.first_session, 39);
        assert_eq!(sessions.len(), 41);
        assert!(sessions.contains(&(last, "default".to_owned(), 3, 4, "kept".to_owned())));
        // The last run, number 119, is the third of the last session.
        let (id, session, seq, input): (Uuid, Uuid, i64, String) =
            query_as("SELECT id, session_id, seq, input FROM runs ORDER BY seq DESC, id DESC LIMIT 1")
                .fetch_one(&mut connection)
                .await
                .unwrap();
        assert_eq!((id, session, seq), (super::super::nth_id(it.first_run, 119), last, 3));
        assert!(input.contains("00003q\"") && !input.contains(TOOL), "{input}");
        let (cursor, chunk): (i64, String) = query_as(
            "SELECT last_cursor, chunk FROM events WHERE session_id = $1 ORDER BY last_cursor DESC LIMIT 1",
        )
        .bind(last)
        .fetch_one(&mut connection)
        .await
        .unwrap();
        assert_eq!(cursor, 4);
        let event: serde_json::Value = serde_json::from_str(&chunk).unwrap();
        assert_eq!(event[0]["session"], SessionId::from_uuid(last).to_string());
        assert_eq!(event[0]["run"], RunId::from_uuid(id).to_string());
        assert_eq!(
            (&event[0]["cursor"], &event[0]["data"]["seq"], &event[0]["data"]["pending"]),
            (&4.into(), &3.into(), &3.into())
        );
        assert!(event[0]["id"].as_str().unwrap().parse::<EventId>().is_ok(), "{chunk}");
    }

    #[test]
    fn sessions_without_runs_have_no_run_events() {
        let none = Statements { runs_per_session: 0, ..statements(Dialect::Postgres) };
        let template = EventTemplate::parse(r#"[{"id":"evt_1","cursor":1}]"#).unwrap();
        assert!(
            none.events(Event::Run, &template).is_none() && none.events(Event::Session, &template).is_some()
        );
        assert!(EventTemplate::parse("[]").is_err());
    }
}
