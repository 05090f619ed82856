"""Programs in other element types: what was made for f32 and f64, said in half precision or complex numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from polyml.dtypes import DTYPES, DType
from polyml.testing.cases import Argument, Case

__all__ = ["OTHER_TYPES", "retyped"]

OTHER_TYPES: tuple[str, ...] = ("f16", "bf16", "c64", "c128")


def retyped(case: Case, dtype: str) -> Case:
    """The case with every f32 (for c128: every f64) replaced; arrays keep their layout. It may be refused: not every function is defined for complex numbers."""
    kind = DTYPES[dtype]
    old = DTYPES["f64" if dtype == "c128" else "f32"]
    text = re.sub(rf"\b{old}\b", dtype, case.text)
    arguments = tuple(_converted(value, old, kind) for value in case.arguments)
    return replace(case, text=text, arguments=arguments, computed_in=kind)


def _converted(value: Argument, old: DType, new: DType) -> Argument:
    if not isinstance(value, np.ndarray) or value.dtype != old.numpy:
        return value
    steps = tuple(stride // value.itemsize for stride in value.strides)
    reach = [(extent - 1) * step for extent, step in zip(value.shape, steps, strict=True)]
    below = -sum(min(r, 0) for r in reach) if value.size else 0
    room = np.zeros(below + sum(max(r, 0) for r in reach) + 1 if value.size else 1, new.numpy)
    strides = tuple(step * new.itemsize for step in steps)
    made = np.lib.stride_tricks.as_strided(room[below:], value.shape, strides)
    if new.is_complex:  # numbers of small whole parts, which stay exact as long as the real ones do
        turned = value * np.where(np.arange(value.size).reshape(value.shape) % 2, 1j, 1)
        made[...] = turned.astype(new.numpy)
    else:
        made[...] = value.astype(new.numpy)
    return made
