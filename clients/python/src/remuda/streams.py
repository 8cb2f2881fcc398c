"""Event streams that reconnect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import Optional

import httpx

from ._call import connection_failed
from ._core import Core, check_stream
from ._following import Following
from .errors import ConnectionFailedError, RemudaError
from .types import Event

_ENDED = "the server ended the event stream"


class EventStream(Iterator[Event]):
    """Events in order, each once. Close the stream if you stop early, preferably with ``with``."""

    _response: Optional[httpx.Response] = None

    def __init__(self, core: Core, http: httpx.Client, following: Following, endpoint: Callable[[], str]) -> None:
        self._core = core
        self._http = http
        self._following = following
        self._endpoint = endpoint
        self._chunks: Iterator[bytes] = iter(())
        self._closed = False

    @property
    def cursor(self) -> int:
        """The cursor of the last durable event returned. Store it to continue with ``follow(…, after=cursor)``."""
        return self._following.cursor

    @property
    def end_reason(self) -> Optional[str]:
        """The reason that the server gave for the end of the stream; ``None`` before the end."""
        return self._following.end_reason

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Event:
        while not self._closed:
            event = self._following.next_event()
            if event is not None:
                return event
            if self._following.done:
                self.close()
                break
            try:
                self._read()
            except RemudaError as error:
                self._disconnect()
                try:
                    self._core.raise_if_never_reached(error)
                    delay = self._following.delay_after(error)
                except RemudaError:
                    self.close()
                    raise
                time.sleep(delay)
        raise StopIteration

    def _read(self) -> None:
        try:
            if self._response is None:
                self._response = self._connect(self._endpoint())
                if self._response.status_code == 204:
                    self._following.nothing_more()
                    return
                self._chunks = self._response.iter_bytes()
                self._following.opened()
            chunk = next(self._chunks, None)
        except httpx.TransportError as error:
            raise connection_failed(self._core.stream_endpoint or self._core.endpoint, error) from error
        if chunk is None:
            raise ConnectionFailedError(_ENDED)
        self._following.feed(chunk)

    def _connect(self, endpoint: str) -> httpx.Response:
        arguments = self._core.stream_arguments(endpoint, self._following.path, self._following.params)
        response = self._http.send(self._http.build_request(**arguments), stream=True)
        self._core.answered()
        try:
            if not response.is_success:
                response.read()
            check_stream(response)
        except BaseException:
            response.close()
            raise
        return response

    def _disconnect(self) -> None:
        response, self._response, self._chunks = self._response, None, iter(())
        if response is not None:
            response.close()

    def close(self) -> None:
        """Closes the stream and its connection."""
        self._closed = True
        self._disconnect()

    def __del__(self) -> None:
        # Without this, a loop that was left early would keep its connection as long as the client lives.
        if self._response is not None:
            self._response.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


class AsyncEventStream(AsyncIterator[Event]):
    """Events in order, each once. Close the stream if you stop early, preferably with ``async with``."""

    def __init__(
        self, core: Core, http: httpx.AsyncClient, following: Following, endpoint: Callable[[], Awaitable[str]]
    ) -> None:
        self._core = core
        self._http = http
        self._following = following
        self._endpoint = endpoint
        self._response: Optional[httpx.Response] = None
        self._chunks: Optional[AsyncIterator[bytes]] = None
        self._closed = False

    @property
    def cursor(self) -> int:
        """The cursor of the last durable event returned. Store it to continue with ``follow(…, after=cursor)``."""
        return self._following.cursor

    @property
    def end_reason(self) -> Optional[str]:
        """The reason that the server gave for the end of the stream; ``None`` before the end."""
        return self._following.end_reason

    def __aiter__(self) -> AsyncEventStream:
        return self

    async def __anext__(self) -> Event:
        while not self._closed:
            event = self._following.next_event()
            if event is not None:
                return event
            if self._following.done:
                await self.close()
                break
            try:
                await self._read()
            except RemudaError as error:
                await self._disconnect()
                try:
                    self._core.raise_if_never_reached(error)
                    delay = self._following.delay_after(error)
                except RemudaError:
                    await self.close()
                    raise
                await asyncio.sleep(delay)
        raise StopAsyncIteration

    async def _read(self) -> None:
        try:
            if self._response is None or self._chunks is None:
                self._response = await self._connect(await self._endpoint())
                if self._response.status_code == 204:
                    self._following.nothing_more()
                    return
                self._chunks = self._response.aiter_bytes()
                self._following.opened()
            chunk = await _next(self._chunks)
        except httpx.TransportError as error:
            raise connection_failed(self._core.stream_endpoint or self._core.endpoint, error) from error
        if chunk is None:
            raise ConnectionFailedError(_ENDED)
        self._following.feed(chunk)

    async def _connect(self, endpoint: str) -> httpx.Response:
        arguments = self._core.stream_arguments(endpoint, self._following.path, self._following.params)
        response = await self._http.send(self._http.build_request(**arguments), stream=True)
        self._core.answered()
        try:
            if not response.is_success:
                await response.aread()
            check_stream(response)
        except BaseException:
            await response.aclose()
            raise
        return response

    async def _disconnect(self) -> None:
        response, self._response, self._chunks = self._response, None, None
        if response is not None:
            await response.aclose()

    async def close(self) -> None:
        """Closes the stream and its connection."""
        self._closed = True
        await self._disconnect()

    async def __aenter__(self) -> AsyncEventStream:
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()


async def _next(chunks: AsyncIterator[bytes]) -> Optional[bytes]:
    # Python 3.9 has no anext().
    async for chunk in chunks:
        return chunk
    return None
