"""Dataclasses that are quick to define, because each of a hundred ranks on a machine defines them.

`dataclasses` compiles up to six methods of a class, in a millisecond. Here it compiles only the
constructor, and classes share the other methods.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, asdict, field, fields, replace
from typing import TYPE_CHECKING, Any

__all__ = ["MISSING", "asdict", "dataclass", "field", "fields", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, kw_only=False):
        """Return a class as a dataclass, with some arguments of `dataclasses.dataclass`."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq, repr=repr, kw_only=kw_only)
        shared = {"__repr__": _repr} if repr else {}
        if eq:
            shared |= {"__eq__": _equal, "__hash__": _hash if frozen else None}
        if frozen:
            shared |= {"__setattr__": _set_once, "__delattr__": _refuse}
        for name, method in shared.items():
            if name not in vars(cls):
                setattr(cls, name, method)
        # A user's frozen class may inherit from a class that dataclasses takes for a frozen one.
        # For that, it would compile methods: it learns afterwards that a class is frozen.
        parents = [parent for parent in cls.__mro__[1:] if dataclasses.is_dataclass(parent)]
        frozens = [(parent, parent.__dataclass_params__.frozen) for parent in parents]
        for parent in parents:
            parent.__dataclass_params__.frozen = False
        dataclasses.dataclass(cls, eq=False, repr=False, kw_only=kw_only)
        for each, was in (*frozens, (cls, frozen)):
            each.__dataclass_params__.frozen = was
        return cls


def _repr(self: Any) -> str:
    shown = (one.name for one in fields(self) if one.repr)
    inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({inside})"


def _compared(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, one.name) for one in fields(value) if one.compare)


def _equal(self: Any, other: Any) -> Any:
    return _compared(self) == _compared(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _set_once(self: Any, name: str, value: Any) -> None:
    """Let the constructor set a field, and nobody set anything later."""
    if name in self.__dict__ or name not in self.__dataclass_fields__:
        _refuse(self, name)
    object.__setattr__(self, name, value)


def _refuse(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change {name!r} of a {type(self).__name__}")
