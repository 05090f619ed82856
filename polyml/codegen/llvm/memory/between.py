"""Vectors whose lanes lie between each other in memory, put apart and together: lane v of the k-th of `count` vectors is element count*v + k of a row.

By halves, as long as the number of vectors is even: one shuffle of two vectors for each vector and halving. An odd number has no factor in common with the number of lanes. So lane j of the loaded vectors
has one element of each of those wanted, only in another vector for each j: the vectors are rotated among themselves, lane by lane, a bit of the distance at a time (selections by constant masks, of which
processors execute more than shuffles), and lanes change places within each vector at the end. Nine vectors take 36 selections and nine shuffles instead of 72 shuffles.

Source: Catanzaro, Keller, Garland, "A decomposition for in-place matrix transposition" (PPoPP 2014), section 4: arrays of structures in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyml.codegen.llvm.ir import Builder, Value

__all__ = ["put_apart", "put_between"]


def put_apart(b: Builder, loaded: Sequence[Value]) -> list[Value]:
    """Of vectors that lie side by side the first, the second .. element of each run of so many as there are vectors."""
    count, width = len(loaded), loaded[0].lanes
    if count == 1:
        return list(loaded)
    if count % 2 == 0:
        pairs = list(zip(loaded[0::2], loaded[1::2], strict=True))
        halves = ([b.shuffle(x, range(odd, 2 * width, 2), y) for x, y in pairs] for odd in (0, 1))
        even, odd = (put_apart(b, half) for half in halves)
        return [value for pair in zip(even, odd, strict=True) for value in pair]
    # Number k of the vectors wanted has its element of lane j in vector (k * inverse - distance of j) mod count.
    inverse, distances, backwards, start = _distances(count, width)
    rotated = _rotated(b, loaded, distances, -1 if backwards else 1)
    return [
        b.shuffle(
            rotated[(number * inverse - start) % count], [(lane * count + number) % width for lane in range(width)]
        )
        for number in range(count)
    ]


def put_between(b: Builder, values: Sequence[Value]) -> list[Value]:
    """As many vectors, with the lanes of the first, the second .. value in turn."""
    count, width = len(values), values[0].lanes
    if count == 1:
        return list(values)
    if count % 2 == 0:
        pairs = zip(put_between(b, values[0::2]), put_between(b, values[1::2]), strict=True)
        halves = [range(start, start + width // 2) for start in (0, width // 2)]
        return [
            b.shuffle(x, [k for lane in half for k in (lane, width + lane)], y) for x, y in pairs for half in halves
        ]
    inverse, distances, backwards, start = _distances(count, width)
    ordered: list[Value] = [values[0]] * count
    for number, value in enumerate(values):
        lanes = {(lane * count + number) % width: lane for lane in range(width)}
        ordered[(number * inverse - start) % count] = b.shuffle(value, [lanes[at] for at in range(width)])
    return _rotated(b, ordered, distances, 1 if backwards else -1)


def _distances(count: int, width: int) -> tuple[int, list[int], bool, int]:
    """What a vector's number is multiplied by to count its steps, how far each lane goes, one way or the other, and behind which start: such that the fewest bits are set anywhere."""
    inverse = pow(width, -1, count)
    wanted = [lane * inverse % count for lane in range(width)]
    ways = [
        ([(start - distance if backwards else distance - start) % count for distance in wanted], backwards, start)
        for backwards in (False, True)
        for start in range(count)
    ]
    return (inverse, *min(ways, key=lambda way: max(way[0]).bit_length()))


def _rotated(b: Builder, vectors: Sequence[Value], distances: Sequence[int], direction: int) -> list[Value]:
    """result[k][lane] = vectors[k - direction * distances[lane]][lane], indices modulo the number of vectors."""
    made, count, width = list(vectors), len(vectors), len(distances)
    for bit in range(max(distances).bit_length()):
        order = [width + lane if distance >> bit & 1 else lane for lane, distance in enumerate(distances)]
        made = [b.shuffle(made[k], order, made[(k - direction * (1 << bit)) % count]) for k in range(count)]
    return made
