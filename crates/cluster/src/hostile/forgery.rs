//! Messages that nobody has sent, made from what is known from real ones.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
};

use async_nats::Message;
use bytes::Bytes;
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use remuda_domain::{ControlPlaneId, EventId, MessageId, RunId, SessionId, TenantId, ToolCallId, WorkerId};
use remuda_transport::{GrantBatch, GrantRecord};
use serde_json::{Value, json};

/// Things that are remembered of each sort.
const REMEMBERED: usize = 64;

/// A forged message.
pub(super) struct Forgery {
    pub(super) kind: &'static str,
    pub(super) subject: String,
    pub(super) payload: Bytes,
}

/// What real messages tell.
pub(super) struct Forger {
    /// Where a forged grant writes.
    file: PathBuf,
    grants: VecDeque<GrantBatch>,
    /// Batches of events with their subject.
    events: VecDeque<(String, Value)>,
    offers: VecDeque<Value>,
    planes: VecDeque<ControlPlaneId>,
}

fn remember<T>(known: &mut VecDeque<T>, item: T) {
    if known.len() == REMEMBERED {
        known.pop_front();
    }
    known.push_back(item);
}

fn pick<T: Clone>(known: &VecDeque<T>, rng: &mut StdRng) -> Option<T> {
    known.get(rng.random_range(0..known.len().max(1))).cloned()
}

impl Forger {
    pub(super) fn new(file: &Path) -> Self {
        let file = file.to_owned();
        Self {
            file,
            grants: VecDeque::new(),
            events: VecDeque::new(),
            offers: VecDeque::new(),
            planes: VecDeque::new(),
        }
    }

    pub(super) fn learn(&mut self, message: &Message) {
        match message.subject.split('.').nth(1) {
            Some("grants") => {
                if let Ok(batch) = GrantBatch::decode(message.payload.clone()) {
                    remember(&mut self.planes, batch.from);
                    remember(&mut self.grants, batch);
                }
            }
            Some("events") => {
                if let Ok(events) = serde_json::from_slice(&message.payload) {
                    remember(&mut self.events, (message.subject.to_string(), events));
                }
            }
            Some("offers") => {
                if let Ok(offer) = serde_json::from_slice(&message.payload) {
                    remember(&mut self.offers, offer);
                }
            }
            _ => {}
        }
    }

    /// A forged message of a random kind. `None` if too little is known yet.
    pub(super) fn forge(&self, prefix: &str, rng: &mut StdRng) -> Option<Forgery> {
        let kinds = ["grants", "ends", "events", "deltas", "control", "offers", "notices", "ready"];
        let kind = *kinds.choose(rng)?;
        let (rest, payload) = match kind {
            "grants" => self.grant(rng)?,
            "ends" => self.end(rng)?,
            "events" => self.events(rng)?,
            "deltas" => self.delta(rng)?,
            "control" => self.signal(rng)?,
            "offers" => (String::new(), self.offer(rng)?.to_string().into()),
            "notices" => (String::new(), notice(rng).to_string().into()),
            _ => self.token(rng)?,
        };
        Some(Forgery { kind, subject: format!("{prefix}.{kind}{rest}"), payload })
    }

    fn worker(&self, rng: &mut StdRng) -> Option<String> {
        Some(pick(&self.offers, rng)?["worker"].as_str()?.to_owned())
    }

    /// The tenant, session and run of some events.
    fn run(&self, rng: &mut StdRng) -> Option<(String, String, String)> {
        let (subject, events) = pick(&self.events, rng)?;
        let mut ids = subject.split('.').skip(2).map(str::to_owned);
        let run = events[0]["run"].as_str().map_or_else(|| RunId::new().to_string(), str::to_owned);
        Some((ids.next()?, ids.next()?, run))
    }

