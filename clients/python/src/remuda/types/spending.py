"""Spending and budgets. Money is in millionths of a dollar."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from ._raw import raw_field


@dataclass(frozen=True)
class Usage:
    """Tokens of one or more model calls."""

    input_tokens: int = 0
    output_tokens: int = 0
    #: Input tokens read from the provider's cache.
    cached_input_tokens: int = 0
    #: Input tokens written to the cache.
    cache_write_tokens: int = 0
    #: Output tokens of reasoning.
    reasoning_tokens: int = 0
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Total(Usage):
    """Total spending."""

    model_calls: int = 0
    cost_micros: int = 0


@dataclass(frozen=True)
class Limit:
    """A limit of spending. A missing field means no limit."""

    tokens: Optional[int] = None
    micros: Optional[int] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Amount:
    """Tokens and money."""

    tokens: int = 0
    micros: int = 0
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Budget:
    """A limit and the spending so far."""

    limit: Limit = field(default_factory=Limit)
    spent: Amount = field(default_factory=Amount)
    #: Reserved for running model calls.
    reserved: Amount = field(default_factory=Amount)
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class BudgetSet:
    """The new budget, and the runs that waited for it and resume."""

    budget: Budget
    resumed_run_ids: list[str] = field(default_factory=list)
    raw: dict[str, Any] = raw_field()
