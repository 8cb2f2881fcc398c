//! The files of a database: for their owner alone.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    str::FromStr as _,
};

use sqlx::sqlite::SqliteConnectOptions;

const OWNER_ONLY: u32 = 0o600;
const OTHERS: u32 = 0o077;

/// Creates the database with rights for its owner alone, and takes the rights of others to existing files away. SQLite
/// gives the files beside the database the same rights.
pub(crate) fn protect_files(url: &str) -> Result<(), sqlx::Error> {
    let options = SqliteConnectOptions::from_str(url)?;
    let database = options.get_filename();
    File::options().append(true).create(true).mode(OWNER_ONLY).open(database)?;
    for suffix in ["", "-wal", "-shm"] {
        let mut path = database.as_os_str().to_owned();
        path.push(suffix);
        protect(&PathBuf::from(path));
    }
    Ok(())
}

fn protect(path: &Path) {
    let restricted = fs::metadata(path).and_then(|metadata| match metadata.permissions().mode() & OTHERS {
        0 => Ok(()),
        _ => fs::set_permissions(path, Permissions::from_mode(OWNER_ONLY)),
    });
    match restricted {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot keep other users of this machine out");
        }
        _ => {}
    }
}
