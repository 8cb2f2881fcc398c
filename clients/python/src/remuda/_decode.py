"""Converts between JSON and the types of this package.

Unknown fields are ignored and stay available in ``raw``. A missing required field or a wrong type is reported with its
path.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from .errors import ProtocolError

T = TypeVar("T")
_Decoder = Callable[[str, Any], Any]
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)")


def decode(kind: type[T], value: object, place: str = "") -> T:
    """Decodes the document ``value`` as a ``kind``."""
    decoder: _Decoder = _decoder(cast(Any, kind))
    decoded: T = decoder(place or kind.__name__.lower(), value)
    return decoded


def decode_time(text: str) -> datetime:
    """Parses an RFC 3339 time. Python 3.9 itself supports neither ``Z`` nor nanoseconds."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("expected an RFC 3339 time")
    date, clock, fraction, zone = match.groups()
    zone = "+00:00" if zone in "Zz" else zone
    return datetime.fromisoformat(f"{date}T{clock}.{(fraction or '')[:6]:0<6}{zone}").astimezone(timezone.utc)


def encode(value: Any) -> Any:
    """Encodes ``value`` as JSON, without fields that are ``None``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {name: item for name, item in fields.items() if name != "raw" and item is not None}
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


@lru_cache(maxsize=256)
def _decoder(hint: Any) -> _Decoder:
    origin = get_origin(hint)
    if origin is Union:
        (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
        decode_inner = _decoder(inner)
        return lambda place, value: None if value is None else decode_inner(place, value)
    if origin is list:
        decode_item = _decoder(get_args(hint)[0])
        return lambda place, value: [
            decode_item(f"{place}[{index}]", item) for index, item in enumerate(_expect(list, place, value))
        ]
    if origin is dict:
        decode_value = _decoder(get_args(hint)[1])
        return lambda place, value: {
            key: decode_value(f"{place}.{key}", item) for key, item in _expect(dict, place, value).items()
        }
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _object_decoder(hint)
    if hint is datetime:
        return lambda place, value: _converted(decode_time, place, _expect(str, place, value))
    if hint is Any:
        return lambda place, value: value
    return lambda place, value: _expect(hint, place, value)


def _object_decoder(kind: type[Any]) -> _Decoder:
    hints = get_type_hints(kind, vars(sys.modules[kind.__module__]))
    fields = [
        (field.name, _decoder(hints[field.name]), _is_required(field))
        for field in dataclasses.fields(kind)
        if field.name != "raw" and field.init
    ]

    def decode_object(place: str, value: Any) -> Any:
        document = _expect(dict, place, value)
        given: dict[str, Any] = {"raw": document}
        for name, decode_field, required in fields:
            item = document.get(name)
            if item is not None:
                given[name] = decode_field(f"{place}.{name}", item)
            elif required:
                raise ProtocolError(f"{place}.{name} is missing in the server's response")
        return kind(**given)

    return decode_object


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _expect(kind: Any, place: str, value: Any) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        found = "a JSON object" if isinstance(value, Mapping) else type(value).__name__
        raise ProtocolError(f"{place} in the server's response: expected {kind.__name__}, found {found}")
    return value


def _converted(convert: Callable[[Any], Any], place: str, value: Any) -> Any:
    try:
        return convert(value)
    except ValueError as error:
        raise ProtocolError(f"{place} in the server's response: {error}") from error
