//! A private PostgreSQL server, and databases on it.

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid, User},
};

use crate::{
    child_process::{Child, find_program, report},
    ports::stable_port,
    processes::{Process, process, processes_of, still_alive},
    wait::wait_until,
};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const START_ATTEMPTS: usize = 3;

/// Contains the superuser URL of the server for [`TestDatabase::create`].
const URL_VARIABLE: &str = "REMUDA_TEST_POSTGRES_URL";

/// The server refuses to run as root; this process may be root.
const SERVER_USER: &str = "postgres";

/// WAL segments that [`preallocate_wal`] creates: half a minute of writing at full speed.
const WAL_SEGMENTS: usize = 32;

/// A PostgreSQL server with durable commits: crash tests must not rely on `fsync = off`. It keeps its port and data over
/// [`PostgresServer::restart`].
#[derive(Debug)]
pub struct PostgresServer {
    data: DataDirectory,
    port: u16,
    child: Child,
    /// The processes that [`PostgresServer::pause`] stopped.
    paused: Vec<Process>,
}

/// The directory of a server, and the user it runs as.
#[derive(Debug)]
struct DataDirectory {
    path: PathBuf,
    user: Option<&'static str>,
}

impl PostgresServer {
    /// Creates a cluster in `directory` and starts its server there. When this process is root, the directory is given
    /// to the user `postgres`, as the server refuses to run as root.
    pub fn start(directory: &Path) -> Result<Self> {
        let user = if Uid::effective().is_root() { Some(SERVER_USER) } else { None };
        if user.is_some() {
            give_to_postgres(directory)?;
        }
        initialise(directory, user)?;
        let data = DataDirectory { path: directory.to_owned(), user };
        let mut last = None;
        for _ in 0..START_ATTEMPTS {
            let port = stable_port()?;
            match launch(&data, port) {
                Ok(child) => return Ok(Self { data, port, child, paused: Vec::new() }),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("PostgreSQL was never started")?)
    }

    /// A superuser's URL.
    #[must_use]
    pub fn url(&self) -> String {
        url(self.port)
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Puts the tables that are created from now on into this directory, which is given to the server's user. Its write-ahead log
    /// stays where it is: without room for that, the server would end.
    pub fn keep_tables_in(&self, directory: &Path) -> Result<()> {
        if self.data.user.is_some() {
            give_to_postgres(directory)?;
        }
        let location = directory.display();
        psql(&self.url(), &format!("CREATE TABLESPACE elsewhere LOCATION '{location}'"))?;
        for setting in ["default_tablespace", "temp_tablespaces"] {
            psql(&self.url(), &format!("ALTER DATABASE postgres SET {setting} = elsewhere"))?;
        }
        Ok(())
    }

    /// Disconnects every client and stops the server, keeping its data.
    pub fn stop(&mut self) -> Result<()> {
        self.end(Signal::SIGINT)
    }

    /// Stops the server like a crash (immediate mode): the next start has to recover.
    pub fn crash(&mut self) -> Result<()> {
        self.end(Signal::SIGQUIT)
    }

    /// Starts the server again on the same port and data; crashes it first if it still runs.
    pub fn restart(&mut self) -> Result<()> {
        self.crash()?;
        self.child = launch(&self.data, self.port)?;
        Ok(())
    }

    /// Stops every process of the server with SIGSTOP. Connections stay open.
    pub fn pause(&mut self) -> Result<()> {
        // The postmaster first, so that it starts no others. The processes have separate sessions, so no signal reaches all at once.
        self.stop_process(process(self.pid()))?;
        for child in processes_of(self.pid()) {
            self.stop_process(Some(child))?;
        }
        Ok(())
    }

    /// Continues the server after [`PostgresServer::pause`].
    pub fn resume(&mut self) -> Result<()> {
        for process in still_alive(&std::mem::take(&mut self.paused)).into_iter().rev() {
            signal_process(&process, Signal::SIGCONT)?;
        }
        Ok(())
    }

    fn stop_process(&mut self, process: Option<Process>) -> Result<()> {
        let Some(process) = process else { return Ok(()) };
        signal_process(&process, Signal::SIGSTOP)?;
        self.paused.push(process);
        Ok(())
    }

    fn end(&mut self, signal: Signal) -> Result<()> {
        // A stopped process does not handle the signal.
        self.resume()?;
        let workers = processes_of(self.pid());
        self.child.signal(signal)?;
        if self.child.wait_timeout(STOP_TIMEOUT).is_err() {
            self.child.kill()?;
        }
        // After SIGKILL, its children live on for a moment and hold its shared memory.
        wait_until(STOP_TIMEOUT, || still_alive(&workers).is_empty().then_some(()))
            .context("processes of PostgreSQL outlive their server")
    }
}

/// Sends a signal; a process that has ended meanwhile is no error.
fn signal_process(process: &Process, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(process.pid).context("process id out of range")?);
    match kill(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(errno).with_context(|| format!("cannot send {signal} to {}", process.cmdline)),
    }
}

fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // Gracefully: SIGKILL would leave the server's children and its shared memory behind for a moment.
        if let Err(error) = self.stop() {
            report(&format!("cannot stop PostgreSQL: {error:#}"));
        }
    }
}

