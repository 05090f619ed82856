"""Names of a program that C cannot take as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from polyml.codegen.loops import Allocate, For, Function
from polyml.codegen.rewrite import walk_nodes

__all__ = ["RESERVED", "Names", "words_of"]

_KEYWORDS = """auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return
short signed sizeof static struct switch typedef union unsigned void volatile while _Bool _Complex _Imaginary asm typeof bool true false""".split()
_LIBRARY = """abort aligned_alloc ceil ceilf copysign copysignf cos cosf erf erff exp expf fabs fabsf floor floorf fmod fmodf free int8_t int16_t
int32_t int64_t uint8_t uint16_t uint32_t uint64_t isfinite isinf isnan log logf malloc main memcpy memset pow powf rint rintf sin sinf size_t sqrt
atan2 atan2f log1p log1pf sqrtf tanh tanhf INFINITY NAN NULL M_PI status candidate winner linux unix""".split()
_PIPELINE = ("row_progress", "new_rows", "done_to", "wait_until_beyond", "begin_stage", "end_row", "sched_yield")

RESERVED = frozenset((*_KEYWORDS, *_LIBRARY, *_PIPELINE))


class Names:
    """C names of one function's variables and loops: their own, with underscores behind where C, its library or another variable has it."""

    def __init__(self, function: Function, taken: Iterable[str] = ()) -> None:
        nodes = list(walk_nodes(function.body))
        arrays = [v.name for v in function.arguments] + [n.variable.name for n in nodes if isinstance(n, Allocate)]
        loops = [n.variable for n in nodes if isinstance(n, For)]
        self._taken = RESERVED | set(taken)
        self._arrays: Mapping[str, str] = dict(self._renamed(arrays))
        self._loops: Mapping[str, str] = dict(self._renamed((*function.sizes, *loops)))

    def _renamed(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Pairs of old and new; names that are new to C are taken afterwards."""
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            new = name
            while new in self._taken or (new != name and new in wanted):
                new += "_"
            self._taken |= {new}
            yield name, new

    def array(self, name: str) -> str:
        """Of a piece of storage."""
        return self._arrays[name]

    def integer(self, name: str) -> str:
        """Of a loop's variable or a size."""
        return self._loops[name]


def words_of(text: str) -> set[str]:
    """The names and numbers in a C text."""
    return set(re.findall(r"\w+", text))
