"""Which items a filter lets through: equal fields, or comparisons such as ``{"score": {"$gte": 3}}``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from inferscale_memory.errors import InvalidInputError

_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
OPERATORS = ("$eq", "$ne", *_ORDERINGS)


def check_filter(wanted: Mapping[str, Any] | None) -> None:
    """Refuse a filter that no item could be compared with.

    Raises:
        InvalidInputError: it is no mapping, or holds an operator that does not exist.
    """
    if wanted is None:
        return
    if not isinstance(wanted, Mapping):
        raise InvalidInputError(f"a filter must be a mapping of fields, got {type(wanted).__name__}.")
    for value in wanted.values():
        _check_value(value)


def matches(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether every field of ``wanted`` agrees with the field of ``value``; a missing field counts as None.

    A plain value must be equal; a mapping is compared key by key and a list element by element; a mapping with
    operators asks for all of them. ``$gt``, ``$gte``, ``$lt`` and ``$lte`` compare as numbers where both sides can be
    read as one, else as texts where both are; anything else does not match.
    """
    return all(_agrees(value.get(name), want) for name, want in (wanted or {}).items())


def _check_value(value: object) -> None:
    if isinstance(value, Mapping):
        if _has_operators(value):
            unknown = [name for name in value if name not in OPERATORS]
            if unknown:
                raise InvalidInputError(f"Unsupported operator: {unknown[0]!r}; want one of {', '.join(OPERATORS)}.")
        else:
            for inner in value.values():
                _check_value(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_value(inner)


def _has_operators(wanted: Mapping[Any, Any]) -> bool:
    return any(isinstance(name, str) and name.startswith("$") for name in wanted)


def _agrees(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        if _has_operators(wanted):
            return all(_compares(found, name, value) for name, value in wanted.items())
        return isinstance(found, Mapping) and all(_agrees(found.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list | tuple):
        return (
            isinstance(found, list | tuple)
            and len(found) == len(wanted)
            and all(_agrees(one, other) for one, other in zip(found, wanted, strict=True))
        )
    return bool(found == wanted)


def _compares(found: Any, name: str, wanted: Any) -> bool:
    if name in ("$eq", "$ne"):
        equal = _plain(found) == _plain(wanted)
        return equal if name == "$eq" else not equal
    ordering = _ORDERINGS[name]
    numbers = _number(found), _number(wanted)
    if None not in numbers:
        return ordering(*numbers)
    return isinstance(found, str) and isinstance(wanted, str) and ordering(found, wanted)


def _plain(value: Any) -> Any:
    """Values as JSON has them: what was put as a tuple came back as a list."""
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
