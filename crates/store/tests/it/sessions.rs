//! Sessions.

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, SessionId, WorkspaceId,
    session::{SessionRef, SessionStatus},
};
use remuda_store::{NewSession, SessionUpdate};

use crate::lab::{Lab, names, page, refusal};

fn titled(title: &str) -> SessionUpdate {
    SessionUpdate { title: Some(title.to_owned()), ..SessionUpdate::default() }
}

pub(crate) async fn a_session_is_found_by_id_and_by_name(lab: &Lab) -> Result<()> {
    let new = lab.new_session(Some("build #7 – 日本語"));
    let made = lab.store.create_session(&new).await?;
    assert_eq!(names(&made.events), ["session.created"]);
    let session = made.value;
    assert_eq!((session.id, session.tenant, session.workspace), (new.id, lab.tenant, lab.workspace));
    assert_eq!((session.status, session.pending, session.last_cursor), (SessionStatus::Open, 0, 1));
    assert_eq!(lab.look(new.id).await?, session);
    let by_name = SessionRef::Name("build #7 – 日本語".into());
    assert_eq!(lab.store.get_session(lab.tenant, &by_name).await?, session);
    lab.check(session.id).await
}

pub(crate) async fn names_are_unique_per_tenant(lab: &Lab) -> Result<()> {
    lab.store.create_session(&lab.new_session(Some("s1"))).await?;
    let again = lab.store.create_session(&lab.new_session(Some("s1"))).await.err().context("twice")?;
    assert_eq!((again.code(), again.field()), (Code::AlreadyExists, Some("name")));
    // Nameless sessions and other tenants' names do not count.
    lab.session().await?;
    lab.session().await?;
    let stranger = lab.stranger().await?;
    let workspace = lab.store.find_workspace(stranger, "default").await?.context("no workspace")?.id;
    let theirs = NewSession { tenant: stranger, workspace, ..lab.new_session(Some("s1")) };
    lab.store.create_session(&theirs).await?;
    Ok(())
}

pub(crate) async fn other_tenants_sessions_do_not_exist(lab: &Lab) -> Result<()> {
    let (store, stranger) = (&lab.store, lab.stranger().await?);
    let ours = store.create_session(&lab.new_session(Some("ours"))).await?.value.id;
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
    assert_eq!(lab.look(ours).await?.title, "a title");
    lab.check(ours).await
}

pub(crate) async fn a_title_is_changed_with_an_event(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    let changed = lab.store.update_session(lab.tenant, session, &titled("it's \"new\" \u{1f40e}")).await?;
    assert_eq!(changed.value.title, "it's \"new\" \u{1f40e}");
    assert_eq!(names(&changed.events), ["session.updated"]);
    assert_eq!(changed.events[0].cursor, 3);
    assert_eq!(lab.look(session).await?, changed.value);
    lab.check(session).await
}

pub(crate) async fn closing_twice_appends_one_event(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let waiting = lab.submit(session).await?.run.id;
    let closed = lab.store.close_session(lab.tenant, session).await?;
    assert_eq!(closed.value.status, SessionStatus::Closed);
    assert_eq!(names(&closed.events), ["session.closed"]);
    let again = lab.store.close_session(lab.tenant, session).await?;
    assert!(again.value == closed.value && again.events.is_empty());
    // What was accepted before is still executed.
    let worker = lab.worker(crate::lab::LONG_LEASE).await?;
    assert_eq!(lab.granted(session, worker).await?.run.id, waiting);
    let open = lab.store.list_sessions(lab.tenant, Some(SessionStatus::Open), &page(5)).await?;
    let closed = lab.store.list_sessions(lab.tenant, Some(SessionStatus::Closed), &page(5)).await?;
    assert_eq!((open.items.len(), closed.items.len()), (0, 1));
    lab.check(session).await
}

