"""Which arrays are streamed: large results that are written once and not read again."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.schedule.streams import kept, streamed_arrays, streamed_when_large
from polyml.target import Target

TARGET = Target("x86-64-v4", l2_bytes=64 << 10)
PROGRAMS = {
    "y": ("y[i, j] = 2 * x[i, j]", True),
    "written twice": ("y[i, j] = 2 * x[i, j]\n    y[0, j] = x[1, j]", False),
    "read again": ("y[i, j] = 2 * x[i, j]\n    z[i] = sum[j](y[i, j] * y[j, i])", False),
    "a sum": ("y[i, j] = sum[k](x[i, k] * x[k, j])", False),
    "behind a sum": ("y[i, j] = relu(sum[k](x[i, k] * x[k, j]))", True),
}


def streamed(body: str, size: int, results: str = "y") -> frozenset[str]:
    program = polyml.einsum(f'def f(x: f32["N N"]):\n    {body}\n    return {results}\n', target=TARGET)
    stages = program.lower(np.ones((size, size), "f")).stages
    return frozenset(name for region in stages.regions for name in region.schedule.streamed)


@pytest.mark.parametrize("name", PROGRAMS)
def test_streamed(name: str) -> None:
    body, expected = PROGRAMS[name]
    assert streamed(body, 300, "y, z" if "z[" in body else "y") == (frozenset("y") if expected else frozenset())


def test_what_stays_in_cache_is_not() -> None:
    """Operands and results together, from one call to the next."""
    assert kept(TARGET) == 8 * TARGET.l2_bytes
    assert streamed("y[i, j] = 2 * x[i, j]", 256) == frozenset()
    assert streamed("y[i, j] = 2 * x[i, j]", 257) == frozenset("y")
    assert kept(Target("x86-64-v4", l3_bytes=4 << 20)) == 1 << 20
    assert kept(Target("x86-64-v4", l3_bytes=0)) == 1 << 20


def test_rows_that_are_no_whole_lines_where_vectors_are_parts_of_them() -> None:
    """Short ones leave through the caches, as the lines at both ends of others do."""
    text = 'def f(x: f32["N K"]):\n    m[n] = sum[k](x[n, k])\n    y[n, k] = x[n, k] / m[n]\n    return y\n'
    for name, columns, expected in (
        ("x86-64-v3", 203, False),
        ("x86-64-v3", 208, True),
        ("x86-64-v3", 255, False),
        ("x86-64-v3", 257, True),
        ("x86-64-v4", 203, True),
    ):
        stages = polyml.einsum(text, target=Target(name)).lower(np.ones((9000, columns), np.float32)).stages
        found = any(region.schedule.streamed for region in stages.regions)
        assert found == expected, (name, columns)


def test_elements_side_by_side_are_one_row_with_two_ends() -> None:
    """What is touched is as much as for whole lines, whose size is known or not."""
    target = Target("x86-64-v3", l2_bytes=64 << 10)
    text = 'def f(x: f32["N M"]):\n    y[i, j] = 2 * x[i, j]\n    return y\n'
    for rows, expected in ((256, False), (260, True)):
        (region,) = polyml.einsum(text, target=target).lower(np.ones((rows, 255), "f")).stages.regions
        assert bool(region.schedule.streamed) == expected
    (region,) = polyml.einsum(text, target=target, dynamic=True).lower(np.ones((5, 7), "f")).stages.regions
    assert streamed_when_large(region.scop, target, frozenset("y"), precise=False) == {"y": kept(target) // 2}


def test_what_a_later_region_reads_is_when_it_is_much_larger() -> None:
    program = polyml.einsum('def f(x: f32["N N"]):\n    y[i, j] = 2 * x[i, j]\n    return y\n', target=TARGET)
    for size, expected in ((129, frozenset()), (360, frozenset()), (363, frozenset("y"))):
        (region,) = program.lower(np.ones((size, size), "f")).stages.regions
        assert streamed_arrays(region.scop, TARGET, frozenset(), precise=False)[0] == expected


@pytest.mark.parametrize(("width", "expected"), [(80, True), (83, False), (255, False), (257, True)])
def test_short_rows_that_end_inside_of_lines_are_not_if_a_later_region_reads_them(width: int, expected: bool) -> None:
    text = 'def f(x: f32["N M"]):\n    y[i, j] = pad(x, ((0, 0), (1, 1)))[i, j]\n    return y\n'
    x = np.ones((9 * TARGET.l2_bytes // (4 * width), width - 2), "f")
    (region,) = polyml.einsum(text, target=TARGET).lower(x).stages.regions
    assert (streamed_arrays(region.scop, TARGET, frozenset(), precise=False)[0] == frozenset("y")) == expected
    assert streamed_arrays(region.scop, TARGET, frozenset("y"), precise=False)[0] == frozenset("y")
