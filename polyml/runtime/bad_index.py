"""Which element of an index tensor is out of bounds: asked once a kernel has found one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polyml.errors import SubscriptError
from polyml.runtime.arguments import Prepared
from polyml.runtime.signature import KernelSignature

__all__ = ["bad_index"]


def bad_index(
    signature: KernelSignature, check: int, arguments: Sequence[Prepared], sizes: Mapping[str, int]
) -> SubscriptError:
    """The error of the check with that number, from 0, with the first bad element where an argument has it."""
    message = signature.checks[check]
    known = signature.indices[check] if check < len(signature.indices) else None
    given = {p.name: a.value for p, a in zip(signature.parameters, arguments, strict=True)}
    if known is None or known[0] not in given:
        return SubscriptError(message)
    name, extent = known[0], known[1].evaluate(sizes)
    values = np.asarray(given[name])
    bad = np.argwhere((values < 0) | (values >= extent))
    if not len(bad):
        return SubscriptError(message)
    value = values[tuple(bad[0])]
    place = f"[{', '.join(map(str, bad[0]))}]" if values.ndim else ""
    first, *excerpt = message.split("\n")
    hint = [f"hint: indices count from 0 to {extent - 1}, and none from the end"] if value < 0 else []
    size = "" if known[1].is_constant else f", and {known[1]} is {extent}"
    return SubscriptError("\n".join([f"{first}: {name}{place} is {value}{size}", *excerpt, *hint]))
