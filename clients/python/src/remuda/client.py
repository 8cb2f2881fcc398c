"""The blocking client. ``aio`` has the same methods for asyncio; a test compares the two."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union

import httpx

from . import _calls
from ._call import Call, Duration, connection_failed, read_response, seconds
from ._calls import ImageLike, ToolCallLike
from ._core import LONG_POLL_SECONDS, MIN_POLL_SECONDS, Core, long_poll_ignored
from ._following import Following
from ._options import ExecutionLike, LimitLike, PermissionsLike, RunRef, SessionRef
from ._target import Target
from .errors import RemudaError, RunNotCompletedError, WaitTimeoutError
from .streams import EventStream
from .types import (
    Approval,
    BudgetSet,
    CancelledSession,
    DeadLetter,
    EventPage,
    Explanation,
    Message,
    Page,
    Pool,
    Run,
    ServerInfo,
    Session,
    Step,
    Submitted,
    Webhook,
    WebhookTest,
    Worker,
    Workspace,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import SubmitOptions

T = TypeVar("T")


class Client:
    """A client of one server. Safe to share between threads.

    Requests that are safe to repeat are retried while a server that has answered before is unavailable. After
    ``give_up_after`` seconds without progress the last error is raised. Submits are retried too: each carries an
    idempotency key.

    ``endpoint`` and ``api_key`` default to ``REMUDA_ENDPOINT`` and ``REMUDA_API_KEY``. Times are in seconds:
    ``request_timeout`` limits one request, and an event stream reconnects after ``idle_timeout`` without data. Every
    open stream uses one of ``max_connections``.
    """

    def __init__(
        self,
        endpoint: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        stream_endpoint: Optional[str] = None,
        connect_timeout: Duration = 5.0,
        request_timeout: Duration = 30.0,
        idle_timeout: Duration = 60.0,
        give_up_after: Duration = 60.0,
        max_connections: int = 200,
        transport: Optional[httpx.BaseTransport] = None,
    ) -> None:
        self._core = Core(
            endpoint,
            api_key,
            stream_endpoint=stream_endpoint,
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
            idle_timeout=idle_timeout,
            give_up_after=give_up_after,
            max_connections=max_connections,
        )
        self._http = httpx.Client(headers=self._core.headers, limits=self._core.limits, transport=transport)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core.endpoint!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._http.close()

    # Submitting work.

    def run(
        self,
        session: SessionRef,
        text: Optional[str] = None,
        *,
        images: Sequence[ImageLike] = (),
        agent: Optional[str] = None,
        max_wait: Optional[Duration] = None,
        check: bool = True,
        **options: Unpack[SubmitOptions],
    ) -> Run:
        """Sends a message to the session's agent, waits for the end of the run and returns it, with its ``answer``.

        Raises ``RunNotCompletedError`` if the run ends in another state than completed, unless ``check`` is false.
        """
        submitted = self.send(session, text, images=images, agent=agent, **options)
        return self._finish(submitted, max_wait, check)

    def run_tools(
        self,
        session: SessionRef,
        calls: Sequence[ToolCallLike],
        *,
        continue_on_error: bool = False,
        record: bool = False,
        max_wait: Optional[Duration] = None,
        check: bool = True,
        **options: Unpack[SubmitOptions],
    ) -> Run:
        """Calls tools without an agent, waits for the end of the run and returns it, with its ``outcomes``."""
        submitted = self.call_tools(session, calls, continue_on_error=continue_on_error, record=record, **options)
        return self._finish(submitted, max_wait, check)

    def _finish(self, submitted: Submitted, max_wait: Optional[Duration], check: bool) -> Run:
        run = self.wait(submitted, max_wait=max_wait)
        if check and not run.completed:
            raise RunNotCompletedError(run)
        return run

    def send(
        self,
        session: SessionRef,
        text: Optional[str] = None,
        *,
        images: Sequence[ImageLike] = (),
        agent: Optional[str] = None,
        **options: Unpack[SubmitOptions],
    ) -> Submitted:
        """Sends a message to the session's agent. When this returns, the run is committed."""
        return self._send(_calls.send(session, text, images, agent, options))

    def call_tools(
        self,
        session: SessionRef,
        calls: Sequence[ToolCallLike],
        *,
        continue_on_error: bool = False,
        record: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Submitted:
        """Calls tools without an agent. When this returns, the run is committed."""
        return self._send(_calls.call_tools(session, calls, continue_on_error, record, options))

    # Runs.

    def get_run(self, run: RunRef) -> Run:
        """Returns the current state of a run."""
        return self._send(_calls.get_run(run))

    def wait(self, run: RunRef, *, max_wait: Optional[Duration] = None) -> Run:
        """Waits for the end of a run and returns it. Continues to wait across restarts of the server.

        Raises ``WaitTimeoutError`` after ``max_wait``; the run continues.
        """
        deadline = None if max_wait is None else time.monotonic() + seconds(max_wait)
        retry = self._core.retry()
        while True:
            started = time.monotonic()
            poll = LONG_POLL_SECONDS if deadline is None else min(LONG_POLL_SECONDS, max(0.0, deadline - started))
            try:
                state = self._once(_calls.wait_run(run, poll))
                if state.finished:
                    return state
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    raise WaitTimeoutError(state)
                if now - started < min(MIN_POLL_SECONDS, poll):
                    raise long_poll_ignored()
                retry.progress()
            except WaitTimeoutError:
                raise
            except RemudaError as error:
                self._core.raise_if_never_reached(error)
                time.sleep(retry.delay_after(error))

    def explain(self, run: RunRef) -> Explanation:
        """Explains why a run is not finished."""
        return self._send(_calls.explain_run(run))

    def cancel(self, run: RunRef, *, reason: Optional[str] = None) -> Run:
        """Requests the cancellation of a run. If it executes, its worker kills it: ``wait`` for its end."""
        return self._send(_calls.cancel_run(run, reason))

    def list_steps(self, run: RunRef) -> list[Step]:
        """Lists all model calls and tool calls of a run, in order."""
        return self._send(_calls.list_steps(run))

    def get_content(self, content_hash: str) -> str:
        """Returns a text that a step refers to by its hash."""
        return self._send(_calls.get_content(content_hash))

    def set_budget(self, target: Target, limit: LimitLike) -> BudgetSet:
        """Sets the budget of a run or a session. The limit covers past spending too. Runs that waited for it resume."""
        return self._send(_calls.set_budget(target, limit))

    # Events.

    def follow(
        self,
        target: Target,
        *,
        after: int = 0,
        types: Optional[Iterable[str]] = None,
        deltas: bool = False,
    ) -> EventStream:
        """Follows the events of a run (ends with it) or of a session (never ends), after the cursor ``after``.

        Every durable event is returned once and in order, also across lost connections and server restarts.
        ``types`` selects types, such as ``["run.*", "message.completed"]``; ``deltas`` adds deltas of messages and
        command output. A string that begins with ``run_`` names a run, any other string a session.
        """
        following = Following(target, after=after, types=types, deltas=deltas, give_up_after=self._core.give_up_after)
        return EventStream(self._core, self._http, following, self._stream_endpoint)

    def poll_events(
        self, target: Target, *, after: int = 0, types: Optional[Iterable[str]] = None, max_wait: Duration = 30.0
    ) -> EventPage:
        """Long poll, for networks that block streams: returns the events after a cursor as soon as there are any."""
        return self._send(_calls.poll_events(target, after, types, max_wait))

    # Sessions.

    def create_session(
        self,
        name: Optional[str] = None,
        *,
        title: Optional[str] = None,
        workspace: Optional[str] = None,
        pool: Optional[str] = None,
        parent: Optional[SessionRef] = None,
        agent: Optional[str] = None,
        model: Optional[str] = None,
        execution: Optional[ExecutionLike] = None,
        permissions: Optional[PermissionsLike] = None,
        budget: Optional[LimitLike] = None,
    ) -> Session:
        """Creates a session. Alternatively, submit with ``create_session=True``, which creates a missing session."""
        call = _calls.create_session(
            name=name,
            title=title,
            workspace=workspace,
            pool=pool,
            parent=parent,
            agent=agent,
            model=model,
            execution=execution,
            permissions=permissions,
            budget=budget,
        )
        return self._send(call)

    def get_session(self, session: SessionRef) -> Session:
        """Returns a session by id or name."""
        return self._send(_calls.get_session(session))

    def list_sessions(
        self, *, status: Optional[str] = None, page_size: Optional[int] = None, page_token: Optional[str] = None
    ) -> Page[Session]:
        """Lists sessions, newest first."""
        return self._send(_calls.list_sessions(status, page_size, page_token))

    def update_session(
        self,
        session: SessionRef,
        *,
        title: Optional[str] = None,
        agent: Optional[str] = None,
        model: Optional[str] = None,
        permissions: Optional[PermissionsLike] = None,
        if_match: Optional[str] = None,
    ) -> Session:
        """Changes the given fields; with ``if_match`` only if the session still has that ``Session.etag``."""
        call = _calls.update_session(
            session, title=title, agent=agent, model=model, permissions=permissions, if_match=if_match
        )
        return self._send(call)

    def delete_session(self, session: SessionRef, *, cancel_runs: bool = False) -> None:
        """Deletes a session and its child sessions with all their data. Fails while runs are unfinished, unless
        ``cancel_runs`` is true.
        """
        self._send(_calls.delete_session(session, cancel_runs))

    def close_session(self, session: SessionRef, *, cancel_runs: bool = False) -> Session:
        """Closes a session: it accepts no more runs. Unfinished runs still execute, unless ``cancel_runs`` is true."""
        return self._send(_calls.close_session(session, cancel_runs))

    def cancel_session(
        self, session: SessionRef, *, tree: bool = False, reason: Optional[str] = None
    ) -> CancelledSession:
        """Cancels all unfinished runs, with ``tree`` also those of child sessions. The sessions stay open."""
        return self._send(_calls.cancel_session(session, tree, reason))

    def list_children(
        self, session: SessionRef, *, page_size: Optional[int] = None, page_token: Optional[str] = None
    ) -> Page[Session]:
        """Lists the direct child sessions, oldest first."""
        return self._send(_calls.list_children(session, page_size, page_token))

    def list_messages(
        self, session: SessionRef, *, page_size: Optional[int] = None, page_token: Optional[str] = None
    ) -> Page[Message]:
        """Lists the messages of a session, oldest first."""
        return self._send(_calls.list_messages(session, page_size, page_token))

    def list_runs(
        self,
        session: Optional[SessionRef] = None,
        *,
        states: Optional[Iterable[str]] = None,
        labels: Optional[Mapping[str, str]] = None,
        page_size: Optional[int] = None,
        page_token: Optional[str] = None,
    ) -> Page[Run]:
        """Lists the runs of a session, or of all sessions, newest first.

        ``states`` selects states; a run must have all of ``labels``.
        """
        return self._send(_calls.list_runs(session, states, labels, page_size, page_token))

    def list_queue(
        self, session: SessionRef, *, page_size: Optional[int] = None, page_token: Optional[str] = None
    ) -> Page[Run]:
        """Lists the unfinished runs of a session in execution order."""
        return self._send(_calls.list_queue(session, page_size, page_token))

    def each(self, page: Page[T]) -> Iterator[T]:
        """Iterates over all items from a page on: ``for run in client.each(client.list_runs("s1"))``."""
        while True:
            yield from page
            if page.next_call is None:
                return
            page = self._send(page.next_call)

    # Approvals.

    def list_approvals(
        self,
        *,
        state: Optional[str] = None,
        session: Optional[SessionRef] = None,
        run: Optional[RunRef] = None,
        page_size: Optional[int] = None,
        page_token: Optional[str] = None,
    ) -> Page[Approval]:
        """Lists tool calls that need or needed approval, newest first."""
        return self._send(_calls.list_approvals(state, session, run, page_size, page_token))

    def get_approval(self, approval_id: str) -> Approval:
        """Returns an approval by id."""
        return self._send(_calls.get_approval(approval_id))

    def decide(
        self,
        approval: Union[str, Approval],
        *,
        approve: bool,
        message: Optional[str] = None,
        arguments: Optional[Mapping[str, Any]] = None,
        always: bool = False,
    ) -> Approval:
        """Approves or denies a call. A decision is final. If you pass the ``Approval`` itself, the server rejects the
        decision if the call has changed.
        """
        return self._send(_calls.decide(approval, approve, message, arguments, always))

    # Webhooks.

    def create_webhook(self, target: Target, url: str, *, types: Sequence[str] = ()) -> Webhook:
        """Creates a webhook for the events of a session or a run. Only this response has the ``secret``."""
        return self._send(_calls.create_webhook(target, url, types))

    def get_webhook(self, webhook: Union[str, Webhook]) -> Webhook:
        """Returns a webhook, without its secret."""
        return self._send(_calls.get_webhook(webhook))

    def list_webhooks(
        self,
        session: Optional[SessionRef] = None,
        *,
        page_size: Optional[int] = None,
        page_token: Optional[str] = None,
    ) -> Page[Webhook]:
        """Lists the webhooks of a session, or all webhooks."""
        return self._send(_calls.list_webhooks(session, page_size, page_token))

    def enable_webhook(self, webhook: Union[str, Webhook], *, enabled: bool) -> Webhook:
        """Enables or disables a webhook."""
        return self._send(_calls.enable_webhook(webhook, enabled))

    def delete_webhook(self, webhook: Union[str, Webhook]) -> None:
        """Deletes a webhook and its dead letters."""
        self._send(_calls.delete_webhook(webhook))

    def rotate_webhook_secret(self, webhook: Union[str, Webhook]) -> Webhook:
        """Creates a new ``secret``, which only this response has. For a while deliveries are signed with both."""
        return self._send(_calls.rotate_webhook_secret(webhook))

    def try_webhook(self, webhook: Union[str, Webhook]) -> WebhookTest:
        """Sends a test delivery and returns the response of the receiver."""
        return self._send(_calls.try_webhook(webhook))

    def list_dead_letters(
        self, webhook: Union[str, Webhook], *, page_size: Optional[int] = None, page_token: Optional[str] = None
    ) -> Page[DeadLetter]:
        """Lists events that could not be delivered."""
        return self._send(_calls.list_dead_letters(webhook, page_size, page_token))

    def redeliver(self, webhook: Union[str, Webhook], letter: Union[str, DeadLetter, None] = None) -> int:
        """Delivers one dead letter, or all of them, again. Returns their number."""
        return self._send(_calls.redeliver(webhook, letter))

    # Workspaces, workers and pools.

    def create_workspace(self, name: str, root: str, *, tenant: Optional[str] = None) -> Workspace:
        """Registers a directory of the workers as a workspace. Needs a key with the scope operator, and a tenant.

        A server that requires no keys needs neither.
        """
        return self._send(_calls.create_workspace(name, root, tenant))

    def get_workspace(self, name: str) -> Workspace:
        """Returns a workspace by name."""
        return self._send(_calls.get_workspace(name))

    def list_workspaces(self, *, page_size: Optional[int] = None, page_token: Optional[str] = None) -> Page[Workspace]:
        """Lists workspaces, sorted by name."""
        return self._send(_calls.list_workspaces(page_size, page_token))

    def list_workers(self, *, include_gone: bool = False) -> list[Worker]:
        """Lists the workers. Needs the scope operator, as do the next two methods."""
        return self._send(_calls.list_workers(include_gone))

    def drain_worker(self, worker: Union[str, Worker]) -> Worker:
        """Drains a worker: it claims no more sessions and hands its sessions over."""
        return self._send(_calls.drain_worker(worker))

    def list_pools(self) -> list[Pool]:
        """Lists the pools with their queues."""
        return self._send(_calls.list_pools())

    def server_info(self) -> ServerInfo:
        """Returns the version and the mode of the server."""
        return self._send(_calls.server_info())

    # Sending requests.

    def _send(self, call: Call[T]) -> T:
        retry = self._core.retry()
        while True:
            try:
                return self._once(call)
            except RemudaError as error:
                self._core.raise_if_never_reached(error)
                time.sleep(retry.delay_after(error, repeatable=call.repeatable))

    def _once(self, call: Call[T]) -> T:
        try:
            response = self._http.request(**self._core.request_arguments(call))
        except httpx.TransportError as error:
            raise connection_failed(self._core.endpoint, error) from error
        self._core.answered()
        return call.read(read_response(response))

    def _stream_endpoint(self) -> str:
        if self._core.stream_endpoint is None:
            info = self._once(_calls.server_info())
            self._core.stream_endpoint = self._core.allowed_stream_endpoint(info.stream_endpoint)
        return self._core.stream_endpoint
