//! `remuda keys`: creates, lists and revokes API keys directly in the database.

use std::{collections::HashMap, process::ExitCode, sync::Arc, time::Duration};

use clap::Subcommand;
use remuda_config::Config;
use remuda_domain::{
    ApiKeyId, Code, Error, TenantId,
    error::Result,
    identity::{ApiKey, Scope},
    limits,
};
use remuda_grpc::keys;
use remuda_node::{DEFAULT_TENANT, Mode};
use remuda_store::{KeyOwner, NewKey, Store};
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
    /// approve their tool calls by default. A key with the scope operator belongs to no tenant and opens no session: it is for
    /// workers, queues, log filters and workspace directories.
    #[command(after_help = "Examples:\n  remuda keys create --tenant acme --name ci\n  \
                            remuda keys create --tenant acme --name anna --scope write --scope approve\n  \
                            remuda keys create --tenant acme --name owner --scope write --scope admin --expires-in 30days\n  \
                            remuda keys create --scope operator --name ops")]
    Create {
        /// Tenant that the key belongs to. By default `default`; none with --scope operator.
        #[arg(long)]
        tenant: Option<String>,
        /// Name of the key. It is recorded as the author of actions, and --approver refers to it.
        #[arg(long, default_value = "key")]
        name: String,
        /// read, write (includes read), approve (decides tool calls that need approval; includes read), admin (manages its
        /// tenant) or operator (manages the installation; only alone). May be repeated. By default write.
        #[arg(long = "scope", value_name = "SCOPE", value_parser = scope)]
        scopes: Vec<Scope>,
        /// Lifetime, such as 30days. By default the key never expires.
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
    },
    /// List the keys of all tenants and of operators.
    List {
        /// Only the keys of this tenant.
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Revoke a key, whichever tenant it belongs to. Servers reject it within seconds.
    Revoke {
        #[arg(value_name = "KEY_ID")]
        key: String,
        /// Revoke it only if it belongs to this tenant.
        #[arg(long)]
        tenant: Option<String>,
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
        remuda_roots::create_private_directory(directory).map_err(failed)?;
        remuda_store::migrate(&options).await?;
    }
    let store = remuda_store::connect(&options).await?;
    match command {
        KeysCommand::Create { tenant, name, scopes, expires_in } => {
            limits::check_name("name", &name)?;
            let scopes = if scopes.is_empty() { vec![Scope::Write] } else { scopes };
            let named = tenant.is_some() || !scopes.contains(&Scope::Operator);
            Scope::check_key(&scopes, named)?;
            let tenant_id = match named {
                true => {
                    let tenant = tenant.as_deref().unwrap_or(DEFAULT_TENANT);
                    let root = remuda_node::workspace_root(config, tenant)?;
                    Some(store.ensure_tenant(tenant, &root.to_string_lossy()).await?.id)
                }
                false => None,
            };
            let secret = keys::generate();
            let expires_at = expires_in.map(|time| chrono::Utc::now() + time);
            let secret_hash = keys::hash(&secret);
            let key = NewKey { tenant: tenant_id, name, secret_hash, scopes, expires_at };
            let key = with_owners(&store, vec![store.create_key(&key).await?]).await?;
            key.iter().for_each(|key| print_created(key, &secret, output));
        }
        KeysCommand::List { tenant } => {
            let keys = store.list_keys(owner(&store, tenant).await?).await?;
            print_list(&with_owners(&store, keys).await?, output);
        }
        KeysCommand::Revoke { key, tenant } => {
            let owner = owner(&store, tenant).await?;
            let key = store.revoke_key(owner, key.parse::<ApiKeyId>()?).await?;
            for key in with_owners(&store, vec![key]).await? {
                if output.json {
                    output.json_line(&key.to_json());
                } else {
                    output.out.line(&format!("revoked {} {}", key.key.id, key.whose()));
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whose keys a command means: those of the named tenant, or all.
async fn owner(store: &Arc<dyn Store>, tenant: Option<String>) -> Result<KeyOwner> {
    let Some(name) = tenant else { return Ok(KeyOwner::Anyone) };
    let found = store.find_tenant(&name).await?;
    let missing = || Error::new(Code::TenantNotFound, "there is no such tenant").at("tenant");
    found.map(|tenant| KeyOwner::Tenant(tenant.id)).ok_or_else(missing)
}

/// A key with the name of its tenant; keys of operators have none.
#[derive(Debug)]
pub(crate) struct OwnedKey {
    pub(crate) key: ApiKey,
    pub(crate) tenant: Option<String>,
}

/// Adds the names of tenants.
pub(crate) async fn with_owners(store: &Arc<dyn Store>, keys: Vec<ApiKey>) -> Result<Vec<OwnedKey>> {
    let mut names: HashMap<TenantId, String> = HashMap::new();
    let mut owned = Vec::with_capacity(keys.len());
    for key in keys {
        let tenant = match key.tenant {
            Some(tenant) => Some(match names.get(&tenant) {
                Some(name) => name.clone(),
                None => {
                    let name = store.get_tenant(tenant).await?.name;
                    names.insert(tenant, name.clone());
                    name
                }
            }),
            None => None,
        };
        owned.push(OwnedKey { key, tenant });
    }
    Ok(owned)
}

impl OwnedKey {
    fn whose(&self) -> String {
        self.tenant
            .as_ref()
            .map_or_else(|| "of the operator".to_owned(), |tenant| format!("of tenant {tenant}"))
    }

    pub(crate) fn to_json(&self) -> Value {
        let key = &self.key;
        json!({
            "id": key.id,
            "tenant": self.tenant,
            "name": key.name,
            "scopes": key.scopes,
            "state": state(key),
            "created_at": key.created_at,
            "expires_at": key.expires_at,
            "revoked_at": key.revoked_at,
        })
    }
}

fn print_created(key: &OwnedKey, secret: &str, output: Output) {
    if output.json {
        let mut value = key.to_json();
        value["secret"] = secret.into();
        return output.json_line(&value);
    }
    output.note(&format!(
        "{} {}; the secret is not shown again:",
        output.err.paint(Style::Bold, &key.key.id.to_string()),
        key.whose()
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

fn print_list(keys: &[OwnedKey], output: Output) {
    if output.json {
        for key in keys {
            output.json_line(&key.to_json());
        }
        return;
    }
    let mut table = Table::new(output.out, &["id", "tenant", "name", "scopes", "state", "created"]);
    for owned in keys {
        let key = &owned.key;
        let created = key.created_at.format("%Y-%m-%d %H:%M").to_string();
        let state = state(key);
        let style = if state == "active" { Style::Good } else { Style::Dim };
        table.row([
            (key.id.to_string(), None),
            (owned.tenant.clone().unwrap_or_else(|| "-".to_owned()), None),
            (key.name.clone(), None),
            (scopes(key), None),
            (state.to_owned(), Some(style)),
            (created, Some(Style::Dim)),
        ]);
    }
    table.print();
}
