//! Sessions.

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, SessionId, WorkspaceId,
    session::{SessionRef, SessionStatus},
};
use remuda_store::{NewSession, SessionUpdate};

use crate::fixture::{Fixture, names, page, refusal};

fn titled(title: &str) -> SessionUpdate {
    SessionUpdate { title: Some(title.to_owned()), ..SessionUpdate::default() }
}

pub(crate) async fn session_is_found_by_id_and_by_name(fixture: &Fixture) -> Result<()> {
    let new = fixture.new_session(Some("build #7 – 日本語"));
    let made = fixture.store.create_session(&new).await?;
    assert_eq!(names(&made.events), ["session.created"]);
    let session = made.value;
    assert_eq!((session.id, session.tenant, session.workspace), (new.id, fixture.tenant, fixture.workspace));
    assert_eq!((session.status, session.pending, session.last_cursor), (SessionStatus::Open, 0, 1));
    assert_eq!(fixture.get_session(new.id).await?, session);
    let by_name = SessionRef::Name("build #7 – 日本語".into());
    assert_eq!(fixture.store.get_session(fixture.tenant, &by_name).await?, session);
    fixture.check(session.id).await
}

pub(crate) async fn session_names_are_unique_per_tenant(fixture: &Fixture) -> Result<()> {
    fixture.store.create_session(&fixture.new_session(Some("s1"))).await?;
    let again =
        fixture.store.create_session(&fixture.new_session(Some("s1"))).await.err().context("twice")?;
    assert_eq!((again.code(), again.field()), (Code::AlreadyExists, Some("name")));
    // Unnamed sessions and other tenants' names do not conflict.
    fixture.session().await?;
    fixture.session().await?;
    let stranger = fixture.stranger().await?;
    let workspace = fixture.store.find_workspace(stranger, "default").await?.context("no workspace")?.id;
    let theirs = NewSession { tenant: stranger, workspace, ..fixture.new_session(Some("s1")) };
    fixture.store.create_session(&theirs).await?;
    Ok(())
}

pub(crate) async fn sessions_of_other_tenants_are_not_found(fixture: &Fixture) -> Result<()> {
    let (store, stranger) = (&fixture.store, fixture.stranger().await?);
    let ours = store.create_session(&fixture.new_session(Some("ours"))).await?.value.id;
    let id = |session| SessionRef::Id(session);
    let foreign = store.get_session(stranger, &id(ours)).await.err().context("foreign")?;
    let unknown = store.get_session(stranger, &id(SessionId::new())).await.err().context("unknown")?;
    assert_eq!(foreign.code(), Code::SessionNotFound);
    assert_eq!(format!("{foreign:?}"), format!("{unknown:?}"));
    let by_name = SessionRef::Name("ours".into());
    assert_eq!(refusal(store.get_session(stranger, &by_name).await), Code::SessionNotFound);
    assert_eq!(
        refusal(store.update_session(stranger, ours, &titled("mine now")).await),
        Code::SessionNotFound
    );
    assert_eq!(refusal(store.close_session(stranger, ours).await), Code::SessionNotFound);
    assert_eq!(refusal(store.list_messages(stranger, ours, &page(5)).await), Code::SessionNotFound);
    assert_eq!(store.list_sessions(stranger, None, &page(5)).await?.items, []);
    assert_eq!(store.list_queue(stranger, ours, &page(5)).await?.items, []);
    assert!(!store.is_runnable(stranger, ours).await?);
    assert_eq!(fixture.get_session(ours).await?.title, "a title");
    fixture.check(ours).await
}

pub(crate) async fn changing_the_title_appends_an_event(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    let changed =
        fixture.store.update_session(fixture.tenant, session, &titled("it's \"new\" \u{1f40e}")).await?;
    assert_eq!(changed.value.title, "it's \"new\" \u{1f40e}");
    assert_eq!(names(&changed.events), ["session.updated"]);
    assert_eq!(changed.events[0].cursor, 3);
    assert_eq!(fixture.get_session(session).await?, changed.value);
    fixture.check(session).await
}

pub(crate) async fn closing_twice_appends_one_event(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let waiting = fixture.submit(session).await?.run.id;
    let closed = fixture.store.close_session(fixture.tenant, session).await?;
    assert_eq!(closed.value.status, SessionStatus::Closed);
    assert_eq!(names(&closed.events), ["session.closed"]);
    let again = fixture.store.close_session(fixture.tenant, session).await?;
    assert!(again.value == closed.value && again.events.is_empty());
    // Runs accepted before the close are still executed.
    let worker = fixture.worker(crate::fixture::LONG_LEASE).await?;
    assert_eq!(fixture.granted(session, worker).await?.run.id, waiting);
    let open = fixture.store.list_sessions(fixture.tenant, Some(SessionStatus::Open), &page(5)).await?;
    let closed = fixture.store.list_sessions(fixture.tenant, Some(SessionStatus::Closed), &page(5)).await?;
    assert_eq!((open.items.len(), closed.items.len()), (0, 1));
    fixture.check(session).await
}

