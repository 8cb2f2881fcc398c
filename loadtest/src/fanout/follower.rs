//! Readers that follow a session over SSE and record what they receive.

use std::{sync::Arc, time::Duration};

use remuda_proto::v1;
use serde::Deserialize;
use tokio::{sync::watch, time::sleep};

use super::{
    connection::{Buffers, Connection, Resume, StreamError, StreamRequest, StreamServers},
    sse::Message,
};
use crate::{
    observed_history::{Micros, ObservedEvent, ReaderLog, micros},
    workload::{Goal, observe},
};

/// Pause before the next connection attempt.
const PAUSE: Duration = Duration::from_millis(100);
/// Problems that are kept per reader. The first ones usually explain the rest.
const MAX_PROBLEMS: usize = 5;

/// Whether a reader reads from its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    ReaderLog,
    Stopped,
}

/// Counts the readers that have connected once.
#[derive(Clone, Debug)]
pub(super) struct OpenCounter(watch::Sender<usize>);

impl OpenCounter {
    pub(super) fn new() -> Self {
        Self(watch::channel(0).0)
    }

    pub(super) async fn reach(&self, readers: usize) {
        let mut count = self.0.subscribe();
        // The channel cannot close: the sender is held here.
        drop(count.wait_for(|count| *count >= readers).await);
    }

    pub(super) fn count(&self) -> usize {
        *self.0.borrow()
    }
}

/// A reader and what it has received so far.
#[derive(Debug)]
pub(super) struct Follower {
    servers: Arc<StreamServers>,
    goal: Goal,
    opened: OpenCounter,
    pub(super) buffers: Buffers,
    pub(super) read_state: Option<watch::Receiver<ReadState>>,
    /// Selects the server and the way to send the cursor.
    attempt: usize,
    connection: Option<Connection>,
    result: FollowerResult,
}

/// What a reader received over all its connections.
#[derive(Debug)]
pub(super) struct FollowerResult {
    pub(super) log: ReaderLog,
    /// Violations of the protocol by a server.
    pub(super) problems: Vec<String>,
    /// Connections that the server accepted.
    pub(super) connections: u64,
    /// Bytes received on these connections.
    pub(super) bytes: u64,
}

/// The checked fields of an event.
#[derive(Deserialize)]
struct EventData<'a> {
    cursor: i64,
    r#type: &'a str,
    run_id: Option<&'a str>,
    at: Option<&'a str>,
}

impl Follower {
    /// Follows `session` from its beginning up to the goal. `number` selects the first server.
    pub(super) fn new(
        number: usize,
        servers: &Arc<StreamServers>,
        session: &Arc<str>,
        goal: Goal,
        opened: &OpenCounter,
    ) -> Self {
        let log = ReaderLog {
            reader: format!("reader {number}"),
            session: Arc::clone(session),
            after: 0,
            events: Vec::new(),
            refused: Vec::new(),
        };
        Self {
            servers: Arc::clone(servers),
            goal,
            opened: opened.clone(),
            buffers: Buffers::Default,
            read_state: None,
            attempt: number,
            connection: None,
            result: FollowerResult { log, problems: Vec::new(), connections: 0, bytes: 0 },
        }
    }

