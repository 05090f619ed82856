"""Panels of constants that are used a few times only: while one block's are multiplied with, the next block's come into L2, a line at a time.

Panels that are packed in a call are near when they are read. Those of constant arguments lie in memory: a convolution over 7 x 7 points reads 9 MB of weights once, and uses each element 49 times,
in seven register tiles, of which the first waits for the last cache. A block that is used more often has a smaller share of that, and more loads of its own.

Source: Georganas et al., "Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures" (SC 2018), section II-F, on prefetching the next tile's weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node, Place, Prefetch, Variable
from polyml.codegen.prefetch.dealt_lines import dealt_out, levels_of
from polyml.codegen.prefetch.inner_loops import inner_loops, put_first
from polyml.expressions import reads_of
from polyml.sets.affine import Affine, affine
from polyml.sets.shapes import element_count

__all__ = ["prefetch_panels"]

MOST_STEPS = 16
"""Steps of the sums for each line of a block, at most: with more the block is used so often that its first use does not matter."""


def prefetch_panels(function: Function, panels: Mapping[str, int], *, l2_bytes: int, line_bytes: int) -> Function:
    """The function with the next block of each of these arguments fetched from inside the sums that read one.

    Args:
        panels: names, and how many of the first dimensions count blocks.

    Rewrite:
        for (o = 0; o < 512; o += 32) for (p = 0; p < 7; p++) for (k = 0; k < 512; k++) for (s = 0; s < 9; s++) t += x[k, p + s] * w[o//32, k, s, ..];
        -> for (o ..) for (p ..) for (k ..) { prefetch w[o//32 + 1, 0, 0, 32*(512*p + k)]; for (s ..) .. }

    With more steps than lines (14 x 14 points, seven steps a line), that many ask for the same one: w[o//32 + 1, 0, 16*(k//7 + 147*p)].
    """
    arrays = {v.name: v for v in function.arguments if panels.get(v.name)}
    arrays = {name: v for name, v in arrays.items() if v.dtype.itemsize * element_count(v.shape) > l2_bytes // 2}
    if not arrays:
        return function
    wanted: dict[int, tuple[Node, ...]] = {}
    for path in inner_loops(function.body):
        found = _fetch(path, arrays, panels, line_bytes)
        if found is not None:
            loop, places = found
            wanted.setdefault(id(loop), tuple(Prefetch(place, 2) for place in places))
    return replace(function, body=put_first(function.body, wanted)) if wanted else function


def _fetch(
    path: tuple[For, ...], arrays: Mapping[str, Variable], panels: Mapping[str, int], line_bytes: int
) -> tuple[For, list[Place]] | None:
    """The loop in which lines of the next block are asked for, and their places; None where that does not pay, or no loop knows how many."""
    reads = {read.tensor: read for node in path[-1].body if isinstance(node, Assign) for read in reads_of(node.value)}
    read = next((read for name, read in reads.items() if name in arrays), None)
    if read is None:
        return None
    panel, blocks = arrays[read.tensor], panels[read.tensor]
    counted = [s for s in read.subscripts[:blocks] if isinstance(s, Affine)]
    names = [loop.variable for loop in path]
    outside = [names.index(v) for s in counted for v in s.variables() if v in names]
    if not outside or len(counted) < blocks:
        return None
    size = element_count(panel.shape[blocks:])
    line = line_bytes // panel.dtype.itemsize
    levels = levels_of(path, max(outside) + 1)
    lines = size // line
    if not levels or levels[-1].steps > MOST_STEPS * lines:
        return None
    asked = dealt_out(levels, lines)
    if asked is None:
        return None
    loop, places = asked
    next_block = (*counted[:-1], counted[-1] + 1, *((affine(0),) * (len(panel.shape) - blocks - 1)))
    return loop, [Place(panel.name, (*next_block, at * line)) for at in places]
