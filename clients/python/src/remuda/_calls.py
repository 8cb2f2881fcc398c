"""Builds the requests of the API for both clients. ``Client`` documents each of them."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, TypeVar, Union, cast

from ._call import (
    PREFIX,
    Call,
    Duration,
    Response,
    Texts,
    as_type,
    duration_text,
    given,
    joined,
    millis,
    nothing,
    path,
    query,
    seconds,
)
from ._decode import decode, encode
from ._following import read_event
from ._options import (
    ExecutionLike,
    LimitLike,
    PermissionsLike,
    RunRef,
    SessionRef,
    run_of,
    session_of,
)
from ._target import Target, target_path
from .errors import ProtocolError
from .types import (
    Approval,
    BudgetSet,
    CancelledSession,
    DeadLetter,
    EventPage,
    Explanation,
    IfBusy,
    Image,
    Message,
    Page,
    Pool,
    Run,
    ServerInfo,
    Session,
    Step,
    Submitted,
    ToolCall,
    Webhook,
    WebhookTest,
    Worker,
    Workspace,
)

T = TypeVar("T")
ToolCallLike = Union[ToolCall, Mapping[str, Any]]
ImageLike = Union[Image, Mapping[str, Any]]


def _get(where: str, kind: type[T], **params: object) -> Call[T]:
    return Call("GET", where, as_type(kind), params=query(**params), repeatable=True)


def _items(kind: type[T], response: Response) -> list[T]:
    items = response.body.get("items") if isinstance(response.body, dict) else None
    if not isinstance(items, list):
        raise ProtocolError("items is missing in the server's response")
    return [decode(kind, item, f"items[{index}]") for index, item in enumerate(items)]


def _list(where: str, kind: type[T], **params: object) -> Call[list[T]]:
    return Call("GET", where, lambda response: _items(kind, response), params=query(**params), repeatable=True)


def _page(where: str, kind: type[T], **params: object) -> Call[Page[T]]:
    return _page_call(where, kind, query(**params))


def _page_call(where: str, kind: type[T], params: Mapping[str, Texts]) -> Call[Page[T]]:
    def read(response: Response) -> Page[T]:
        items = _items(kind, response)
        token = response.body.get("next_page_token")
        if not isinstance(token, str):
            return Page(items)
        return Page(items, token, _page_call(where, kind, {**params, "page_token": token}))

    return Call("GET", where, read, params=params, repeatable=True)


def _session(response: Response) -> Session:
    session = decode(Session, response.body)
    return dataclasses.replace(session, etag=response.headers.get("etag"))


# Sessions.


def create_session(
    *,
    name: Optional[str],
    title: Optional[str],
    workspace: Optional[str],
    pool: Optional[str],
    parent: Optional[SessionRef],
    agent: Optional[str],
    model: Optional[str],
    execution: Optional[ExecutionLike],
    permissions: Optional[PermissionsLike],
    budget: Optional[LimitLike],
) -> Call[Session]:
    body = given(
        name=name,
        title=title,
        workspace=workspace,
        pool=pool,
        parent=None if parent is None else session_of(parent),
        agent=agent,
        model=model,
        execution=encode(execution),
        permissions=encode(permissions),
        budget=encode(budget),
    )
    return Call("POST", path("sessions"), _session, body=body)


def get_session(session: SessionRef) -> Call[Session]:
    return Call("GET", path("sessions", session_of(session)), _session, repeatable=True)


def list_sessions(status: Optional[str], page_size: Optional[int], page_token: Optional[str]) -> Call[Page[Session]]:
    return _page(path("sessions"), Session, status=status, page_size=page_size, page_token=page_token)


def update_session(
    session: SessionRef,
    *,
    title: Optional[str],
    agent: Optional[str],
    model: Optional[str],
    permissions: Optional[PermissionsLike],
    if_match: Optional[str],
) -> Call[Session]:
    body = given(title=title, agent=agent, model=model, permissions=encode(permissions))
    headers = {} if if_match is None else {"if-match": if_match}
    # Not repeated with a condition: if the first response was lost, the repeated request would fail with a conflict.
    where = path("sessions", session_of(session))
    return Call("PATCH", where, _session, body=body, headers=headers, repeatable=if_match is None)


def delete_session(session: SessionRef, cancel_runs: bool) -> Call[None]:
    # Not repeated: a second request would fail with session_not_found.
    return Call("DELETE", path("sessions", session_of(session)), nothing, params=query(cancel_runs=cancel_runs or None))


def close_session(session: SessionRef, cancel_runs: bool) -> Call[Session]:
    where = path("sessions", session_of(session), "close")
    return Call("POST", where, _session, body={"cancel_runs": cancel_runs}, repeatable=True)


def cancel_session(session: SessionRef, tree: bool, reason: Optional[str]) -> Call[CancelledSession]:
    where = path("sessions", session_of(session), "cancel")
    return Call("POST", where, as_type(CancelledSession), body=given(tree=tree, reason=reason), repeatable=True)


def list_children(session: SessionRef, page_size: Optional[int], page_token: Optional[str]) -> Call[Page[Session]]:
    where = path("sessions", session_of(session), "children")
    return _page(where, Session, page_size=page_size, page_token=page_token)


def list_messages(session: SessionRef, page_size: Optional[int], page_token: Optional[str]) -> Call[Page[Message]]:
    where = path("sessions", session_of(session), "messages")
    return _page(where, Message, page_size=page_size, page_token=page_token)


def list_runs(
    session: Optional[SessionRef],
    states: Optional[Iterable[str]],
    labels: Optional[Mapping[str, str]],
    page_size: Optional[int],
    page_token: Optional[str],
) -> Call[Page[Run]]:
    where = path("runs") if session is None else path("sessions", session_of(session), "runs")
    label = [f"{key}={value}" for key, value in labels.items()] if labels else None
    return _page(where, Run, states=joined("states", states), label=label, page_size=page_size, page_token=page_token)


def list_queue(session: SessionRef, page_size: Optional[int], page_token: Optional[str]) -> Call[Page[Run]]:
    where = path("sessions", session_of(session), "queue")
    return _page(where, Run, page_size=page_size, page_token=page_token)


# Runs.


def _submit(
    where: str,
    what: Mapping[str, Any],
    *,
    create_session: bool = False,
    if_busy: Optional[IfBusy] = None,
    timeout: Optional[Duration] = None,
    idempotency_key: Optional[str] = None,
    budget: Optional[LimitLike] = None,
    labels: Optional[Mapping[str, str]] = None,
    workspace: Optional[str] = None,
    model: Optional[str] = None,
    execution: Optional[ExecutionLike] = None,
    permissions: Optional[PermissionsLike] = None,
) -> Call[Submitted]:
    body = given(
        **what,
        create_session=create_session or None,
        if_busy=if_busy,
        timeout_ms=millis(timeout),
        budget=encode(budget),
        labels=dict(labels) if labels else None,
        workspace=workspace,
        model=model,
        execution=encode(execution),
        permissions=encode(permissions),
    )
    # A generated key makes the submit idempotent: the repeated request returns the existing run.
    headers = {"idempotency-key": idempotency_key or f"py-{uuid.uuid4()}"}
    return Call("POST", where, as_type(Submitted), body=body, headers=headers, repeatable=True)


def send(
    session: SessionRef,
    text: Optional[str],
    images: Sequence[ImageLike],
    agent: Optional[str],
    options: Mapping[str, Any],
) -> Call[Submitted]:
    what = given(text=text, images=encode(images) or None, agent=agent)
    return _submit(path("sessions", session_of(session), "messages"), what, **options)


def call_tools(
    session: SessionRef,
    calls: Sequence[ToolCallLike],
    continue_on_error: bool,
    record: bool,
    options: Mapping[str, Any],
) -> Call[Submitted]:
    tools = {"calls": encode(calls), "continue_on_error": continue_on_error, "record": record}
    return _submit(path("sessions", session_of(session), "runs"), {"tools": tools}, **options)


def get_run(run: RunRef) -> Call[Run]:
    return _get(path("runs", run_of(run)), Run)


def list_steps(run: RunRef) -> Call[list[Step]]:
    return _list(path("runs", run_of(run), "steps"), Step)


def wait_run(run: RunRef, max_wait: float) -> Call[Run]:
    def read(response: Response) -> Run:
        body = response.body
        return decode(Run, body.get("run") if isinstance(body, dict) else body)

    where = path("runs", run_of(run), "wait")
    params = {"timeout": duration_text(max_wait)}
    # The caller repeats it, because only the caller knows the deadline.
    return Call("GET", where, read, params=params, extra_timeout=max_wait)


def explain_run(run: RunRef) -> Call[Explanation]:
    return _get(path("runs", run_of(run), "explain"), Explanation)


def cancel_run(run: RunRef, reason: Optional[str]) -> Call[Run]:
    where = path("runs", run_of(run), "cancel")
    return Call("POST", where, as_type(Run), body=given(reason=reason), repeatable=True)


def set_budget(target: Target, limit: LimitLike) -> Call[BudgetSet]:
    where = f"{target_path(target)[0]}/budget"
    return Call("PUT", where, as_type(BudgetSet), body=encode(limit), repeatable=True)


# Events.


def poll_events(target: Target, after: int, types: Optional[Iterable[str]], max_wait: Duration) -> Call[EventPage]:
    def read(response: Response) -> EventPage:
        events = [read_event(item) for item in _items(dict, response)]
        next_cursor = response.body.get("next_cursor")
        if not isinstance(next_cursor, int):
            raise ProtocolError("next_cursor is missing in the server's response")
        return EventPage(next_cursor, events, response.body.get("ended") is True, response.body)

    patience = seconds(max_wait)
    params = query(cursor=after, types=joined("types", types), wait=duration_text(patience))
    where = f"{target_path(target)[0]}/events"
    return Call("GET", where, read, params=params, repeatable=True, extra_timeout=patience)


# Approvals.


def list_approvals(
    state: Optional[str],
    session: Optional[SessionRef],
    run: Optional[RunRef],
    page_size: Optional[int],
    page_token: Optional[str],
) -> Call[Page[Approval]]:
    return _page(
        path("approvals"),
        Approval,
        state=state,
        session=None if session is None else session_of(session),
        run_id=None if run is None else run_of(run),
        page_size=page_size,
        page_token=page_token,
    )


def get_approval(approval_id: str) -> Call[Approval]:
    return _get(path("approvals", approval_id), Approval)


def decide(
    approval: Union[str, Approval],
    approve: bool,
    message: Optional[str],
    arguments: Optional[Mapping[str, Any]],
    always: bool,
) -> Call[Approval]:
    if isinstance(approval, str):
        approval_id, call_hash = approval, None
    else:
        approval_id, call_hash = approval.id, approval.call_hash
    body = given(approve=approve, message=message, arguments=arguments, always=always or None, call_hash=call_hash)
    return Call("POST", path("approvals", approval_id, "decision"), as_type(Approval), body=body)


# Webhooks.


def _webhook_path(webhook: Union[str, Webhook], *more: str) -> str:
    return path("webhooks", webhook if isinstance(webhook, str) else webhook.id, *more)


def create_webhook(target: Target, url: str, types: Sequence[str]) -> Call[Webhook]:
    _, run_id = target_path(target)
    session = None if run_id is not None else session_of(cast(SessionRef, target))
    body = given(session=session, run_id=run_id, url=url, types=list(types))
    return Call("POST", path("webhooks"), as_type(Webhook), body=body)


def get_webhook(webhook: Union[str, Webhook]) -> Call[Webhook]:
    return _get(_webhook_path(webhook), Webhook)


def list_webhooks(
    session: Optional[SessionRef], page_size: Optional[int], page_token: Optional[str]
) -> Call[Page[Webhook]]:
    name = None if session is None else session_of(session)
    return _page(path("webhooks"), Webhook, session=name, page_size=page_size, page_token=page_token)


def enable_webhook(webhook: Union[str, Webhook], enabled: bool) -> Call[Webhook]:
    return Call("PATCH", _webhook_path(webhook), as_type(Webhook), body={"enabled": enabled}, repeatable=True)


def delete_webhook(webhook: Union[str, Webhook]) -> Call[None]:
    return Call("DELETE", _webhook_path(webhook), nothing)


def rotate_webhook_secret(webhook: Union[str, Webhook]) -> Call[Webhook]:
    return Call("POST", _webhook_path(webhook, "secret"), as_type(Webhook))


def try_webhook(webhook: Union[str, Webhook]) -> Call[WebhookTest]:
    return Call("POST", _webhook_path(webhook, "test"), as_type(WebhookTest))


def list_dead_letters(
    webhook: Union[str, Webhook], page_size: Optional[int], page_token: Optional[str]
) -> Call[Page[DeadLetter]]:
    return _page(_webhook_path(webhook, "dead-letters"), DeadLetter, page_size=page_size, page_token=page_token)


def redeliver(webhook: Union[str, Webhook], letter: Union[str, DeadLetter, None]) -> Call[int]:
    def read(response: Response) -> int:
        return decode(int, response.body.get("count") if isinstance(response.body, dict) else None, "count")

    delivery_id = letter.id if isinstance(letter, DeadLetter) else letter
    return Call("POST", _webhook_path(webhook, "redeliver"), read, body=given(delivery_id=delivery_id), repeatable=True)


# Workspaces, workers and pools.


def create_workspace(name: str, root: str, tenant: Optional[str]) -> Call[Workspace]:
    body = {"name": name, "root": root, **given(tenant=tenant)}
    return Call("POST", path("workspaces"), as_type(Workspace), body=body)


def get_workspace(name: str) -> Call[Workspace]:
    return _get(path("workspaces", name), Workspace)


def list_workspaces(page_size: Optional[int], page_token: Optional[str]) -> Call[Page[Workspace]]:
    return _page(path("workspaces"), Workspace, page_size=page_size, page_token=page_token)


def get_content(content_hash: str) -> Call[str]:
    return Call("GET", path("contents", content_hash), lambda response: decode(str, response.body), repeatable=True)


def drain_worker(worker: Union[str, Worker]) -> Call[Worker]:
    worker_id = worker if isinstance(worker, str) else worker.id
    return Call("POST", path("workers", worker_id, "drain"), as_type(Worker), repeatable=True)


def list_workers(include_gone: bool) -> Call[list[Worker]]:
    return _list(path("workers"), Worker, include_gone=include_gone or None)


def list_pools() -> Call[list[Pool]]:
    return _list(path("queue"), Pool)


def server_info() -> Call[ServerInfo]:
    return _get(PREFIX, ServerInfo)
