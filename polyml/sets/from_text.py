"""Sets and maps read from their text once: isl takes longer to read a text than for most of what is asked of the set, and terms of a statement, rules and scops name the same ones again and again.

They are values, so that one may stand for all; what isl finds out about a set, such as a point that it has, it keeps with it.
"""

from __future__ import annotations

from functools import lru_cache

import islpy as isl

__all__ = ["map_of", "set_of"]


@lru_cache(maxsize=512)
def set_of(text: str) -> isl.Set:
    """The set with this text."""
    return isl.Set(text)


@lru_cache(maxsize=512)
def map_of(text: str) -> isl.Map:
    """The map with this text."""
    return isl.Map(text)
