//! Checks the database and NATS.

use std::{
    os::unix::fs::MetadataExt as _,
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

use super::{Check, Level, Mode};

/// Time limit for a service to answer. A server waits longer at its start; the doctor reports the current state.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// Leases use the clock of the database only, so drift merely makes times in logs confusing.
const MAX_CLOCK_DRIFT: Duration = Duration::from_secs(2);
/// 2024-01-01. An earlier time means that the clock is wrong.
const EARLIEST_TIME: i64 = 1_704_067_200;
/// First NATS version that neither blocks sessions nor loses streams when it is killed.
const RECOMMENDED_NATS: [u64; 3] = [2, 10, 23];

/// Checks that the database answers and has the required schema version.
pub(super) async fn store(config: &Config, mode: Mode) -> Check {
    const NAME: &str = "store";
    let url = match mode {
        Mode::Split if !config.store.url.expose().starts_with("postgres") => {
            return Check::problem(
                NAME,
                "the split mode needs PostgreSQL, but store.url does not name one",
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
                    "correct the permissions, or set store.url to another path",
                );
            }
        }
    }
    let options = Options { connect_timeout: TIMEOUT, max_connections: 1, ..Options::new(url.expose()) };
    let status = match timeout(TIMEOUT * 2, remuda_store::schema_status(&options)).await {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => {
            let fix = if sqlite_path(url.expose()).is_some() {
                "check that the file is a Remuda database, and that this user may read and write it and its directory"
            } else {
                "check that PostgreSQL runs, that host and port are correct, and that user and password are accepted"
            };
            return Check::problem(NAME, format!("{url}: {}", chain(&error)), fix);
        }
        Err(_) => {
            let found = format!("{url} did not answer within {} s", TIMEOUT.as_secs());
            return Check::problem(
                NAME,
                found,
                "check that PostgreSQL runs and that no firewall blocks the connection",
            );
        }
    };
    let found = format!("{url}, schema version {}", status.found);
    let needed = status.required;
    if status.found > needed {
        let fix = "use the newer version of remuda that migrated this database";
        return Check::problem(NAME, format!("{found}, but this binary supports only {needed}"), fix);
    }
    if status.found < needed && mode == Mode::Embedded {
        return Check::ok(NAME, format!("{found} (will be migrated to {needed})"));
    }
    if status.found < needed {
        return Check::problem(NAME, format!("{found}, but {needed} is required"), "run `remuda migrate`");
    }
    Check::ok(NAME, found)
}

/// The options of a database that exists; none is created.
pub(super) fn existing_store(config: &Config, mode: Mode) -> Option<Options> {
    let url = match mode {
        Mode::Split => config.store.url.clone(),
        Mode::Embedded => config.embedded_store_url().ok()?,
    };
    let exists = match sqlite_path(url.expose()) {
        Some(path) => path.try_exists().unwrap_or(false),
        None => url.expose().starts_with("postgres"),
    };
    let options = Options { connect_timeout: TIMEOUT, max_connections: 1, ..Options::new(url.expose()) };
    exists.then_some(options)
}

/// The file of a `sqlite:` URL.
pub(super) fn sqlite_path(url: &str) -> Option<PathBuf> {
    let options = url.starts_with("sqlite:").then(|| SqliteConnectOptions::from_str(url).ok())??;
    Some(options.get_filename().to_owned())
}

/// Checks that this machine's clock is plausible and agrees with the database's clock.
pub(super) async fn clock(config: &Config, mode: Mode) -> Check {
    const NAME: &str = "clock";
    let now = Utc::now();
    let shown = now.format("%Y-%m-%d %H:%M:%S UTC");
    if now.timestamp() < EARLIEST_TIME {
        return Check::problem(
            NAME,
            format!("the clock shows {shown}, which is wrong"),
            "set the clock and synchronize it with NTP",
        );
    }
    let url = config.store.url.expose();
    if mode == Mode::Embedded || !url.starts_with("postgres") {
        return Check::ok(NAME, format!("{shown}"));
    }
    // The store check reports an unreachable database.
    let Ok(Some(drift)) = timeout(TIMEOUT, database_drift(url)).await else {
        return Check::ok(NAME, format!("{shown}, not compared with the database"));
    };
    check_drift(drift)
}

fn check_drift(drift: Duration) -> Check {
    const NAME: &str = "clock";
    let found = format!("differs from the database's clock by {:.1} s", drift.as_secs_f64());
    if drift > MAX_CLOCK_DRIFT {
        return Check::warning(NAME, found, "synchronize the clocks of both machines with NTP");
    }
    Check::ok(NAME, found)
}

/// The difference between this clock and the database's. Opens a connection, because the store reads the database's time only
/// inside its statements.
async fn database_drift(url: &str) -> Option<Duration> {
    let mut connection = sqlx::PgConnection::connect(url).await.ok()?;
    let before = Utc::now();
    let database_time: DateTime<Utc> =
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&mut connection).await.ok()?;
    let after = Utc::now();
    connection.close().await.ok()?;
    // The database read its clock between the two local readings.
    let local_time = before + (after - before) / 2;
    (database_time - local_time).abs().to_std().ok()
}

