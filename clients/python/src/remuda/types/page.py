"""Pages of lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Optional, TypeVar

if TYPE_CHECKING:
    from .._call import Call

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list. ``client.each(page)`` iterates over it and all following pages."""

    items: list[T]
    #: ``None`` on the last page.
    next_page_token: Optional[str] = None
    #: The request for the next page.
    next_call: Optional[Call[Page[T]]] = field(default=None, repr=False, compare=False)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)
