//! Builds backends, policies, tools and webhook options from the configuration.

use std::sync::{Arc, LazyLock};

use remuda_config::Config;
use remuda_control_plane::WebhookOptions;
use remuda_domain::{
    Code, Error, WorkerId,
    error::Result,
    execution::{Policies, TenantPolicy},
    tool::ToolCatalog,
};
use remuda_egress::AllowRule;
use remuda_sandbox::{
    Backend, Backends, Guard, LocalBackend, LocalOptions,
    docker::{ContainerUser, DEFAULT_DOCKER_HOST, DockerBackend, DockerOptions, WarmTarget},
    local::Hardening,
};
use remuda_store::Store;
use remuda_tools::{
    Registry, ToolOptions,
    web::{SearchProvider, SearxNg, WebOptions},
};

use crate::sandbox_registry::StoreSandboxRegistry;

/// What each tenant may use.
pub fn policies(config: &Config) -> Result<Arc<Policies>> {
    let policies = config
        .policies()
        .map_err(|error| Error::new(Code::InvalidArgument, error.to_string()).at("sandbox.policy_file"))?;
    Ok(Arc::new(policies))
}

/// Options for webhook delivery.
pub(crate) fn webhooks(config: &Config) -> Result<WebhookOptions> {
    let settings = &config.webhooks;
    let allowed = settings.allowed.iter().map(|entry| AllowRule::parse("webhooks.allowed", entry));
    Ok(WebhookOptions {
        allowed: allowed.collect::<Result<_>>()?,
        timeout: settings.timeout,
        max_attempts: settings.max_attempts,
        retry_delay: settings.retry_delay,
        ..WebhookOptions::default()
    })
}

/// The native tools with their configured access.
pub fn tools(config: &Config) -> Result<Registry> {
    let settings = &config.tools;
    let allowed = settings.web_allowed.iter().map(|entry| AllowRule::parse("tools.web_allowed", entry));
    let allowed = allowed.collect::<Result<Vec<AllowRule>>>()?;
    let web = WebOptions { allowed, ..WebOptions::default() };
    let search = if settings.search_url.is_empty() {
        None
    } else {
        let mut provider =
            SearxNg::new(&settings.search_url).map_err(|error| error.at("tools.search_url"))?;
        if !settings.search_key.is_empty() {
            let token = format!("Bearer {}", settings.search_key.expose());
            provider = provider
                .with_header("authorization", &token)
                .map_err(|error| error.at("tools.search_key"))?;
        }
        Some(Arc::new(provider) as Arc<dyn SearchProvider>)
    };
    Ok(Registry::native(&ToolOptions { web, search }))
}

/// What is known about the tools that agents may have. It does not depend on the configuration.
pub fn tool_catalog() -> &'static ToolCatalog {
    static CATALOG: LazyLock<ToolCatalog> =
        LazyLock::new(|| remuda_engine::tool_catalog(&Registry::native(&ToolOptions::default())));
    &CATALOG
}

/// All backends. A missing Docker engine only fails sessions that use it.
pub async fn backends(
    config: &Config,
    store: &Arc<dyn Store>,
    policies: &Policies,
    guard: Option<Arc<Guard>>,
) -> Result<Backends> {
    let local = LocalBackend::new(LocalOptions {
        grace: config.worker.kill_grace,
        guard: guard.clone(),
        hardening: hardening(config),
        readable: config.sandbox.readable.clone(),
        ..LocalOptions::default()
    });
    let docker = DockerBackend::new(docker_options(config, store, policies, guard).await?);
    Ok([Arc::new(local) as Arc<dyn Backend>, Arc::new(docker)].into_iter().collect())
}

async fn docker_options(
    config: &Config,
    store: &Arc<dyn Store>,
    policies: &Policies,
    guard: Option<Arc<Guard>>,
) -> Result<DockerOptions> {
    let settings = &config.docker;
    let user = settings
        .user
        .split_once(':')
        .and_then(|(uid, gid)| Some(ContainerUser { uid: uid.parse().ok()?, gid: gid.parse().ok()? }));
    Ok(DockerOptions {
        user: user.unwrap_or_else(ContainerUser::of_this_process),
        runtime: Some(settings.runtime.clone()).filter(|runtime| !runtime.is_empty()),
        warm: warm_targets(config, &policies.default),
        pause_after: settings.pause_after,
        remove_after: settings.remove_after,
        max_containers: settings.max_containers as usize,
        grace: config.worker.kill_grace,
        guard,
        registry: Some(Arc::new(StoreSandboxRegistry::new(Arc::clone(store)))),
        ..DockerOptions::new(docker_host(config), store.installation().await?, WorkerId::new())
    })
}

/// The restrictions for commands on this machine.
#[must_use]
pub fn hardening(config: &Config) -> Hardening {
    match config.sandbox.hardening {
        remuda_config::Hardening::None => Hardening::None,
        remuda_config::Hardening::Auto => Hardening::Auto,
        remuda_config::Hardening::Required => Hardening::Required,
    }
}

/// The Docker engine's address: from the configuration, the environment, or the default.
#[must_use]
pub fn docker_host(config: &Config) -> String {
    let configured = Some(config.docker.host.clone()).filter(|host| !host.is_empty());
    let named = || std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty());
    configured.or_else(named).unwrap_or_else(|| DEFAULT_DOCKER_HOST.to_owned())
}

/// Spare containers use the default policy, so they fit tenants without their own.
fn warm_targets(config: &Config, policy: &TenantPolicy) -> Vec<WarmTarget> {
    let target = |(image, count): (String, u32)| WarmTarget {
        image,
        count: count as usize,
        network: remuda_domain::execution::NO_NETWORK.to_owned(),
        limits: policy.limits,
    };
    config.docker.spares().into_iter().map(target).collect()
}