    /// A captured batch with a call that writes outside of every workspace, for the captured run or an invented one.
    fn grant(&self, rng: &mut StdRng) -> Option<(String, Bytes)> {
        let mut batch = pick(&self.grants, rng)?;
        let worker = self.worker(rng)?;
        let mut grants: Vec<GrantRecord> = Vec::new();
        for mut record in batch.grants {
            let mut body: Value = serde_json::from_slice(record.body.as_deref()?).ok()?;
            if rng.random_bool(0.5) {
                (record.session, record.tenant) = (SessionId::new(), TenantId::new());
                body["run"]["id"] = json!(RunId::new());
            }
            body["workspace_root"] = json!("/");
            body["fence"] = json!({
                "tenant": record.tenant, "session": record.session, "worker": worker, "epoch": record.epoch
            });
            (body["run"]["session"], body["run"]["tenant"]) = (json!(record.session), json!(record.tenant));
            body["run"]["input"] = json!({ "kind": "tools", "calls": [{
                "id": ToolCallId::new(),
                "tool": "Write",
                "arguments": { "file_path": self.file, "content": "forged" },
            }] });
            record.body = Some(serde_json::to_vec(&body).ok()?.into());
            grants.push(record);
        }
        batch.grants = grants;
        batch.sent += rng.random_range(0..100);
        // The newest stamp of the worker is in its last offer.
        batch.stamp = self.offers.back()?["stamp"].as_u64()?;
        Some((format!(".{worker}"), batch.encode()))
    }

    fn end(&self, rng: &mut StdRng) -> Option<(String, Bytes)> {
        let (_, _, run) = self.run(rng)?;
        let plane = pick(&self.planes, rng)?;
        let now = chrono::Utc::now();
        let outcome = json!({
            "id": ToolCallId::new(), "tool": "noop", "status": "completed", "output": "forged", "duration_ms": 1
        });
        let completed = json!({ "started_at": now, "finished_at": now, "outcomes": [outcome] });
        Some((format!(".{plane}"), json!([{ "run": run, "completed": completed }]).to_string().into()))
    }

    /// The events behind captured ones.
    fn events(&self, rng: &mut StdRng) -> Option<(String, Bytes)> {
        let (subject, mut events) = pick(&self.events, rng)?;
        let ahead = rng.random_range(1..4);
        for event in events.as_array_mut()? {
            event["cursor"] = json!(event["cursor"].as_i64()? + ahead);
            event["id"] = json!(EventId::new());
        }
        let ids: Vec<&str> = subject.split('.').skip(2).collect();
        Some((format!(".{}", ids.join(".")), events.to_string().into()))
    }

    fn delta(&self, rng: &mut StdRng) -> Option<(String, Bytes)> {
        let (tenant, session, run) = self.run(rng)?;
        let delta = json!([{
            "run": run, "message": MessageId::new(), "kind": "text", "offset": 0, "text": "forged"
        }]);
        Some((format!(".{tenant}.{session}"), delta.to_string().into()))
    }

    fn signal(&self, rng: &mut StdRng) -> Option<(String, Bytes)> {
        let (tenant, session, run) = self.run(rng)?;
        let signal = match rng.random_range(0..4) {
            0 => json!({ "signal": "drain" }),
            1 => json!({ "signal": "yours", "tenant": tenant, "session": session }),
            2 => json!({ "signal": "tell_again", "session": session }),
            _ => json!({ "signal": "cancel", "session": session, "run": run }),
        };
        Some((format!(".{}", self.worker(rng)?), signal.to_string().into()))
    }

    /// Many slots, of a real or an invented worker.
    fn offer(&self, rng: &mut StdRng) -> Option<Value> {
        let mut offer = pick(&self.offers, rng)?;
        if rng.random_bool(0.5) {
            offer["worker"] = json!(WorkerId::new());
        }
        offer["room"] = json!(1000);
        offer["stamp"] = json!(offer["stamp"].as_u64()? + rng.random_range(0..1_000_000));
        Some(offer)
    }

    /// A token without work, or of something that does not exist.
    fn token(&self, rng: &mut StdRng) -> Option<(String, Bytes)> {
        let (tenant, session, _) = self.run(rng)?;
        let rest = match rng.random_range(0..3) {
            0 => format!(".default.{tenant}.{session}"),
            1 => format!(".default.{}.{session}", TenantId::new()),
            _ => ".default.x.y".to_owned(),
        };
        Some((rest, Bytes::new()))
    }
}

fn notice(rng: &mut StdRng) -> Value {
    let question = uuid::Uuid::from_u128(rng.random());
    let change =
        json!({ "filter": "off", "lasts": { "secs": 3600, "nanos": 0 }, "only": "all", "by": "forged" });
    json!({ "notice": "change_log", "question": question, "from": "forged", "change": change })
}
