"""The field that every type has for the document it was made from."""

from dataclasses import field
from typing import Any


def raw_field() -> Any:
    """Neither shown nor compared: it says the same again, and what this version does not know."""
    return field(default_factory=dict, repr=False, compare=False)
