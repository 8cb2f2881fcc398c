//! The services behind Remuda: database and NATS.

use std::{
    path::{Path, PathBuf},
    str::FromStr as _,
    time::Duration,
};

use chrono::{DateTime, Utc};
use remuda_config::{Config, SecretUrl};
use remuda_domain::Error;
use remuda_store::Options;
use remuda_transport::{Nats, NatsOptions, NatsReport};
use sqlx::{Connection as _, sqlite::SqliteConnectOptions};
use tokio::time::timeout;

use super::{Check, Mode};

/// How long a service may take to answer. A start is more patient; a doctor reports what is so now.
const PATIENCE: Duration = Duration::from_secs(5);
/// Leases are compared by the database's clock alone, so this much only makes times in logs confusing.
const TOLERABLE_DRIFT: Duration = Duration::from_secs(2);
/// 2024-01-01: this program did not exist before.
const EPOCH: i64 = 1_704_067_200;
/// First NATS that neither wedges sessions nor loses streams when it is killed.
const RECOMMENDED_NATS: [u64; 3] = [2, 10, 23];

/// Whether the database answers with the schema this program needs.
pub(super) async fn store(config: &Config, mode: Mode) -> Check {
    const NAME: &str = "store";
    let url = match mode {
        Mode::Split if !config.store.url.expose().starts_with("postgres") => {
            return Check::problem(
                NAME,
                "the split mode needs PostgreSQL and store.url names none",
                "set REMUDA_STORE__URL=postgres://user:password@host/database",
            );
        }
        Mode::Split => config.store.url.clone(),
        Mode::Embedded => match config.embedded_store_url() {
            Ok(url) => url,
            Err(error) => return Check::problem(NAME, error.to_string(), "set data_dir, or HOME"),
        },
    };
    if let Some(path) = sqlite_path(url.expose()) {
        match path.try_exists() {
            Ok(true) => {}
            Ok(false) => return Check::ok(NAME, format!("{} (will be created)", path.display())),
            Err(error) => {
                let found = format!("{} cannot be reached: {error}", path.display());
                return Check::problem(
                    NAME,
                    found,
                    "correct the permissions, or set store.url to another place",
                );
            }
        }
    }
    let options = Options { connect_timeout: PATIENCE, max_connections: 1, ..Options::new(url.expose()) };
    let status = match timeout(PATIENCE * 2, remuda_store::schema_status(&options)).await {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => {
            let mend = if sqlite_path(url.expose()).is_some() {
                "check that the file is a Remuda database and that this user may read and write it and its directory"
            } else {
                "check that PostgreSQL runs, that host and port are right and that user and password are accepted"
            };
            return Check::problem(NAME, format!("{url}: {}", chain(&error)), mend);
        }
        Err(_) => {
            let found = format!("{url} did not answer within {} s", PATIENCE.as_secs());
            return Check::problem(
                NAME,
                found,
                "check that PostgreSQL runs and that no firewall is in the way",
            );
        }
    };
    let found = format!("{url}, schema version {}", status.found);
    let needed = status.wanted;
    if status.found > needed {
        let mend = "use the newer remuda that migrated this database";
        return Check::problem(NAME, format!("{found}, this program knows only {needed}"), mend);
    }
    if status.found < needed && mode == Mode::Embedded {
        return Check::ok(NAME, format!("{found} (will be migrated to {needed})"));
    }
    if status.found < needed {
        return Check::problem(NAME, format!("{found}, {needed} is needed"), "run `remuda migrate`");
    }
    Check::ok(NAME, found)
}

/// The file of a `sqlite:` URL.
fn sqlite_path(url: &str) -> Option<PathBuf> {
    let options = url.starts_with("sqlite:").then(|| SqliteConnectOptions::from_str(url).ok())??;
    Some(options.get_filename().to_owned())
}

/// Whether this machine's clock makes sense, and agrees with the database's.
pub(super) async fn clock(config: &Config, mode: Mode) -> Check {
    const NAME: &str = "clock";
    let now = Utc::now();
    let shown = now.format("%Y-%m-%d %H:%M:%S UTC");
    if now.timestamp() < EPOCH {
        return Check::problem(
            NAME,
            format!("it is {shown}, which cannot be"),
            "set the clock, and keep it set with NTP",
        );
    }
    let url = config.store.url.expose();
    if mode == Mode::Embedded || !url.starts_with("postgres") {
        return Check::ok(NAME, format!("{shown}"));
    }
    // An unreachable database is the store's problem, reported there.
    let Ok(Some(drift)) = timeout(PATIENCE, database_drift(url)).await else {
        return Check::ok(NAME, format!("{shown}, not compared with the database"));
    };
    judge_drift(drift)
}

fn judge_drift(drift: Duration) -> Check {
    const NAME: &str = "clock";
    let found = format!("{:.1} s apart from the database's", drift.as_secs_f64());
    if drift > TOLERABLE_DRIFT {
        return Check::warning(NAME, found, "keep the clocks of both machines set with NTP");
    }
    Check::ok(NAME, found)
}

/// How far this clock and the database's are apart. One connection of its own: the store asks the database for the time
/// only inside its statements.
async fn database_drift(url: &str) -> Option<Duration> {
    let mut connection = sqlx::PgConnection::connect(url).await.ok()?;
    let before = Utc::now();
    let theirs: DateTime<Utc> =
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&mut connection).await.ok()?;
    let after = Utc::now();
    connection.close().await.ok()?;
    // They looked somewhere between our two looks.
    let ours = before + (after - before) / 2;
    (theirs - ours).abs().to_std().ok()
}

