//! Checks this machine: configuration, directories, disk space, limit of open files.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use nix::sys::{
    resource::{Resource, getrlimit},
    statvfs::statvfs,
};
use remuda_config::{Config, LoadedConfig, Origin};
use remuda_roots::Exposed;

use super::{Check, Mode, services::sqlite_path};

const MIB: u64 = 1024 * 1024;
const LOW_SPACE: u64 = 1024 * MIB;
const NO_SPACE: u64 = 100 * MIB;
/// Below this, even a small installation runs out of file descriptors.
const MIN_FILES: u64 = 256;
const RECOMMENDED_FILES: u64 = 4096;

/// Checks the log filter, and that no file with a password is world-readable.
pub(super) fn configuration(loaded: &LoadedConfig) -> Check {
    const NAME: &str = "configuration";
    if let Err(error) = remuda_telemetry::check_filter(&loaded.config.telemetry.log) {
        return Check::problem(NAME, format!("telemetry.log: {error}"), "correct telemetry.log");
    }
    let file = loaded
        .file
        .as_ref()
        .map_or_else(|| "no file, defaults".to_owned(), |file| file.display().to_string());
    let variables = loaded.variables().count();
    let found = match variables {
        0 => file,
        1 => format!("{file} and 1 environment variable"),
        count => format!("{file} and {count} environment variables"),
    };
    if let Some(path) = exposed_file(loaded) {
        return Check::warning(
            NAME,
            format!("{} contains a password and is readable by every user", path.display()),
            format!("run `chmod 600 {}`, or set the password in the environment", path.display()),
        );
    }
    Check::ok(NAME, found)
}

/// The configuration file, if it contains a secret and is world-readable.
fn exposed_file(loaded: &LoadedConfig) -> Option<&Path> {
    let config = &loaded.config;
    let store = std::iter::once(("store.url", &config.store.url));
    let nats = config.nats.servers.iter().map(|server| ("nats.servers", server));
    let path = store.chain(nats).find_map(|(key, url)| match loaded.origins.get(key) {
        Some(Origin::File(path)) if url.masked() != url.expose() => Some(path),
        _ => None,
    })?;
    let mode = fs::metadata(path).ok()?.permissions().mode();
    (mode & 0o004 != 0).then_some(path.as_path())
}

/// Checks the directories that this mode writes to, and their free space.
pub(super) fn directories(config: &Config, mode: Mode) -> Vec<Check> {
    let mut directories = Vec::new();
    if mode == Mode::Embedded {
        directories.push(("data directory", config.data_dir.as_path(), "data_dir"));
    }
    directories.push(("workspaces", config.workspaces.root.as_path(), "workspaces.root"));
    let mut checks = Vec::new();
    let mut disks = Vec::new();
    for (name, path, key) in directories {
        checks.push(directory(name, path, key));
        let Some(existing) = nearest_existing(path) else { continue };
        let disk = fs::metadata(&existing).ok().map(|metadata| metadata.dev());
        if !disks.contains(&disk) {
            disks.push(disk);
            checks.push(disk_space(&existing));
        }
    }
    checks
}

/// Reports data that other users of this machine may read.
pub(super) fn file_modes(config: &Config, mode: Mode) -> Check {
    const NAME: &str = "file modes";
    let mut paths = vec![config.workspaces.root.clone()];
    if mode == Mode::Embedded {
        paths.push(config.data_dir.clone());
        paths.extend(
            config
                .embedded_store_url()
                .ok()
                .and_then(|url| database_files(url.expose()))
                .into_iter()
                .flatten(),
        );
    }
    let exposed: Vec<Exposed> = paths.iter().filter_map(|path| remuda_roots::exposed(path)).collect();
    if exposed.is_empty() {
        return Check::ok(NAME, "data is for this user alone");
    }
    let list = |show: fn(&Exposed) -> String| exposed.iter().map(show).collect::<Vec<String>>().join(", ");
    let found = list(|it| format!("{} has the mode {:04o}", it.path.display(), it.mode));
    let paths = list(|it| it.path.display().to_string()).replace(", ", " ");
    Check::warning(
        NAME,
        format!("other users of this machine may read data: {found}"),
        format!(
            "run `chmod go= {paths}`, unless it is shared on purpose; a start does so if nobody else may write there"
        ),
    )
}

/// The files of an SQLite database.
fn database_files(url: &str) -> Option<[PathBuf; 3]> {
    let path = sqlite_path(url)?;
    let beside = |suffix: &str| {
        let mut name = path.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    };
    Some([beside(""), beside("-wal"), beside("-shm")])
}

