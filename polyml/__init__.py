"""polyml: a polyhedral loop optimizer for programs in Einstein notation (see README.md, docs/language.md).

    dense = polyml.einsum('''
    def dense(x: f32["N K"], w: f32["K M"]):
        y[n, m] = relu(x[n, k] * w[k, m])
        return y
    ''')
    y = dense(x, w)                          # compiled at the first call
    dense.lower(x, w).show("loops")          # any stage: graph, dependences, schedule, loops, llvm, asm, ..

`einsum` makes a program of a decorated function or a text, and takes numpy.einsum's form (`einsum_path` is its companion); an `Einsum` is what it makes.
`Options` and `Target` say how, and for which machine. `f32`, `i64`, .. are element types, for annotations. All errors are `PolymlError`s (`errors`).
`polyml.testing` compares programs with a reference interpreter.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from polyml.collection import modules_stay

with modules_stay():
    from polyml import errors
    from polyml.api import Einsum, einsum, einsum_path
    from polyml.dtypes import bf16, boolean, c64, c128, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
    from polyml.errors import PolymlError
    from polyml.options import Options
    from polyml.target import Target

if TYPE_CHECKING:
    from polyml import testing as testing

__all__ = [
    "Einsum",
    "Options",
    "PolymlError",
    "Target",
    "bf16",
    "boolean",
    "c64",
    "c128",
    "einsum",
    "einsum_path",
    "errors",
    "f16",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    """`polyml.testing`, imported when it is asked for: it brings the reference interpreter."""
    if name == "testing":
        return importlib.import_module("polyml.testing")
    raise AttributeError(f"module 'polyml' has no attribute {name!r}")


bool = boolean
"""The language's name of the type, for annotations: `polyml.bool["N"]`."""