/// Whether NATS answers, is fit, and has the stream as we want it.
pub(super) async fn nats(config: &Config, mode: Mode) -> Check {
    const NAME: &str = "NATS";
    if mode == Mode::Embedded {
        return Check::not_used(NAME, "not used in the embedded mode");
    }
    let nats = &config.nats;
    let shown = nats.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let credentials = Some(&nats.credentials_file).filter(|file| !file.as_os_str().is_empty());
    if let Some(check) = credentials.and_then(|file| unreadable_credentials(file)) {
        return check;
    }
    let options = NatsOptions {
        connect_timeout: PATIENCE,
        request_timeout: PATIENCE,
        ..remuda_node::nats_options(config)
    };
    let look = async {
        let nats = Nats::connect(options).await?;
        let report = nats.inspect().await;
        // Nothing was sent: there is nothing to wait for.
        drop(nats);
        report
    };
    match timeout(PATIENCE * 3, look).await {
        Ok(Ok(report)) => judge_nats(&shown, &report, nats.replicas),
        Ok(Err(error)) => Check::problem(
            NAME,
            format!("{shown}: {}", without_secrets(&chain(&error), &nats.servers)),
            "check that nats-server runs with JetStream (`nats-server -js`), that nats.servers is right and the version fits",
        ),
        Err(_) => {
            Check::problem(NAME, format!("{shown} did not answer in time"), "check that nats-server runs")
        }
    }
}

/// An error may quote the address it failed at, and that may hold a password.
fn without_secrets(text: &str, urls: &[SecretUrl]) -> String {
    urls.iter().fold(text.to_owned(), |text, url| text.replace(url.expose(), &url.masked()))
}

fn unreadable_credentials(file: &Path) -> Option<Check> {
    let error = std::fs::File::open(file).err()?;
    let found = format!("{} cannot be read: {}", file.display(), error.kind());
    Some(Check::problem("NATS", found, "correct nats.credentials_file, or the file's permissions"))
}

fn judge_nats(servers: &str, report: &NatsReport, replicas: u32) -> Check {
    const NAME: &str = "NATS";
    let found = format!("{} at {servers}", report.version);
    let (missing, unfit): (Vec<_>, Vec<_>) =
        report.problems.iter().partition(|problem| problem.ends_with("does not exist"));
    if !unfit.is_empty() {
        let list = unfit.iter().map(|problem| problem.as_str()).collect::<Vec<_>>().join("; ");
        let stream = &report.stream;
        return Check::problem(
            NAME,
            format!("{found}: {list}"),
            format!(
                "change the settings, or delete the stream (`nats stream rm {stream}`): it is made anew and loses no run"
            ),
        );
    }
    if replicas == 1 && version(&report.version).is_some_and(|version| version < RECOMMENDED_NATS) {
        return Check::warning(
            NAME,
            format!(
                "{found}: this version may keep dead tokens after a crash, which the sweep has to clear away"
            ),
            "use NATS 2.10.23 or later",
        );
    }
    if !missing.is_empty() {
        return Check::ok(NAME, format!("{found}, stream {} (will be created)", report.stream));
    }
    let NatsReport { messages, pending, orphans, .. } = report;
    Check::ok(NAME, format!("{found}, tokens: {messages}, waiting: {pending}, without a consumer: {orphans}"))
}

fn version(text: &str) -> Option<[u64; 3]> {
    let numbers = text.trim_start_matches('v').split(['-', '+']).next()?;
    let mut parts = numbers.split('.').map(str::parse);
    Some([parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?])
}

/// The error with its causes, in one line.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let next = error.to_string();
        // Many errors repeat what is behind them.
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn nats_is_judged_by_version_and_settings() {
        let report = |version: &str, problems: &[&str]| NatsReport {
            version: version.to_owned(),
            stream: "REMUDA".to_owned(),
            problems: problems.iter().map(|problem| (*problem).to_owned()).collect(),
            ..NatsReport::default()
        };
        let judge = |version, problems: &[&str]| judge_nats("nats://x", &report(version, problems), 1);
        assert_eq!(judge("2.15.1", &[]).level, Level::Ok);
        assert_eq!(judge("2.9.10", &[]).level, Level::Warning);
        assert_eq!(judge("odd", &[]).level, Level::Ok);
        let missing = judge("2.15.1", &["stream REMUDA does not exist"]);
        assert_eq!((missing.level, missing.found.ends_with("(will be created)")), (Level::Ok, true));
        let unfit = judge("2.15.1", &["discard is old"]);
        assert_eq!(unfit.level, Level::Problem);
        assert!(unfit.mend.unwrap().contains("nats stream rm REMUDA"));
    }

    #[test]
    fn errors_do_not_quote_passwords() {
        let urls = [SecretUrl::new("nats://u:hunter2@h:1")];
        assert_eq!(
            without_secrets("at nats://u:hunter2@h:1: refused", &urls),
            "at nats://u:***@h:1: refused"
        );
    }

    #[test]
    fn clocks_may_differ_a_little() {
        assert_eq!(judge_drift(Duration::from_secs(2)).level, Level::Ok);
        assert_eq!(judge_drift(Duration::from_millis(2001)).level, Level::Warning);
    }

    #[test]
    fn the_file_of_a_url_is_found() {
        for (url, path) in [
            ("sqlite:/a/b.db", "/a/b.db"),
            ("sqlite:///a/b.db", "/a/b.db"),
            ("sqlite:/a%3Fb%2525.db?mode=rwc", "/a?b%25.db"),
        ] {
            assert_eq!(sqlite_path(url), Some(PathBuf::from(path)), "{url}");
        }
        assert_eq!(sqlite_path("postgres://x"), None);
    }
}
