//! `remuda keys`: creates, lists and revokes API keys directly in the database.

use std::{process::ExitCode, sync::Arc, time::Duration};

use clap::Subcommand;
use remuda_config::Config;
use remuda_domain::{
    ApiKeyId, Code, Error,
    error::Result,
    identity::{ApiKey, Scope},
    limits,
};
use remuda_grpc::keys;
use remuda_node::{DEFAULT_TENANT, Mode};
use remuda_store::{NewKey, Store};
use serde_json::{Value, json};

use crate::{
    output::{Output, Style, Table},
    serve::inferred_mode,
};

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Create a key and print its secret, which is not shown again.
    ///
    /// The tenant is created if it does not exist. Only a hash of the secret is stored.
    ///
    /// Without --scope a key gets the scope write. The scope approve is never included: a key that starts runs must not also
    /// approve their tool calls by default.
    #[command(after_help = "Examples:\n  remuda keys create --tenant acme --name ci\n  \
                            remuda keys create --tenant acme --name anna --scope write --scope approve\n  \
                            remuda keys create --tenant acme --name ops --scope read --scope admin --expires-in 30days")]
    Create {
        /// Tenant that the key belongs to.
        #[arg(long, default_value = DEFAULT_TENANT)]
        tenant: String,
        /// Name of the key. It is recorded as the author of actions, and --approver refers to it.
        #[arg(long, default_value = "key")]
        name: String,
        /// read, write (includes read), approve (decides tool calls that need approval; includes read) or admin (workers,
        /// queues and other operator commands). May be repeated. By default write.
        #[arg(long = "scope", value_name = "SCOPE", value_parser = scope)]
        scopes: Vec<Scope>,
        /// Lifetime, such as 30days. By default the key never expires.
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
    },
    /// List the keys of a tenant.
    List {
        /// Tenant whose keys to list.
        #[arg(long, default_value = DEFAULT_TENANT)]
        tenant: String,
    },
    /// Revoke a key. Servers reject it within seconds.
    Revoke {
        #[arg(value_name = "KEY_ID")]
        key: String,
        /// Tenant that the key belongs to.
        #[arg(long, default_value = DEFAULT_TENANT)]
        tenant: String,
    },
}

fn scope(text: &str) -> Result<Scope, String> {
    text.parse().map_err(|error: Error| error.message().to_owned())
}

pub(crate) async fn execute(command: KeysCommand, config: &Config, output: Output) -> Result<ExitCode> {
    let mode = inferred_mode(config);
    let options = remuda_node::store_options(config, mode)?;
    if mode == Mode::Embedded {
        let directory =
            config.data_directory().map_err(|error| Error::invalid("data_dir", error.to_string()))?;
        let failed = |error| Error::invalid("data_dir", "cannot be created").with_source(error);
        std::fs::create_dir_all(directory).map_err(failed)?;
        remuda_store::migrate(&options).await?;
    }
    let store = remuda_store::connect(&options).await?;
    match command {
        KeysCommand::Create { tenant, name, scopes, expires_in } => {
            limits::check_name("name", &name)?;
            let root = remuda_node::workspace_root(config, &tenant)?;
            let tenant_id = store.ensure_tenant(&tenant, &root.to_string_lossy()).await?.id;
            let secret = keys::generate();
            let scopes = if scopes.is_empty() { vec![Scope::Write] } else { scopes };
            let expires_at = expires_in.map(|time| chrono::Utc::now() + time);
            let secret_hash = keys::hash(&secret);
            let key = NewKey { tenant: tenant_id, name, secret_hash, scopes, expires_at };
            print_created(&tenant, &secret, &store.create_key(&key).await?, output);
        }
        KeysCommand::List { tenant } => {
            let tenant = existing_tenant(&store, &tenant).await?;
            print_list(&store.list_keys(tenant).await?, output);
        }
        KeysCommand::Revoke { key, tenant } => {
            let tenant = existing_tenant(&store, &tenant).await?;
            let key = store.revoke_key(tenant, key.parse::<ApiKeyId>()?).await?;
            if output.json {
                output.json_line(&to_json(&key));
            } else {
                output.out.line(&format!("revoked {}", key.id));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn existing_tenant(store: &Arc<dyn Store>, name: &str) -> Result<remuda_domain::TenantId> {
    let found = store.find_tenant(name).await?;
    let missing = || Error::new(Code::TenantNotFound, "there is no such tenant").at("tenant");
    found.map(|tenant| tenant.id).ok_or_else(missing)
}

fn print_created(tenant: &str, secret: &str, key: &ApiKey, output: Output) {
    if output.json {
        let mut value = to_json(key);
        value["secret"] = secret.into();
        value["tenant"] = tenant.into();
        return output.json_line(&value);
    }
    output.note(&format!(
        "{} for tenant {tenant}; the secret is not shown again:",
        output.err.paint(Style::Bold, &key.id.to_string())
    ));
    output.out.line(secret);
    output.note("use it with: export REMUDA_API_KEY=<secret>");
}

fn state(key: &ApiKey) -> &'static str {
    match key {
        ApiKey { revoked_at: Some(_), .. } => "revoked",
        ApiKey { expires_at: Some(at), .. } if *at <= chrono::Utc::now() => "expired",
        _ => "active",
    }
}

fn scopes(key: &ApiKey) -> String {
    key.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" ")
}

fn print_list(keys: &[ApiKey], output: Output) {
    if output.json {
        for key in keys {
            output.json_line(&to_json(key));
        }
        return;
    }
    let mut table = Table::new(output.out, &["id", "name", "scopes", "state", "created"]);
    for key in keys {
        let created = key.created_at.format("%Y-%m-%d %H:%M").to_string();
        let state = state(key);
        let style = if state == "active" { Style::Good } else { Style::Dim };
        table.row([
            (key.id.to_string(), None),
            (key.name.clone(), None),
            (scopes(key), None),
            (state.to_owned(), Some(style)),
            (created, Some(Style::Dim)),
        ]);
    }
    table.print();
}

fn to_json(key: &ApiKey) -> Value {
    json!({
        "id": key.id,
        "name": key.name,
        "scopes": key.scopes,
        "state": state(key),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    })
}