fn give_to_postgres(directory: &Path) -> Result<()> {
    let account = User::from_name(SERVER_USER)?.context("no user postgres; install PostgreSQL")?;
    chown(directory, Some(account.uid.as_raw()), Some(account.gid.as_raw()))
        .with_context(|| format!("cannot give {} to {SERVER_USER}", directory.display()))
}

fn initialise(directory: &Path, user: Option<&str>) -> Result<()> {
    let log = directory.join("initdb.log");
    let output = fs::File::create(&log).context("cannot create the log of initdb")?;
    let errors = output.try_clone()?;
    let mut child = Child::start(&postgres_program("initdb")?, user, |command| {
        command.arg("-D").arg(directory.join("data"));
        command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        command.current_dir(directory).stdin(Stdio::null()).stdout(output).stderr(errors);
    })?;
    let status = child.wait_timeout(START_TIMEOUT)?;
    ensure!(status.success(), "initdb failed: {}", fs::read_to_string(&log).unwrap_or_default().trim());
    Ok(())
}

/// Starts a server and waits until it answers. Its log is appended to that of earlier starts.
fn launch(data: &DataDirectory, port: u16) -> Result<Child> {
    let DataDirectory { path: directory, user } = data;
    let log = directory.join("postgres.log");
    let output = fs::File::options().create(true).append(true).open(&log);
    let output = output.context("cannot open the log of PostgreSQL")?;
    let mut child = Child::start(&postgres_program("postgres")?, *user, |command| {
        command.arg("-D").arg(directory.join("data"));
        command.args(["-p", &port.to_string(), "-h", "127.0.0.1", "-k"]).arg(directory);
        for setting in ["max_connections=300", "fsync=on", "synchronous_commit=on", "shared_buffers=128MB"] {
            command.args(["-c", setting]);
        }
        command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    })?;
    // Another server that took the port would answer as well, so the child must still run.
    let ready = wait_until(START_TIMEOUT, || {
        if child.ended().is_some() {
            return Some(false);
        }
        psql(&url(port), "SELECT 1").is_ok().then_some(true)
    });
    if ready != Some(true) || child.ended().is_some() {
        let text = fs::read_to_string(&log).unwrap_or_default();
        bail!("PostgreSQL did not start: {}", text.lines().last().unwrap_or_default());
    }
    Ok(child)
}

/// Finds a program of PostgreSQL; on Debian the server programs are not in PATH.
pub fn postgres_program(name: &str) -> Result<PathBuf> {
    if let Some(program) = find_program(name) {
        return Ok(program);
    }
    let version = |path: &Path| {
        let directory = path.parent()?.parent()?.file_name()?;
        directory.to_str()?.parse::<u32>().ok()
    };
    fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin").join(name)))
        .filter(|program| program.is_file())
        .max_by_key(|program| version(program))
        .with_context(|| format!("{name} not found; install PostgreSQL"))
}

/// Gives a new server WAL segments that it can recycle, like a server that has run for a while. A new server blocks all writers
/// every 16 MB to fill the next segment with zeros. Call this before a measurement.
pub fn preallocate_wal(url: &str) -> Result<()> {
    psql(url, "ALTER SYSTEM SET min_wal_size = '1GB'")?;
    psql(url, "SELECT pg_reload_conf()")?;
    let fill = "PERFORM pg_logical_emit_message(false, 'remuda', 'x'); PERFORM pg_switch_wal()";
    psql(url, &format!("DO $$ BEGIN FOR segment IN 1..{WAL_SEGMENTS} LOOP {fill}; END LOOP; END $$"))?;
    psql(url, "CHECKPOINT")
}

