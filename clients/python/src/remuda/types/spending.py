"""What was spent, and how much may be. Money is in millionths of a dollar."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from ._raw import raw_field


@dataclass(frozen=True)
class Usage:
    """Tokens of one or more questions to models."""

    input_tokens: int = 0
    output_tokens: int = 0
    #: Of the input, what came from the provider's cache.
    cached_input_tokens: int = 0
    #: Of the input, what was written to it.
    cache_write_tokens: int = 0
    #: Of the output, what was thought and not said.
    reasoning_tokens: int = 0
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Total(Usage):
    """What was spent in all."""

    model_calls: int = 0
    cost_micros: int = 0


@dataclass(frozen=True)
class Limit:
    """How much may be spent. What is missing has no limit."""

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
    """How much may be spent, and what was."""

    limit: Limit = field(default_factory=Limit)
    spent: Amount = field(default_factory=Amount)
    #: Held for calls that are under way.
    reserved: Amount = field(default_factory=Amount)
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class BudgetSet:
    """A changed budget, and the runs that had waited for it and go on."""

    budget: Budget
    resumed_run_ids: list[str] = field(default_factory=list)
    raw: dict[str, Any] = raw_field()