    /// Sets the name under which its log is found.
    pub(super) fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.result.log.reader);
        self
    }

    /// Reads until the goal is reached or `timeout` has passed since it was set.
    pub(super) async fn run(mut self, timeout: Duration) -> FollowerResult {
        let mut late = std::pin::pin!(time_out(self.goal.clone(), timeout));
        while !self.is_done() {
            tokio::select! {
                () = self.once() => drop(self.take_connection()),
                () = &mut late => break,
            }
        }
        self.into_result()
    }

    pub(super) fn into_result(mut self) -> FollowerResult {
        self.take_connection();
        self.result
    }

    pub(super) fn connections(&self) -> u64 {
        self.result.connections
    }

    pub(super) fn is_done(&self) -> bool {
        self.goal.borrow().is_some_and(|last| self.cursor() >= last)
    }

    fn cursor(&self) -> i64 {
        let log = &self.result.log;
        log.events.last().map_or(log.after, |seen| seen.cursor)
    }

    /// The connection that remains if [`once`](Self::once) was cancelled.
    pub(super) fn take_connection(&mut self) -> Option<Connection> {
        let connection = self.connection.take();
        self.result.bytes += connection.as_ref().map_or(0, Connection::bytes);
        connection
    }

    /// Opens one connection and reads to its end or to the goal. Cancel-safe.
    pub(super) async fn once(&mut self) {
        self.attempt += 1;
        // Alternates so that every way of resuming is used at every server.
        let resume = if (self.attempt / 2).is_multiple_of(2) { Resume::LastEventId } else { Resume::Cursor };
        let session = Arc::clone(&self.result.log.session);
        let request =
            StreamRequest { session: &session, after: self.cursor(), resume, buffers: self.buffers };
        match Connection::open(&self.servers, self.attempt, request).await {
            Ok(connection) => {
                self.connection = Some(connection);
                self.result.connections += 1;
                if self.result.connections == 1 {
                    self.opened.0.send_modify(|count| *count += 1);
                }
                match self.read().await {
                    Ok(()) => return,
                    Err(error) => self.record_error(error),
                }
            }
            Err(error) => self.record_error(error),
        }
        sleep(PAUSE).await;
    }

    /// Reads until the goal is reached or the stream ends.
    async fn read(&mut self) -> Result<(), StreamError> {
        while !self.is_done() {
            self.wait_until_reading().await;
            let Some(connection) = &mut self.connection else { return Ok(()) };
            let messages = tokio::select! {
                messages = connection.next() => messages?,
                _ = self.goal.changed() => continue,
                () = read_state_changed(&mut self.read_state) => continue,
            };
            let Some(messages) = messages else { return Err(StreamError::Connection) };
            for message in &messages {
                self.record(message);
            }
        }
        Ok(())
    }

    /// Waits while reading is stopped.
    async fn wait_until_reading(&mut self) {
        if let Some(read_state) = &mut self.read_state {
            // A closed channel means that reading is never stopped again.
            drop(read_state.wait_for(|read_state| *read_state == ReadState::ReaderLog).await);
        }
    }

    fn record(&mut self, message: &Message) {
        match (&message.id, message.name.as_str()) {
            (Some(id), name) => match serde_json::from_str::<EventData<'_>>(&message.data) {
                Ok(data) if data.cursor.to_string() == *id && data.r#type == name => {
                    self.result.log.events.push(data.to_event());
                }
                Ok(data) => self.report_problem(&format!(
                    "id {id} of {name} differs from its data: cursor {} of {}",
                    data.cursor, data.r#type
                )),
                Err(error) => {
                    self.report_problem(&format!("the data of event {id} is not an event: {error}"))
                }
            },
            // The server asks for a reconnect, which follows when it closes the connection.
            (None, "goodbye") => {}
            (None, name) => self.report_problem(&format!("got {name:?}: {}", message.data)),
        }
    }

    fn record_error(&mut self, error: StreamError) {
        match error {
            StreamError::Connection => {}
            StreamError::Refused { status: 416, body } => self.result.log.refused.push(body),
            // These statuses ask for a retry.
            StreamError::Refused { status: 429 | 503, .. } => {}
            StreamError::Refused { status, body } => {
                self.report_problem(&format!("was refused with {status}: {body}"))
            }
            StreamError::Malformed(error) => {
                self.report_problem(&format!("cannot read the answer: {error:#}"))
            }
        }
    }

    fn report_problem(&mut self, problem: &str) {
        let FollowerResult { log, problems, .. } = &mut self.result;
        if problems.len() < MAX_PROBLEMS {
            problems.push(format!("{} of {}: {problem}", log.reader, log.session));
        }
    }
}

impl EventData<'_> {
    fn to_event(&self) -> ObservedEvent {
        let event = v1::Event {
            cursor: self.cursor,
            r#type: self.r#type.to_owned(),
            run_id: self.run_id.unwrap_or_default().to_owned(),
            ..v1::Event::default()
        };
        ObservedEvent { at: self.at.map_or(0, time), ..observe(&event) }
    }
}