pub(crate) async fn a_deleted_session_leaves_nothing(lab: &Lab) -> Result<()> {
    let (kept, gone) = (lab.session().await?, lab.session().await?);
    let below = NewSession { parent: Some(gone), ..lab.new_session(None) };
    let below = lab.store.create_session(&below).await?.value.id;
    let run = lab.store.submit(lab.keyed_run(gone, "key", 1)).await?.run.id;
    lab.submit(kept).await?;
    assert_eq!(refusal(lab.store.delete_session(lab.tenant, gone).await), Code::SessionBusy);
    assert_eq!(refusal(lab.store.delete_session(lab.stranger().await?, gone).await), Code::SessionNotFound);
    lab.store.request_cancel(lab.tenant, run, "no").await?;

    let mut deleted = lab.store.delete_session(lab.tenant, gone).await?;
    deleted.sort_by_key(|session| *session != gone);
    assert_eq!(deleted, [gone, below]);
    for session in [gone, below] {
        assert_eq!(refusal(lab.store.read_events(lab.tenant, session, 0, 1).await), Code::SessionNotFound);
    }
    assert_eq!(refusal(lab.store.get_run(lab.tenant, run).await), Code::RunNotFound);
    assert_eq!(refusal(lab.store.delete_session(lab.tenant, gone).await), Code::SessionNotFound);
    // The key is free again, and what belongs to others is as it was.
    let again = lab.store.submit(lab.keyed_run(kept, "key", 1)).await?;
    assert!(!again.deduplicated);
    lab.check(kept).await
}

pub(crate) async fn a_session_needs_a_workspace_of_its_tenant(lab: &Lab) -> Result<()> {
    let stranger = lab.stranger().await?;
    let foreign = NewSession { tenant: stranger, ..lab.new_session(None) };
    assert_eq!(refusal(lab.store.create_session(&foreign).await), Code::WorkspaceNotFound);
    let unknown = NewSession { workspace: WorkspaceId::new(), ..lab.new_session(None) };
    assert_eq!(refusal(lab.store.create_session(&unknown).await), Code::WorkspaceNotFound);
    Ok(())
}

pub(crate) async fn only_what_is_given_is_changed(lab: &Lab) -> Result<()> {
    let new = NewSession { agent: Some("build".into()), ..lab.new_session(None) };
    let made = lab.store.create_session(&new).await?.value;
    assert_eq!((made.agent.as_deref(), made.model.as_deref()), (Some("build"), None));
    let update = SessionUpdate { model: Some("platform/small".into()), ..SessionUpdate::default() };
    let changed = lab.store.update_session(lab.tenant, new.id, &update).await?.value;
    assert_eq!((changed.title.as_str(), changed.agent.as_deref()), ("a title", Some("build")));
    assert_eq!(changed.model.as_deref(), Some("platform/small"));
    let update = SessionUpdate { agent: Some("plan".into()), ..SessionUpdate::default() };
    let changed = lab.store.update_session(lab.tenant, new.id, &update).await?.value;
    assert_eq!((changed.agent.as_deref(), changed.model.as_deref()), (Some("plan"), Some("platform/small")));
    assert_eq!(lab.look(new.id).await?, changed);
    // Whoever executes its runs is told.
    lab.submit(new.id).await?;
    let grant = lab.granted(new.id, lab.worker(crate::lab::LONG_LEASE).await?).await?;
    assert_eq!((grant.agent.as_deref(), grant.model.as_deref()), (Some("plan"), Some("platform/small")));
    lab.check(new.id).await
}

pub(crate) async fn a_model_stays_once_there_are_runs(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let model = |name: &str| SessionUpdate { model: Some(name.to_owned()), ..titled("renamed") };
    lab.store.update_session(lab.tenant, session, &model("small")).await?;
    lab.store.update_session(lab.tenant, session, &model("large")).await?;
    lab.submit(session).await?;
    let refused =
        lab.store.update_session(lab.tenant, session, &model("small")).await.err().context("late")?;
    assert_eq!((refused.code(), refused.field()), (Code::SessionModelLocked, Some("model")));
    let before = lab.look(session).await?;
    assert_eq!((before.model.as_deref(), before.last_cursor), (Some("large"), 4));
    // The model it has is no other model, and everything else may change.
    let update = SessionUpdate { agent: Some("plan".into()), ..model("large") };
    let changed = lab.store.update_session(lab.tenant, session, &update).await?.value;
    assert_eq!((changed.agent.as_deref(), changed.model.as_deref()), (Some("plan"), Some("large")));
    lab.check(session).await
}
