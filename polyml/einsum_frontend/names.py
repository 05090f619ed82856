"""The words of the language, and what a name may look like."""

from __future__ import annotations

import re
from collections.abc import Iterable

from polyml.dtypes import DTYPES
from polyml.ops import FUNCTIONS, REDUCTIONS

__all__ = [
    "CONSTANTS",
    "ISL_KEYWORDS",
    "RESERVED",
    "did_you_mean",
    "fresh_name",
    "is_isl_name",
    "is_tensor_name",
    "looks_like_index",
    "looks_like_size",
    "looks_made",
]

CONSTANTS: dict[str, float] = {"inf": float("inf"), "nan": float("nan"), "pi": 3.141592653589793}
"""Names that are numbers everywhere."""

RESERVED: frozenset[str] = frozenset({*FUNCTIONS, *REDUCTIONS, *DTYPES, *CONSTANTS, "pad", "range", "int"})
"""Names with a meaning of their own, which no program may give another."""

ISL_KEYWORDS: frozenset[str] = frozenset(
    "and or not exists implies min max rat true false let mod floor floord ceil ceild infty infinity nan".split()
)
"""Words that isl's reader takes for itself, in upper case as well (isl_stream.c, `check_keywords`, and isl_input.c)."""

_TENSOR_KEYWORDS = ISL_KEYWORDS | {"True", "False", "NaN"}

_MADE_NAME = re.compile(r"[a-z][0-9]+")
_ISL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


_LONGEST = 200
"""Characters of a name: LLVM cuts off names of a thousand, and what is derived from one is longer than it."""


def is_isl_name(name: str) -> bool:
    """Whether isl reads `name` as an identifier, and it is short enough for what is made of it."""
    return is_tensor_name(name) and name.lower() not in ISL_KEYWORDS


def is_tensor_name(name: str) -> bool:
    """Whether a tensor may have the name, which isl reads in a few places."""
    return len(name) <= _LONGEST and _ISL_NAME.match(name) is not None and name not in _TENSOR_KEYWORDS


def looks_like_index(name: str) -> bool:
    """Whether `name` can be an index: it has letters, all lower-case."""
    return name.islower()


def looks_made(name: str) -> bool:
    """Whether `name` is like the indices that rules and schedules make (`i0`, `e1`): no loop's variable and no size of a graph has such a name, which these indices would hide."""
    return _MADE_NAME.fullmatch(name) is not None


def looks_like_size(name: str) -> bool:
    """Whether `name` can be a symbolic size: it starts with an upper-case letter."""
    return name[:1].isupper()


def fresh_name(base: str, taken: Iterable[str]) -> str:
    """`base` made readable for isl (its start where it is too long), with the first of the suffixes (none), _1, _2, ... that makes it none of `taken`."""
    stem = re.sub(r"[^A-Za-z0-9_]", "_", base[: _LONGEST - 10] if len(base) > _LONGEST else base)
    stem = stem if is_isl_name(stem) and stem == base else f"{stem}_" if stem[:1].isalpha() else f"n{stem}"
    used = frozenset(taken)
    name, count = stem, 0
    while name in used or not is_isl_name(name):
        count += 1
        name = f"{stem}_{count}" if not stem.endswith("_") else f"{stem}{count}"
    return name


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint with the known name closest to `name`, or None. Who mistypes a name has its first letter right: `softmax` is not meant for `max`."""
    import difflib  # for who mistypes

    close = difflib.get_close_matches(name, sorted({k for k in known if k[:1] == name[:1]}), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None
