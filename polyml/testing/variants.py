"""Ways to compile one program, none of which may change what it computes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import polyml
from polyml.errors import PolymlError
from polyml.records import dataclass
from polyml.target import Target
from polyml.testing.cases import Case

__all__ = ["PLAIN", "VARIANTS", "Trial", "Variant"]


@dataclass(frozen=True, slots=True)
class Variant:
    """options: of polyml.Options. kept: the kernel comes from a cache on disk, where another program of the same text has left it."""

    options: Mapping[str, Any]
    kept: bool = False

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"compiled with {options or 'no options'}{', from the cache' if self.kept else ''}"

    def run(self, case: Case) -> tuple[Any, tuple[Any, ...]] | None:
        """The results, and the arguments as they are afterwards; None: the program has no such form (no kernel for any sizes)."""
        arguments = case.fresh_arguments()
        try:
            with _cache(self.kept):
                for _ in range(self.kept):
                    polyml.einsum(case.text, **self.options)(*case.fresh_arguments())
                return polyml.einsum(case.text, **self.options)(*arguments), arguments
        except PolymlError as fault:
            if self.options.get("dynamic") and "cannot be compiled for any" in str(fault):
                return None
            raise


@contextmanager
def _cache(kept: bool) -> Iterator[None]:
    """A cache of its own for a while, or what the environment says."""
    if not kept:
        yield
        return
    before = os.environ.get("POLYML_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["POLYML_CACHE"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["POLYML_CACHE"]
            else:
                os.environ["POLYML_CACHE"] = before


@dataclass(frozen=True)
class Trial:
    """A program, and how it is compiled."""

    case: Case
    variant: Variant

    def __repr__(self) -> str:
        return f"{self.case!r}\n{self.variant!r}"


PLAIN = Variant({"scheduler": "written", "fusion": False, "tile_sizes": (), "vectorize": False, "parallel": False})
"""Loops as they are written: an oracle for what is too large for the interpreter."""

_SMALL = Target("host", l1_bytes=1024, l2_bytes=8 * 1024, cores=3)
"""This machine with caches so small that blocks appear at test sizes."""

_HAS_AVX512 = Target.host().architecture == "x86_64" and Target.host().vector_bytes == 64

VARIANTS = (
    Variant({}),
    Variant({"dynamic": True}),
    Variant({"dynamic": True}, kept=True),
    Variant({}, kept=True),
    Variant({"threads": 3}),
    Variant({"threads": 3, "target": _SMALL}),
    Variant({"threads": 2, "target": _SMALL, "dynamic": True}),
    *(
        [Variant({"target": Target("x86-64-v3")}), Variant({"target": Target("x86-64-v4", split_vectors=True)})]
        if _HAS_AVX512
        else []
    ),
    Variant({"precise": True}),
    Variant({"scheduler": "isl", "verify": True}),
    Variant({"tile_sizes": (8, 16, 8), "register_tile": (2, 16)}),
    PLAIN,
)
