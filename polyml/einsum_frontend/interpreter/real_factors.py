"""Products of a complex number and a real one, and quotients by a real one: part by part, so that no infinity meets an imaginary zero that nobody wrote. NumPy's scalars make two complex numbers of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polyml.ops import OPS

__all__ = ["meaning_of"]

Meaning = Callable[..., Any]


def meaning_of(op: str, are_complex: Sequence[bool]) -> Meaning:
    """What `op` does to two numbers of a complex type, of which some are real ones by their type in the program."""
    whole: Meaning = OPS[op].meaning
    match op, tuple(are_complex):
        case ("mul" | "div", (True, False)):
            return lambda z, r: _part_by_part(whole, z, r)
        case ("mul", (False, True)):
            return lambda r, z: _part_by_part(whole, z, r)
        case _:
            return whole


def _part_by_part(meaning: Meaning, z: Any, r: Any) -> Any:
    found: Any = np.empty((), np.asarray(z).dtype)
    found.real, found.imag = meaning(z.real, r.real), meaning(z.imag, r.real)
    return found[()]
