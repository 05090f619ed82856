"""Testing einsum programs, polyml's own and users' (docs/testing.md): `verify` (any program against the reference interpreter), `assert_close` (tolerances by
reduction length) and `strategies` (Hypothesis; the `test` extra)."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from polyml.testing.compare import assert_close
from polyml.testing.verify import Report, Worst, verify

if TYPE_CHECKING:
    from polyml.testing import strategies as strategies

__all__ = ["Report", "Worst", "assert_close", "verify"]


def __getattr__(name: str) -> ModuleType:
    """`polyml.testing.strategies`, imported when it is asked for: it needs Hypothesis."""
    if name == "strategies":
        return importlib.import_module("polyml.testing.strategies")
    raise AttributeError(f"module 'polyml.testing' has no attribute {name!r}")