/// Parses a time; zero if it is invalid, which lies in no measurement window.
fn time(text: &str) -> Micros {
    let since =
        humantime::parse_rfc3339(text).ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0, micros)
}

/// Returns when `timeout` has passed since the goal was set, or at once if its sender is gone.
async fn time_out(mut goal: Goal, timeout: Duration) {
    if goal.wait_for(Option::is_some).await.is_ok() {
        sleep(timeout).await;
    }
}

/// Returns when reading is stopped or resumed.
async fn read_state_changed(read_state: &mut Option<watch::Receiver<ReadState>>) {
    match read_state {
        Some(read_state) => {
            if read_state.changed().await.is_err() {
                std::future::pending().await
            }
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::check::check;
    use crate::observed_history::History;

    fn event(id: i64, cursor: i64) -> String {
        let data = format!(r#"{{"cursor":{cursor},"type":"run.queued","at":"2026-01-02T03:04:05.000006Z"}}"#);
        format!("id: {id}\nevent: run.queued\ndata: {data}\n\n")
    }

    fn head(status: &str) -> String {
        format!("HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n\r\n")
    }

    fn chunk(text: &str) -> String {
        format!("{:x}\r\n{text}\r\n", text.len())
    }

    /// Runs a reader against a server that gives these answers, one per connection. Returns the result and the requests.
    async fn follow(answers: &[String], last: i64) -> (FollowerResult, Vec<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let servers =
            Arc::new(StreamServers::new(vec![listener.local_addr().unwrap()], Some("key".to_owned())));
        let goal = watch::channel(Some(last)).0;
        let follower = Follower::new(0, &servers, &"ses_1".into(), goal.subscribe(), &OpenCounter::new());
        let serving = async {
            let mut requests = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                requests.push(String::from_utf8(request).unwrap());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            requests
        };
        tokio::join!(follower.run(Duration::from_secs(30)), serving)
    }

    fn violations(result: FollowerResult) -> u64 {
        check(&History { reader_logs: vec![result.log], ..History::default() }).total()
    }

    #[tokio::test]
    async fn reader_resumes_after_the_last_complete_event() {
        // The second answer breaks off in the middle of event 3; the third asks for a retry.
        let second = format!("{}{}", head("200 OK"), &chunk(&event(3, 3))[..40]);
        let third = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}".to_owned();
        let first = format!("{}{}", head("200 OK"), chunk(&(event(1, 1) + &event(2, 2))));
        let goodbye = chunk("event: goodbye\ndata: {}\n\n") + "0\r\n\r\n";
        let last = format!("{}{}{goodbye}", head("200 OK"), chunk(&event(3, 3)));
        let (result, requests) = follow(&[first, second, third, last], 3).await;
        let asked: Vec<(&str, bool)> = requests
            .iter()
            .map(|request| (request.split(' ').nth(1).unwrap(), request.contains("last-event-id: 2\r\n")))
            .collect();
        let path = "/api/v1/sessions/ses_1/events";
        let with_cursor = format!("{path}?cursor=2");
        assert_eq!(asked, [(path, false), (&with_cursor, false), (&with_cursor, false), (path, true)]);
        assert!(requests.iter().all(|request| request.contains("authorization: Bearer key\r\n")));
        assert_eq!((result.connections, result.problems.len()), (3, 0), "{:?}", result.problems);
        assert_eq!(result.log.events[2].at, 1_767_323_045_000_006);
        assert_eq!(violations(result), 0);
    }

    #[tokio::test]
    async fn protocol_violations_are_recorded() {
        let whole = chunk(&(event(1, 1) + &event(1, 1)));
        let twice = format!("{}{whole}", head("200 OK"));
        let odd = chunk(&format!("event: error\ndata: {{}}\n\n{}", event(2, 3)));
        let future = "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 2\r\n\r\n{}".to_owned();
        let error = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}".to_owned();
        let strange = format!("{}{odd}{}", head("200 OK"), chunk(&event(2, 2)));
        let (result, _) = follow(&[twice, future, error, strange], 2).await;
        assert_eq!(result.problems.len(), 3, "{:?}", result.problems);
        assert_eq!(violations(result), 2, "a duplicate, and a cursor that lies in the future");
    }
}
