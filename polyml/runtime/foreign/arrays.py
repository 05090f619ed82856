"""Arrays of other libraries (torch, JAX, whatever speaks DLPack): taken as views of their memory, and results given back as the same kind.

A call that has some is made again with NumPy views in their places, so that nothing behind this file knows of them. An updated parameter is updated in the caller's own
memory, and comes back as the caller's own object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polyml.errors import ArgumentError
from polyml.records import dataclass
from polyml.runtime.foreign.dlpack_bf16 import giving, taking

__all__ = ["Kind", "seen", "through_numpy", "viewed"]

Take = Callable[[Any], np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A library's arrays. take: a view of one. give: one that takes over a NumPy array; None: results stay NumPy's."""

    name: str
    take: Take
    give: Callable[[Any], object] | None


_KINDS: dict[type, Kind | None] = dict.fromkeys(
    (np.ndarray, int, float, bool, list, tuple, np.float32, np.float64, np.int64)
)
"""By type; None: NumPy's own affair. At most one entry per class of the process."""


def through_numpy(call: Callable[..., object], args: Sequence[object], keywords: Mapping[str, object]) -> object:
    """`call(*args, **keywords)` by way of NumPy views when an argument is another library's array, else NotImplemented.

    Raises:
        ArgumentError: arrays of two other libraries, or one that has no view: it is on another device, or its element type is unknown to NumPy.
    """
    kind = None
    for value in (*args, *_flat(keywords)) if keywords else args:
        found = _kind_of(value)
        if found is not None and found is not kind:
            if kind is not None and kind.name != found.name:
                raise ArgumentError(
                    f"the arguments are arrays of {' and '.join(sorted((kind.name, found.name)))}",
                    hint="convert them to one kind: results come back as it",
                )
            kind = found
    if kind is None:
        return NotImplemented
    views = [viewed(value) for value in args]
    owners = [*zip(views, args, strict=True)]
    if not keywords:
        return _given(call(*views), kind, owners)
    named: dict[str, object] = {}
    for name, value in keywords.items():
        items = value if isinstance(value, tuple) else (value,)
        seen = tuple(map(viewed, items))
        owners += zip(seen, items, strict=True)
        named[name] = seen if isinstance(value, tuple) else seen[0]
    return _given(call(*views, **named), kind, owners)


def seen(value: object) -> np.ndarray[Any, Any]:
    """A number, list or array of the host as a NumPy array: a view where there is memory to view.

    Raises:
        ArgumentError: another library's array that has no view.
    """
    return np.asarray(viewed(value))


def viewed(value: object) -> object:
    """A NumPy view of another library's array; anything else as it is.

    Raises:
        ArgumentError: it has no view.
    """
    kind = _kind_of(value)
    if kind is None:
        return value
    try:
        return kind.take(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"NumPy cannot look into this {kind.name} array: {error}",
            hint="it must be in the CPU's memory, without pending gradients, and of an element type that NumPy has",
        ) from None


def _given(result: object, kind: Kind, owners: Sequence[tuple[object, object]]) -> object:
    """The caller's own object where the result is the view of it, else a new array of the kind."""
    if isinstance(result, tuple):
        return tuple([_given(item, kind, owners) for item in result])
    for view, owner in owners:
        if view is result:
            return owner
    if kind.give is None or not isinstance(result, np.ndarray | np.generic):
        return result
    return kind.give(np.asarray(result))


def _flat(keywords: Mapping[str, object]) -> Sequence[object]:
    values: list[object] = []
    for value in keywords.values():
        values += value if isinstance(value, tuple) else (value,)
    return values


def _kind_of(value: object) -> Kind | None:
    try:
        return _KINDS[type(value)]
    except KeyError:
        return _KINDS.setdefault(type(value), _find(value))


def _find(value: Any) -> Kind | None:
    own: Any = type(value)
    if issubclass(own, np.ndarray | np.generic) or not hasattr(own, "__dlpack__"):
        return None
    view = taking(np.from_dlpack)
    if hasattr(own, "__array_namespace__"):
        space = own.__array_namespace__(value)
        made = getattr(space, "from_dlpack", None)
        return Kind(getattr(space, "__name__", own.__name__), view, None if made is None else giving(made, made))
    for base in own.__mro__:
        name = base.__module__.partition(".")[0]
        module: Any = sys.modules.get(name)
        if name == "torch" and module is not None:  # the same views as by DLPack, in a fourth of the time
            return Kind(name, taking(own.numpy), giving(module.from_numpy, module.from_dlpack))
        if name != "__main__" and hasattr(module, "from_dlpack"):
            return Kind(name, view, giving(module.from_dlpack, module.from_dlpack))
    return Kind(own.__name__, view, None)
