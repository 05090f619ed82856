"""polyml: a polyhedral loop optimizer for programs in Einstein notation (see README.md, docs/language.md)."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

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
