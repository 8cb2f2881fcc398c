//! `remuda nats-auth`: the accounts of NATS, with credentials for each role.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use remuda_config::Config;
use remuda_domain::{Error, error::Result};
use remuda_transport::{BusRole, NatsAuth};
use serde_json::json;

use crate::output::Output;

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda nats-auth --out nats                  accounts.conf for nats-server, and one key file per role
  remuda nats-auth --variables                 print accounts with passwords from variables such as NATS_WORKER_PASSWORD

In nats-server.conf:
  jetstream { store_dir: /data }
  include accounts.conf

To replace the keys, create new ones in another directory, and give them to NATS and to the services.";

/// The accounts, for `include` in nats-server.conf.
const ACCOUNTS: &str = "accounts.conf";

#[derive(Debug, Args)]
pub(crate) struct NatsAuthArgs {
    /// Directory for the accounts and the keys. Existing files are not replaced.
    #[arg(long, value_name = "DIR", required_unless_present = "variables")]
    out: Option<PathBuf>,
    /// Print accounts whose passwords nats-server reads from its environment, and no secrets.
    #[arg(long, conflicts_with = "out")]
    variables: bool,
}

pub(crate) fn execute(args: &NatsAuthArgs, config: &Config, output: Output) -> Result<ExitCode> {
    let prefix = &config.nats.prefix;
    let Some(directory) = &args.out else {
        let accounts = NatsAuth::with_variables(prefix)?.server_config();
        match output.json {
            true => output.json_line(&json!({ "accounts": accounts })),
            false => output.out.line(accounts.trim_end()),
        }
        return Ok(ExitCode::SUCCESS);
    };
    let auth = NatsAuth::with_keys(prefix)?;
    fs::create_dir_all(directory).map_err(|error| cannot_write(directory, error))?;
    let accounts = directory.join(ACCOUNTS);
    // No secret is in it.
    create(&accounts, &auth.server_config(), 0o644)?;
    let mut files = Vec::new();
    for role in BusRole::ALL {
        let file = directory.join(format!("{}.key", role.as_str()));
        create(&file, &auth.credentials_file(role)?, 0o600)?;
        files.push((role, file));
    }
    if output.json {
        let keys: serde_json::Map<_, _> =
            files.iter().map(|(role, file)| (role.as_str().to_owned(), json!(file))).collect();
        output.json_line(&json!({ "accounts": accounts, "keys": keys }));
    } else {
        output.out.line(&format!("accounts for nats-server: {}", accounts.display()));
        for (role, file) in files {
            output.out.line(&format!("nats.credentials_file of {}: {}", role.as_str(), file.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create(path: &Path, text: &str, mode: u32) -> Result<()> {
    let file = fs::File::options().write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| cannot_write(path, error))
}

fn cannot_write(path: &Path, error: std::io::Error) -> Error {
    Error::invalid("out", format!("cannot create {}: {}", path.display(), error.kind())).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compose_uses_the_accounts_of_this_version() {
        let found = include_str!("../../../deploy/nats.conf");
        let expected = NatsAuth::with_variables("remuda").unwrap().server_config();
        assert!(
            found.ends_with(&expected),
            "deploy/nats.conf: replace the accounts by the output of `remuda nats-auth --variables`"
        );
    }
}