/// Runs one statement.
fn psql(url: &str, statement: &str) -> Result<()> {
    let output = Command::new(postgres_program("psql")?)
        .args([url, "--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", "-c", statement])
        .env("PGCONNECT_TIMEOUT", "10")
        .stdin(Stdio::null())
        .output()
        .context("cannot run psql")?;
    ensure!(output.status.success(), "psql failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// An empty database. It is dropped with this handle, even if clients are still connected.
#[derive(Debug)]
pub struct TestDatabase {
    server: String,
    name: String,
    /// Whether it has a tablespace of the same name.
    has_tablespace: bool,
}

impl TestDatabase {
    /// Creates a database on the server named by `REMUDA_TEST_POSTGRES_URL`.
    pub fn create() -> Result<Self> {
        Self::create_on(&server_url()?)
    }

    /// Creates a database on the server of this superuser URL.
    pub fn create_on(server: &str) -> Result<Self> {
        let database = Self { server: server.to_owned(), name: unique_name(), has_tablespace: false };
        database.create_with("")?;
        Ok(database)
    }

    /// Creates a database whose tables and indexes lie in this directory; its write-ahead log remains with the server. When
    /// this process is root, the directory is given to the user `postgres`.
    pub fn create_in(directory: &Path) -> Result<Self> {
        if Uid::effective().is_root() {
            give_to_postgres(directory)?;
        }
        let server = server_url()?;
        let database = Self { server, name: unique_name(), has_tablespace: true };
        let (name, location) = (&database.name, directory.display());
        psql(&database.server, &format!("CREATE TABLESPACE {name} LOCATION '{location}'"))
            .context("cannot create a tablespace")?;
        database.create_with(&format!("TABLESPACE {name}"))?;
        Ok(database)
    }

    fn create_with(&self, options: &str) -> Result<()> {
        // From template0: copying template1 fails while a client is connected to it.
        psql(&self.server, &format!("CREATE DATABASE {} TEMPLATE template0 {options}", self.name))
            .context("cannot create a test database")
    }

    #[must_use]
    pub fn url(&self) -> String {
        with_database(&self.server, &self.name)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let name = &self.name;
        let mut dropped = psql(&self.server, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
        if self.has_tablespace {
            dropped = dropped.and_then(|()| psql(&self.server, &format!("DROP TABLESPACE {name}")));
        }
        if let Err(error) = dropped {
            report(&format!("cannot drop {name}: {error:#}"));
        }
    }
}

/// The superuser URL of the server for tests.
fn server_url() -> Result<String> {
    env::var(URL_VARIABLE).ok().filter(|url| !url.is_empty()).with_context(|| {
        format!("{URL_VARIABLE} is not set; run `cargo xtask test`, or `cargo xtask services` and export what it prints")
    })
}

/// A unique name: several test processes share one server.
fn unique_name() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos());
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("remuda_test_{}_{nanos}_{count}", std::process::id())
}

/// The URL with another database name.
fn with_database(url: &str, name: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let authority = base.find("://").map_or(0, |scheme| scheme + 3);
    let end = base[authority..].find('/').map_or(base.len(), |slash| authority + slash);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{name}{query}", &base[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_only_the_database_name() {
        for (url, expected) in [
            ("postgres://u:p@h:1/postgres", "postgres://u:p@h:1/x"),
            ("postgres://u@h:1", "postgres://u@h:1/x"),
            ("postgresql://h/a?sslmode=disable", "postgresql://h/x?sslmode=disable"),
        ] {
            assert_eq!(with_database(url, "x"), expected);
        }
    }

    #[test]
    fn databases_are_fresh_separate_and_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let mut server = PostgresServer::start(directory.path()).unwrap();
        let (one, two) = (
            TestDatabase::create_on(&server.url()).unwrap(),
            TestDatabase::create_on(&server.url()).unwrap(),
        );
        psql(&one.url(), "CREATE TABLE t (id int)").unwrap();
        assert!(psql(&two.url(), "SELECT * FROM t").is_err());
        let url = one.url();
        drop((one, two));
        assert!(psql(&url, "SELECT 1").is_err());
        psql(&server.url(), "DO $$ BEGIN ASSERT current_setting('fsync') = 'on'; END $$").unwrap();
        server.stop().unwrap();
        assert!(psql(&server.url(), "SELECT 1").is_err());
    }

    #[test]
    fn committed_data_survives_a_crash_and_a_pause() {
        let directory = tempfile::tempdir().unwrap();
        let mut server = PostgresServer::start(directory.path()).unwrap();
        let (url, pid) = (server.url(), server.pid());
        psql(&url, "CREATE TABLE t (id int)").unwrap();
        server.crash().unwrap();
        assert!(psql(&url, "SELECT 1").is_err());
        server.restart().unwrap();
        assert_eq!(server.url(), url);
        assert_ne!(server.pid(), pid);
        let log = fs::read_to_string(directory.path().join("postgres.log")).unwrap();
        assert!(log.contains("automatic recovery"), "{log}");

        server.pause().unwrap();
        let waiting = std::thread::spawn(move || psql(&url, "SELECT * FROM t"));
        let answered = wait_until(Duration::from_millis(300), || waiting.is_finished().then_some(()));
        assert_eq!(answered, None, "a stopped server answered");
        server.resume().unwrap();
        waiting.join().unwrap().unwrap();

        // A paused server can be stopped too, and leaves no process.
        let mut everyone = processes_of(server.pid());
        everyone.extend(process(server.pid()));
        server.pause().unwrap();
        drop(server);
        assert_eq!(still_alive(&everyone), []);
    }
}
