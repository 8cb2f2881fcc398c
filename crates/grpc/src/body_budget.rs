//! The memory that bodies of requests may take, for the whole process and for each tenant.
//!
//! A body reserves its bytes as they arrive, whatever its announced length, and keeps them until its request is over. Sizes
//! are those of the bodies as sent: decoding a body takes up to a few times as much for a moment.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use remuda_domain::{Code, Error, TenantId, error::Result, limits::MAX_MESSAGE_BYTES};
use remuda_telemetry::metrics::{self, registry::REQUEST_BODY_MEMORY};

/// Hint for callers that were refused.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Tenants after which the first unused ones are removed.
const FIRST_PRUNING: usize = 1024;

/// The memory of all bodies. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct BodyBudget(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    limit: usize,
    limit_per_tenant: usize,
    held: AtomicUsize,
    tenants: Mutex<Tenants>,
    /// For requests without a caller.
    anonymous: Arc<TenantMemory>,
}

#[derive(Debug)]
struct Tenants {
    /// Operators belong to no tenant, and share one entry.
    by_id: HashMap<Option<TenantId>, Weak<TenantMemory>>,
    prune_at: usize,
}

/// The memory of one tenant's bodies.
#[derive(Debug, Default)]
pub(crate) struct TenantMemory(AtomicUsize);

impl BodyBudget {
    pub(crate) fn new(limit: usize, limit_per_tenant: usize) -> Self {
        let tenants = Tenants { by_id: HashMap::new(), prune_at: FIRST_PRUNING };
        let held = AtomicUsize::new(0);
        let anonymous = Arc::default();
        Self(Arc::new(Budget { limit, limit_per_tenant, held, tenants: Mutex::new(tenants), anonymous }))
    }

    /// The bytes that are reserved now.
    pub(crate) fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Exports the reserved bytes while the budget is in use.
    #[expect(clippy::cast_precision_loss, reason = "budgets are far below 2^52 bytes")]
    pub(crate) fn export(&self) {
        let budget = Arc::downgrade(&self.0);
        metrics::observe(&REQUEST_BODY_MEMORY, move |memory| {
            if let Some(budget) = budget.upgrade() {
                memory.observe(Self(budget).held() as f64, &[]);
            }
        });
    }

    /// The memory of a tenant, or of the operators. Shared by all its callers.
    pub(crate) fn of_tenant(&self, tenant: Option<TenantId>) -> Arc<TenantMemory> {
        let mut tenants = self.0.tenants.lock();
        if let Some(memory) = tenants.by_id.get(&tenant).and_then(Weak::upgrade) {
            return memory;
        }
        if tenants.by_id.len() >= tenants.prune_at {
            tenants.by_id.retain(|_, memory| memory.strong_count() > 0);
            tenants.prune_at = FIRST_PRUNING.max(tenants.by_id.len() * 2);
        }
        let memory = Arc::default();
        tenants.by_id.insert(tenant, Arc::downgrade(&memory));
        memory
    }
}

/// What one request has reserved.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: BodyBudget,
    /// Who pays. Fixed by the first bytes.
    tenant: Option<Arc<TenantMemory>>,
    bytes: usize,
}

impl Reservation {
    pub(crate) fn new(budget: BodyBudget) -> Self {
        Self { budget, tenant: None, bytes: 0 }
    }

    /// Reserves further bytes. No more than the largest body: what exceeds it is read only to be discarded.
    pub(crate) fn grow(&mut self, tenant: Option<&Arc<TenantMemory>>, bytes: usize) -> Result<()> {
        let more = bytes.min(MAX_MESSAGE_BYTES.saturating_sub(self.bytes));
        let Budget { limit, limit_per_tenant, held, anonymous, .. } = &*self.budget.0;
        let tenant = self.tenant.get_or_insert_with(|| Arc::clone(tenant.unwrap_or(anonymous)));
        take(&tenant.0, more, *limit_per_tenant, "server.body_memory_per_tenant")?;
        take(held, more, *limit, "server.body_memory").inspect_err(|_| give_back(&tenant.0, more))?;
        self.bytes += more;
        Ok(())
    }