/// Checks that NATS answers, has a suitable version, and that its stream has the right settings.
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
        connect_timeout: TIMEOUT,
        request_timeout: TIMEOUT,
        ..remuda_node::nats_options(config)
    };
    let anonymous = options.anonymous();
    let inspection = async {
        let nats = Nats::connect(options).await?;
        let report = nats.inspect().await;
        // Nothing was published, so there is nothing to flush.
        drop(nats);
        report
    };
    match timeout(TIMEOUT * 3, inspection).await {
        Ok(Ok(report)) => {
            let check = check_nats(&shown, &report, nats.replicas);
            let accepts_everybody =
                timeout(TIMEOUT, Nats::connect(anonymous)).await.is_ok_and(|it| it.is_ok());
            match check.level {
                Level::Ok if accepts_everybody => open_to_everybody(&check.found),
                Level::Ok => credentials.and_then(|file| readable_by_others(file)).unwrap_or(check),
                _ => check,
            }
        }
        Ok(Err(error)) => Check::problem(
            NAME,
            format!("{shown}: {}", without_secrets(&chain(&error), &nats.servers)),
            "check that nats-server runs with JetStream (`nats-server -js`), that nats.servers is correct, and that the version is supported",
        ),
        Err(_) => {
            Check::problem(NAME, format!("{shown} did not answer in time"), "check that nats-server runs")
        }
    }
}

fn open_to_everybody(found: &str) -> Check {
    Check::warning(
        "NATS",
        format!("{found}; it accepts clients without credentials, which can read the output of tools"),
        "give each role credentials of its own: `remuda nats-auth --help`",
    )
}

fn readable_by_others(file: &Path) -> Option<Check> {
    let mode = std::fs::metadata(file).ok()?.mode();
    let found = format!("{} can be read by every user of this machine", file.display());
    (mode & 0o004 != 0).then(|| Check::warning("NATS", found, format!("chmod o= {}", file.display())))
}

/// Masks passwords of addresses that an error may quote.
fn without_secrets(text: &str, urls: &[SecretUrl]) -> String {
    urls.iter().fold(text.to_owned(), |text, url| text.replace(url.expose(), &url.masked()))
}

fn unreadable_credentials(file: &Path) -> Option<Check> {
    let error = std::fs::File::open(file).err()?;
    let found = format!("{} cannot be read: {}", file.display(), error.kind());
    Some(Check::problem("NATS", found, "correct nats.credentials_file, or the file's permissions"))
}

fn check_nats(servers: &str, report: &NatsReport, replicas: u32) -> Check {
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
                "change the settings, or delete the stream (`nats stream rm {stream}`): it is created again, and no run is lost"
            ),
        );
    }
    if replicas == 1 && version(&report.version).is_some_and(|version| version < RECOMMENDED_NATS) {
        return Check::warning(
            NAME,
            format!(
                "{found}: after a crash this version may keep orphaned tokens, which the reconciler has to remove"
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

/// The error and its causes in one line.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let next = error.to_string();
        // Many errors already contain the text of their cause.
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

    #[test]
    fn nats_check_depends_on_version_and_settings() {
        let report = |version: &str, problems: &[&str]| NatsReport {
            version: version.to_owned(),
            stream: "REMUDA".to_owned(),
            problems: problems.iter().map(|problem| (*problem).to_owned()).collect(),
            ..NatsReport::default()
        };
        let judge = |version, problems: &[&str]| check_nats("nats://x", &report(version, problems), 1);
        assert_eq!(judge("2.15.1", &[]).level, Level::Ok);
        assert_eq!(judge("2.9.10", &[]).level, Level::Warning);
        assert_eq!(judge("odd", &[]).level, Level::Ok);
        let missing = judge("2.15.1", &["stream REMUDA does not exist"]);
        assert_eq!((missing.level, missing.found.ends_with("(will be created)")), (Level::Ok, true));
        let unfit = judge("2.15.1", &["discard is old"]);
        assert_eq!(unfit.level, Level::Problem);
        assert!(unfit.fix.unwrap().contains("nats stream rm REMUDA"));
    }

    #[test]
    fn passwords_in_errors_are_masked() {
        let urls = [SecretUrl::new("nats://u:hunter2@h:1")];
        assert_eq!(
            without_secrets("at nats://u:hunter2@h:1: refused", &urls),
            "at nats://u:***@h:1: refused"
        );
    }

    #[test]
    fn small_clock_drift_is_accepted() {
        assert_eq!(check_drift(Duration::from_secs(2)).level, Level::Ok);
        assert_eq!(check_drift(Duration::from_millis(2001)).level, Level::Warning);
    }

    #[test]
    fn path_of_a_sqlite_url_is_parsed() {
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
