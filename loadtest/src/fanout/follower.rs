//! Readers that follow a session over SSE and write down what they get.

use std::{sync::Arc, time::Duration};

use remuda_proto::v1;
use serde::Deserialize;
use tokio::{sync::watch, time::sleep};

use super::{
    connection::{Broken, Buffers, Connection, Places, Resume, Wish},
    sse::Message,
};
use crate::{
    history::{Micros, Reading, Seen, micros},
    workload::{Goal, seen},
};

/// Before the next try, wherever that is.
const PAUSE: Duration = Duration::from_millis(100);
/// Complaints that are kept of one reader. The first ones explain the rest.
const MAX_COMPLAINTS: usize = 5;

/// Whether a reader takes what is in its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Reading,
    Stopped,
}

/// How many readers have been let in.
#[derive(Clone, Debug)]
pub(super) struct Opened(watch::Sender<usize>);

impl Opened {
    pub(super) fn new() -> Self {
        Self(watch::channel(0).0)
    }

    pub(super) async fn reach(&self, readers: usize) {
        let mut count = self.0.subscribe();
        // It cannot be closed: the sender is here.
        drop(count.wait_for(|count| *count >= readers).await);
    }

    pub(super) fn count(&self) -> usize {
        *self.0.borrow()
    }
}

/// A reader and what it has so far.
#[derive(Debug)]
pub(super) struct Follower {
    places: Arc<Places>,
    goal: Goal,
    opened: Opened,
    pub(super) buffers: Buffers,
    pub(super) pace: Option<watch::Receiver<Pace>>,
    /// Which server to ask, and in which words.
    turn: usize,
    connection: Option<Connection>,
    followed: Followed,
}

/// What a reader got, over all its connections.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) reading: Reading,
    /// What no server may say or do.
    pub(super) complaints: Vec<String>,
    /// Connections on which the server began to tell.
    pub(super) connections: u64,
    /// All that came on them.
    pub(super) bytes: u64,
}

/// What is judged of an event.
#[derive(Deserialize)]
struct Told<'a> {
    cursor: i64,
    r#type: &'a str,
    run_id: Option<&'a str>,
    at: Option<&'a str>,
}

impl Follower {
    /// Follows `session` from its beginning until it has reached the goal. `number` decides which server it asks first.
    pub(super) fn new(
        number: usize,
        places: &Arc<Places>,
        session: &Arc<str>,
        goal: Goal,
        opened: &Opened,
    ) -> Self {
        let reading = Reading {
            reader: format!("reader {number}"),
            session: Arc::clone(session),
            after: 0,
            seen: Vec::new(),
            refused: Vec::new(),
        };
        Self {
            places: Arc::clone(places),
            goal,
            opened: opened.clone(),
            buffers: Buffers::Usual,
            pace: None,
            turn: number,
            connection: None,
            followed: Followed { reading, complaints: Vec::new(), connections: 0, bytes: 0 },
        }
    }

    /// The same with a name, by which its reading can be told from others.
    pub(super) fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.followed.reading.reader);
        self
    }

    /// Reads until the goal is reached, or `patience` is over after it was set.
    pub(super) async fn run(mut self, patience: Duration) -> Followed {
        let mut late = std::pin::pin!(give_up(self.goal.clone(), patience));
        while !self.is_done() {
            tokio::select! {
                () = self.once() => drop(self.take_connection()),
                () = &mut late => break,
            }
        }
        self.into_followed()
    }

    pub(super) fn into_followed(mut self) -> Followed {
        self.take_connection();
        self.followed
    }

    pub(super) fn connections(&self) -> u64 {
        self.followed.connections
    }

    pub(super) fn is_done(&self) -> bool {
        self.goal.borrow().is_some_and(|last| self.cursor() >= last)
    }

    fn cursor(&self) -> i64 {
        let reading = &self.followed.reading;
        reading.seen.last().map_or(reading.after, |seen| seen.cursor)
    }

    /// The connection that [`once`](Self::once) left when it was dropped in the middle.
    pub(super) fn take_connection(&mut self) -> Option<Connection> {
        let connection = self.connection.take();
        self.followed.bytes += connection.as_ref().map_or(0, Connection::bytes);
        connection
    }

    /// One connection, to its end or to the goal. May be dropped at any moment.
    pub(super) async fn once(&mut self) {
        self.turn += 1;
        // Each way of resuming at each server.
        let resume = if (self.turn / 2).is_multiple_of(2) { Resume::LastEventId } else { Resume::Cursor };
        let session = Arc::clone(&self.followed.reading.session);
        let wish = Wish { session: &session, after: self.cursor(), resume, buffers: self.buffers };
        match Connection::open(&self.places, self.turn, wish).await {
            Ok(connection) => {
                self.connection = Some(connection);
                self.followed.connections += 1;
                if self.followed.connections == 1 {
                    self.opened.0.send_modify(|count| *count += 1);
                }
                match self.read().await {
                    Ok(()) => return,
                    Err(broken) => self.note(broken),
                }
            }
            Err(broken) => self.note(broken),
        }
        sleep(PAUSE).await;
    }

    /// Reads until the goal is reached or there is no more.
    async fn read(&mut self) -> Result<(), Broken> {
        while !self.is_done() {
            self.wait_for_turn().await;
            let Some(connection) = &mut self.connection else { return Ok(()) };
            let messages = tokio::select! {
                messages = connection.next() => messages?,
                _ = self.goal.changed() => continue,
                () = told(&mut self.pace) => continue,
            };
            let Some(messages) = messages else { return Err(Broken::Connection) };
            for message in &messages {
                self.take(message);
            }
        }
        Ok(())
    }

    /// Comes back when it may read.
    async fn wait_for_turn(&mut self) {
        if let Some(pace) = &mut self.pace {
            // Nobody is left to stop it.
            drop(pace.wait_for(|pace| *pace == Pace::Reading).await);
        }
    }

    fn take(&mut self, message: &Message) {
        match (&message.id, message.name.as_str()) {
            (Some(id), name) => match serde_json::from_str::<Told<'_>>(&message.data) {
                Ok(told) if told.cursor.to_string() == *id && told.r#type == name => {
                    self.followed.reading.seen.push(told.seen());
                }
                Ok(told) => self.complain(&format!(
                    "id {id} of {name} differs from its data: cursor {} of {}",
                    told.cursor, told.r#type
                )),
                Err(error) => self.complain(&format!("the data of event {id} is no event: {error}")),
            },
            // It asks us to connect again, which we do as soon as it hangs up.
            (None, "goodbye") => {}
            (None, name) => self.complain(&format!("got {name:?}: {}", message.data)),
        }
    }

    fn note(&mut self, broken: Broken) {
        match broken {
            Broken::Connection => {}
            Broken::Refused { status: 416, body } => self.followed.reading.refused.push(body),
            // It says itself that it will pass.
            Broken::Refused { status: 429 | 503, .. } => {}
            Broken::Refused { status, body } => self.complain(&format!("was refused with {status}: {body}")),
            Broken::Malformed(error) => self.complain(&format!("cannot read the answer: {error:#}")),
        }
    }

    fn complain(&mut self, complaint: &str) {
        let Followed { reading, complaints, .. } = &mut self.followed;
        if complaints.len() < MAX_COMPLAINTS {
            complaints.push(format!("{} of {}: {complaint}", reading.reader, reading.session));
        }
    }
}