    /// Gives all back.
    pub(crate) fn release(&mut self) {
        if let Some(tenant) = &self.tenant {
            give_back(&tenant.0, self.bytes);
            give_back(&self.budget.0.held, self.bytes);
        }
        self.bytes = 0;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

fn take(held: &AtomicUsize, more: usize, limit: usize, key: &str) -> Result<()> {
    let before = held.fetch_add(more, Ordering::Relaxed);
    if before.saturating_add(more) <= limit {
        return Ok(());
    }
    give_back(held, more);
    let message = format!("the bodies of other requests take the {limit} bytes that {key} allows");
    Err(Error::new(Code::Overloaded, message).at("body").retry_after(RETRY_AFTER))
}

fn give_back(held: &AtomicUsize, bytes: usize) {
    held.fetch_sub(bytes, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn bodies_reserve_memory_until_they_are_dropped() {
        let budget = BodyBudget::new(100 * MIB, 40 * MIB);
        let (one, other) = (budget.of_tenant(Some(TenantId::new())), budget.of_tenant(Some(TenantId::new())));
        let mut bodies: Vec<Reservation> = (0..5).map(|_| Reservation::new(budget.clone())).collect();
        let refused: Vec<Error> =
            bodies.iter_mut().filter_map(|body| body.grow(Some(&one), 10 * MIB).err()).collect();
        assert_eq!(refused.len(), 1, "the tenant's budget is for four of them");
        assert_eq!((refused[0].code(), refused[0].field()), (Code::Overloaded, Some("body")));
        assert!(refused[0].message().contains("server.body_memory_per_tenant"), "{}", refused[0]);
        assert!(refused[0].retry_delay().is_some());
        assert_eq!(budget.held(), 40 * MIB);
        // Other tenants, and requests without a caller, have memory of their own.
        let mut others = Reservation::new(budget.clone());
        others.grow(Some(&other), 10 * MIB).unwrap();
        Reservation::new(budget.clone()).grow(None, MIB).unwrap();
        bodies.pop();
        bodies.pop();
        assert_eq!(budget.held(), 40 * MIB);
        bodies.push(Reservation::new(budget.clone()));
        bodies.last_mut().unwrap().grow(Some(&one), 10 * MIB).unwrap();
        drop((bodies, others));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn process_budget_limits_all_tenants_together() {
        let budget = BodyBudget::new(30 * MIB, 20 * MIB);
        let mut held = Vec::new();
        let mut reserve = |bytes| {
            let mut body = Reservation::new(budget.clone());
            let result = body.grow(Some(&budget.of_tenant(Some(TenantId::new()))), bytes);
            held.push(body);
            result
        };
        reserve(16 * MIB).unwrap();
        let error = reserve(16 * MIB).unwrap_err();
        assert!(error.message().contains("server.body_memory allows"), "{error}");
        reserve(14 * MIB).unwrap();
    }

    #[test]
    fn discarded_part_of_an_oversized_body_reserves_nothing() {
        let budget = BodyBudget::new(1 << 30, 1 << 30);
        let mut body = Reservation::new(budget.clone());
        for _ in 0..64 {
            body.grow(None, MIB).unwrap();
        }
        assert_eq!(budget.held(), MAX_MESSAGE_BYTES);
    }

    #[test]
    fn unused_tenants_are_forgotten() {
        let budget = BodyBudget::new(MIB, MIB);
        for _ in 0..3 * FIRST_PRUNING {
            budget.of_tenant(Some(TenantId::new()));
        }
        assert!(budget.0.tenants.lock().by_id.len() <= FIRST_PRUNING);
        let tenant = TenantId::new();
        let memory = budget.of_tenant(Some(tenant));
        assert!(Arc::ptr_eq(&memory, &budget.of_tenant(Some(tenant))));
    }
}