fn directory(name: &'static str, path: &Path, key: &str) -> Check {
    if path.as_os_str().is_empty() {
        let fix = format!("set {key}, or HOME");
        return Check::problem(name, format!("{key} is not set and no home directory is known"), fix);
    }
    let shown = path.display();
    let Some(existing) = nearest_existing(path) else {
        return Check::problem(
            name,
            format!("{shown} cannot be reached"),
            format!("set {key} to a directory"),
        );
    };
    if !existing.is_dir() {
        let fix = format!("move {} away, or set {key} to another directory", existing.display());
        return Check::problem(name, format!("{} is not a directory", existing.display()), fix);
    }
    // Only a write covers permissions, read-only mounts and quotas.
    if let Err(error) = tempfile::NamedTempFile::new_in(&existing) {
        let reason = error.kind();
        let fix =
            format!("allow this user to write to {}, or set {key} to another directory", existing.display());
        return Check::problem(name, format!("{} cannot be written to: {reason}", existing.display()), fix);
    }
    if existing == path {
        Check::ok(name, format!("{shown}"))
    } else {
        Check::ok(name, format!("{shown} (will be created)"))
    }
}

/// The path itself, or its nearest existing parent.
fn nearest_existing(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|part| part.try_exists().unwrap_or(false)).map(Path::to_owned)
}

fn disk_space(path: &Path) -> Check {
    match statvfs(path) {
        Ok(stat) => check_space(stat.blocks_available().saturating_mul(stat.fragment_size()), path),
        Err(errno) => {
            let found = format!("the free space at {} is unknown: {}", path.display(), errno.desc());
            Check::warning("disk space", found, format!("check with `df {}`", path.display()))
        }
    }
}

fn check_space(free: u64, path: &Path) -> Check {
    const NAME: &str = "disk space";
    let shown = path.display();
    let found = format!("{} free at {shown}", size(free));
    let fix = format!("free up space at {shown}, or move the directory to another disk");
    if free < NO_SPACE {
        return Check::problem(NAME, found, fix);
    }
    if free < LOW_SPACE {
        return Check::warning(NAME, found, fix);
    }
    Check::ok(NAME, found)
}

fn size(bytes: u64) -> String {
    let mib = bytes / MIB;
    if mib < 1024 { format!("{mib} MiB") } else { format!("{}.{} GiB", mib / 1024, mib % 1024 * 10 / 1024) }
}

/// Checks the limit of open files: client connections and running commands need file descriptors.
pub(super) fn open_files(config: &Config, mode: Mode) -> Check {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) => check_open_files(soft, config, mode),
        Err(errno) => Check::warning(
            "open files",
            format!("the limit is unknown: {}", errno.desc()),
            "check with `ulimit -n`",
        ),
    }
}

fn check_open_files(limit: u64, config: &Config, mode: Mode) -> Check {
    const NAME: &str = "open files";
    // A command needs about a dozen: pipes, workspace, and the connection of its follower.
    let commands = u64::from(config.worker.slots) * 16;
    let enough = if mode == Mode::Embedded { commands.max(1024) } else { commands.max(RECOMMENDED_FILES) };
    let found = format!("at most {limit}");
    let fix =
        format!("raise the limit: `ulimit -n {}`, or LimitNOFILE= in the service's unit", enough.max(65_536));
    if limit < MIN_FILES {
        return Check::problem(NAME, found, fix);
    }
    if limit < enough {
        return Check::warning(NAME, format!("{found}, {enough} are recommended"), fix);
    }
    Check::ok(NAME, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    fn level(check: &Check) -> Level {
        check.level
    }

    #[test]
    fn low_disk_space_is_a_warning_and_then_a_problem() {
        let judge = |free| level(&check_space(free, Path::new("/x")));
        assert_eq!(judge(2 * LOW_SPACE), Level::Ok);
        assert_eq!(judge(LOW_SPACE - 1), Level::Warning);
        assert_eq!(judge(NO_SPACE - 1), Level::Problem);
        assert_eq!(size(1536 * MIB), "1.5 GiB");
        assert_eq!(size(99 * MIB), "99 MiB");
    }

    #[test]
    fn low_limit_of_open_files_is_reported() {
        let config = Config::default();
        assert_eq!(level(&check_open_files(100, &config, Mode::Embedded)), Level::Problem);
        assert_eq!(level(&check_open_files(1024, &config, Mode::Embedded)), Level::Ok);
        assert_eq!(level(&check_open_files(1024, &config, Mode::Split)), Level::Warning);
        assert_eq!(level(&check_open_files(65_536, &config, Mode::Split)), Level::Ok);
    }

    #[test]
    fn directories_are_checked_but_not_created() {
        let home = tempfile::tempdir().unwrap();
        let inner = home.path().join("a/b");
        let check = directory("data directory", &inner, "data_dir");
        assert_eq!((level(&check), check.found.ends_with("(will be created)")), (Level::Ok, true));
        assert!(!inner.try_exists().unwrap());

        let file = home.path().join("file");
        fs::write(&file, "").unwrap();
        let check = directory("data directory", &file.join("below"), "data_dir");
        assert_eq!(level(&check), Level::Problem);
        assert!(check.found.contains("is not a directory"), "{}", check.found);

        let check = directory("data directory", Path::new(""), "data_dir");
        assert_eq!(level(&check), Level::Problem);
        let check = directory("data directory", Path::new("/proc/x"), "data_dir");
        assert_eq!(level(&check), Level::Problem);
        assert!(check.fix.unwrap().contains("data_dir"));
    }
}
