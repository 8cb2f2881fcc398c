"""The field ``raw``, which contains the original document."""

from dataclasses import field
from typing import Any


def raw_field() -> Any:
    """Excluded from repr and comparison, because it repeats the other fields."""
    return field(default_factory=dict, repr=False, compare=False)