impl Told<'_> {
    fn seen(&self) -> Seen {
        let event = v1::Event {
            cursor: self.cursor,
            r#type: self.r#type.to_owned(),
            run_id: self.run_id.unwrap_or_default().to_owned(),
            ..v1::Event::default()
        };
        Seen { at: self.at.map_or(0, time), ..seen(&event) }
    }
}

/// Zero for what is no time, which no window of measurement contains.
fn time(text: &str) -> Micros {
    let since =
        humantime::parse_rfc3339(text).ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0, micros)
}

/// Ends when `patience` is over after the goal was set; at once when nobody is left to set it.
async fn give_up(mut goal: Goal, patience: Duration) {
    if goal.wait_for(Option::is_some).await.is_ok() {
        sleep(patience).await;
    }
}

/// Ends when somebody tells the reader to stop or to go on.
async fn told(pace: &mut Option<watch::Receiver<Pace>>) {
    match pace {
        Some(pace) => {
            if pace.changed().await.is_err() {
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
    use crate::history::History;

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

    /// A reader of a server that gives these answers, one for each connection, and the requests it made.
    async fn follow(answers: &[String], last: i64) -> (Followed, Vec<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let places = Arc::new(Places::new(vec![listener.local_addr().unwrap()], Some("key".to_owned())));
        let goal = watch::channel(Some(last)).0;
        let follower = Follower::new(0, &places, &"ses_1".into(), goal.subscribe(), &Opened::new());
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

    fn violations(followed: Followed) -> u64 {
        check(&History { readings: vec![followed.reading], ..History::default() }).total()
    }

    #[tokio::test]
    async fn goes_on_after_the_last_whole_event() {
        // The second answer breaks off in the middle of event 3, the third asks to come back later.
        let second = format!("{}{}", head("200 OK"), &chunk(&event(3, 3))[..40]);
        let third = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}".to_owned();
        let first = format!("{}{}", head("200 OK"), chunk(&(event(1, 1) + &event(2, 2))));
        let goodbye = chunk("event: goodbye\ndata: {}\n\n") + "0\r\n\r\n";
        let last = format!("{}{}{goodbye}", head("200 OK"), chunk(&event(3, 3)));
        let (followed, requests) = follow(&[first, second, third, last], 3).await;
        let asked: Vec<(&str, bool)> = requests
            .iter()
            .map(|request| (request.split(' ').nth(1).unwrap(), request.contains("last-event-id: 2\r\n")))
            .collect();
        let path = "/api/v1/sessions/ses_1/events";
        let with_cursor = format!("{path}?cursor=2");
        assert_eq!(asked, [(path, false), (&with_cursor, false), (&with_cursor, false), (path, true)]);
        assert!(requests.iter().all(|request| request.contains("authorization: Bearer key\r\n")));
        assert_eq!((followed.connections, followed.complaints.len()), (3, 0), "{:?}", followed.complaints);
        assert_eq!(followed.reading.seen[2].at, 1_767_323_045_000_006);
        assert_eq!(violations(followed), 0);
    }

    #[tokio::test]
    async fn what_no_server_may_say_is_noted() {
        let whole = chunk(&(event(1, 1) + &event(1, 1)));
        let twice = format!("{}{whole}", head("200 OK"));
        let odd = chunk(&format!("event: error\ndata: {{}}\n\n{}", event(2, 3)));
        let future = "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 2\r\n\r\n{}".to_owned();
        let broken = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}".to_owned();
        let strange = format!("{}{odd}{}", head("200 OK"), chunk(&event(2, 2)));
        let (followed, _) = follow(&[twice, future, broken, strange], 2).await;
        assert_eq!(followed.complaints.len(), 3, "{:?}", followed.complaints);
        assert_eq!(violations(followed), 2, "a duplicate, and a cursor that lies in the future");
    }
}