pub(crate) async fn deleting_a_session_deletes_all_its_rows(fixture: &Fixture) -> Result<()> {
    let (kept, gone) = (fixture.session().await?, fixture.session().await?);
    let below = NewSession { parent: Some(gone), ..fixture.new_session(None) };
    let below = fixture.store.create_session(&below).await?.value.id;
    let run = fixture.store.submit(fixture.keyed_run(gone, "key", 1)).await?.run.id;
    fixture.submit(kept).await?;
    assert_eq!(refusal(fixture.store.delete_session(fixture.tenant, gone).await), Code::SessionBusy);
    assert_eq!(
        refusal(fixture.store.delete_session(fixture.stranger().await?, gone).await),
        Code::SessionNotFound
    );
    fixture.store.request_cancel(fixture.tenant, run, "no").await?;

    let mut deleted = fixture.store.delete_session(fixture.tenant, gone).await?;
    deleted.sort_by_key(|session| *session != gone);
    assert_eq!(deleted, [gone, below]);
    for session in [gone, below] {
        assert_eq!(
            refusal(fixture.store.read_events(fixture.tenant, session, 0, 1).await),
            Code::SessionNotFound
        );
    }
    assert_eq!(refusal(fixture.store.get_run(fixture.tenant, run).await), Code::RunNotFound);
    assert_eq!(refusal(fixture.store.delete_session(fixture.tenant, gone).await), Code::SessionNotFound);
    // The key can be reused, and other sessions are unchanged.
    let again = fixture.store.submit(fixture.keyed_run(kept, "key", 1)).await?;
    assert!(!again.deduplicated);
    fixture.check(kept).await
}

pub(crate) async fn session_requires_a_workspace_of_its_tenant(fixture: &Fixture) -> Result<()> {
    let stranger = fixture.stranger().await?;
    let foreign = NewSession { tenant: stranger, ..fixture.new_session(None) };
    assert_eq!(refusal(fixture.store.create_session(&foreign).await), Code::WorkspaceNotFound);
    let unknown = NewSession { workspace: WorkspaceId::new(), ..fixture.new_session(None) };
    assert_eq!(refusal(fixture.store.create_session(&unknown).await), Code::WorkspaceNotFound);
    Ok(())
}

pub(crate) async fn update_changes_only_the_given_fields(fixture: &Fixture) -> Result<()> {
    let new = NewSession { agent: Some("build".into()), ..fixture.new_session(None) };
    let made = fixture.store.create_session(&new).await?.value;
    assert_eq!((made.agent.as_deref(), made.model.as_deref()), (Some("build"), None));
    let update = SessionUpdate { model: Some("platform/small".into()), ..SessionUpdate::default() };
    let changed = fixture.store.update_session(fixture.tenant, new.id, &update).await?.value;
    assert_eq!((changed.title.as_str(), changed.agent.as_deref()), ("a title", Some("build")));
    assert_eq!(changed.model.as_deref(), Some("platform/small"));
    let update = SessionUpdate { agent: Some("plan".into()), ..SessionUpdate::default() };
    let changed = fixture.store.update_session(fixture.tenant, new.id, &update).await?.value;
    assert_eq!((changed.agent.as_deref(), changed.model.as_deref()), (Some("plan"), Some("platform/small")));
    assert_eq!(fixture.get_session(new.id).await?, changed);
    // The next grant contains the changes.
    fixture.submit(new.id).await?;
    let grant = fixture.granted(new.id, fixture.worker(crate::fixture::LONG_LEASE).await?).await?;
    assert_eq!((grant.agent.as_deref(), grant.model.as_deref()), (Some("plan"), Some("platform/small")));
    fixture.check(new.id).await
}

pub(crate) async fn model_is_locked_after_the_first_run(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let model = |name: &str| SessionUpdate { model: Some(name.to_owned()), ..titled("renamed") };
    fixture.store.update_session(fixture.tenant, session, &model("small")).await?;
    fixture.store.update_session(fixture.tenant, session, &model("large")).await?;
    fixture.submit(session).await?;
    let refused =
        fixture.store.update_session(fixture.tenant, session, &model("small")).await.err().context("late")?;
    assert_eq!((refused.code(), refused.field()), (Code::SessionModelLocked, Some("model")));
    let before = fixture.get_session(session).await?;
    assert_eq!((before.model.as_deref(), before.last_cursor), (Some("large"), 4));
    // Setting the same model is allowed, and so are all other changes.
    let update = SessionUpdate { agent: Some("plan".into()), ..model("large") };
    let changed = fixture.store.update_session(fixture.tenant, session, &update).await?.value;
    assert_eq!((changed.agent.as_deref(), changed.model.as_deref()), (Some("plan"), Some("large")));
    fixture.check(session).await
}
