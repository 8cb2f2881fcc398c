"""Wraps the asyncio client in the methods of the blocking client, so that one test covers both."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from remuda import AsyncClient, AsyncEventStream


class BlockingStream:
    def __init__(self, loop: asyncio.AbstractEventLoop, stream: AsyncEventStream) -> None:
        self._loop = loop
        self._stream = stream

    def __iter__(self) -> BlockingStream:
        return self

    def __next__(self) -> Any:
        try:
            return self._loop.run_until_complete(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> BlockingStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._stream.close())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class BlockingClient:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._client = AsyncClient(*args, **kwargs)
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name == "follow":
            return lambda *args, **kwargs: BlockingStream(self._loop, method(*args, **kwargs))
        if inspect.isasyncgenfunction(method):
            return lambda *args, **kwargs: iter(self._loop.run_until_complete(_collect(method(*args, **kwargs))))
        if inspect.iscoroutinefunction(method):
            return lambda *args, **kwargs: self._loop.run_until_complete(method(*args, **kwargs))
        return method


async def _collect(items: Any) -> list[Any]:
    return [item async for item in items]
