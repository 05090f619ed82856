"""`out=` for several results in the emitted entry point: a plain tuple of arrays, which are filled and given back."""

import gc
import sys
from collections import namedtuple
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import polyml
from polyml.dtypes import boolean
from polyml.errors import ArgumentError, SubscriptError
from polyml.runtime.entry import checks
from polyml.runtime.kernel import Kernel
from tests.runtime.entry.test_entry import Missed, only
from tests.runtime.handmade import array, buffer, copy_region, function, make_kernel, result

Pair = namedtuple("Pair", "first second")
NAMES = "opq"


def copies_kernel(count: int) -> Kernel:
    """o, p, q = x, y, x, as many of them as asked for; returned from the last to the first."""
    names, sources = NAMES[:count], "xyx"
    return make_kernel(
        [array("x", 8), array("y", 8)], [result(name, 8) for name in names], copy_region("f", 4, 8),
        [function("f", (source, name)) for source, name in zip(sources, names, strict=False)], returned=names[::-1],
    )  # fmt: skip


@pytest.fixture(scope="module", params=[2, 3])
def copies(request: pytest.FixtureRequest) -> Kernel:
    return copies_kernel(request.param)


@pytest.fixture
def operands() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(8, dtype=np.float32), np.arange(8, 16, dtype=np.float32)


def outs_for(kernel: Kernel) -> list[np.ndarray]:
    return [np.full(8, -1, np.float32) for _ in kernel.signature.results]


def test_each_is_filled_and_given_back(copies: Kernel, operands: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = operands
    memory = np.full(64, -1, np.float32)
    count = len(copies.signature.results)
    outs = tuple(memory[4 + 8 * k :][:8] for k in range(count))  # side by side
    made = only(copies)(x, y, out=outs)
    assert type(made) is tuple
    assert all(a is b for a, b in zip(made, outs[::-1], strict=True))
    for out, source in zip(outs, (x, y, x), strict=False):
        np.testing.assert_array_equal(out, source)
    assert (memory[:4] == -1).all()
    assert (memory[4 + 8 * count :] == -1).all()
    for fresh, wanted in zip(only(copies)(x, y), outs[::-1], strict=True):  # the same without it, in new memory
        assert not np.shares_memory(fresh, memory)
        np.testing.assert_array_equal(fresh, wanted)


def test_unusual_ones_go_to_the_slow_path(copies: Kernel, operands: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = operands
    good = outs_for(copies)
    frozen, memory = np.empty(8, np.float32), np.empty(24, np.float32)
    frozen.flags.writeable = False
    misaligned = np.zeros(33, np.uint8)[1:].view(np.float32)
    bad: list[object] = [
        None, 1.0, np.empty(4, np.float32), np.empty(8), np.empty(8, ">f4"), np.empty((1, 8), np.float32), memory[:16:2], memory[7::-1], frozen, misaligned,
        good[0].tolist(), good[0].view(np.recarray), np.ma.masked_array(good[0]), x, y, x[:], (good[0],),
    ]  # fmt: skip
    unfit: list[object] = [None, good[0], good, tuple(good[1:]), (*good, memory[:8]), (), 2, "out"]
    for k in range(len(good)):  # one that does not fit among those that do
        unfit += [(*good[:k], wrong, *good[k + 1 :]) for wrong in bad]
    for k, j in [(0, 1), (1, 0), (len(good) - 1, 0)]:  # one element in common, or all
        for first, second in ((memory[:8], memory[7:15]), (memory[:8], memory[:8])):
            meeting = list(good)
            meeting[k], meeting[j] = first, second
            unfit.append(tuple(meeting))
    if len(good) == 2:
        unfit.append(Pair(*good))
    entry = only(copies)
    watched = [*good, x, y, frozen, memory]
    before = [sys.getrefcount(thing) for thing in watched]
    for out in unfit:
        with pytest.raises(Missed):
            entry(x, y, out=out)
    with pytest.raises(Missed):
        entry(x, y, out=tuple(good), axis=1)
    del out
    gc.collect()
    assert [sys.getrefcount(thing) for thing in watched] == before
    assert all((out == -1).all() for out in good)  # nothing was written
    entry(x, y, out=tuple(good))


def test_the_memory_of_an_argument_beside_an_out(copies: Kernel) -> None:
    memory, outs = np.zeros(64, np.float32), outs_for(copies)
    entry, y = only(copies), np.ones(8, np.float32)
    for k in range(len(outs)):
        places = tuple(memory[16:24] if j == k else out for j, out in enumerate(outs))
        for start in (8, 24):
            entry(memory[start:][:8], y, out=places)
            entry(y, memory[start:][:8], out=places)
        for start in (9, 16, 23):
            with pytest.raises(Missed):
                entry(memory[start:][:8], y, out=places)
            with pytest.raises(Missed):
                entry(y, memory[start:][:8], out=places)


def test_references_balance(copies: Kernel, operands: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = operands
    outs = tuple(outs_for(copies))
    entry = only(copies)
    watched: list[object] = [x, y, outs, *outs, np.dtype(np.float32), tuple, entry]

    def calls(count: int) -> None:
        for _ in range(count):
            entry(x, y, out=outs)
            entry(x, y)
            ours = sys.getrefcount(entry(x, y, out=tuple(outs_for(copies)))[0])
            numpys = sys.getrefcount(np.zeros(8))  # not in the assertion, of which pytest keeps parts
            assert ours == numpys, "the call keeps none"

    calls(10)
    gc.collect()
    before, blocks = [sys.getrefcount(thing) for thing in watched], sys.getallocatedblocks()
    calls(5000)
    gc.collect()
    assert [sys.getrefcount(thing) for thing in watched] == before
    assert sys.getallocatedblocks() - blocks < 100


def test_a_failed_check_gives_the_references_back() -> None:
    regions = copy_region("look", 1) + copy_region("f", 4, 8)
    kernel = make_kernel(
        [array("flag", dtype=boolean), array("x", 8)], [result("o", 8), result("p", 8)], regions,
        [function("look", ("flag", "t")), function("f", ("x", "o")), function("f", ("x", "p"))],
        temporaries=[buffer("t", dtype=boolean)], checks=[("t", "index out of range")],
    )  # fmt: skip
    entry, x, outs = only(kernel), np.arange(8, dtype=np.float32), tuple(np.zeros(8, np.float32) for _ in range(2))
    before = [sys.getrefcount(thing) for thing in (outs, *outs)]
    for _ in range(5):
        with pytest.raises(SubscriptError, match="index out of range"):
            entry(np.array(True), x, out=outs)
    assert [sys.getrefcount(thing) for thing in (outs, *outs)] == before
    assert not any(out.any() for out in outs)
    entry(np.array(False), x, out=outs)
    assert all((out == x).all() for out in outs)


# -- programs -----------------------------------------------------------------------------------------------------------------------

TEXT = """def f(x: f32["N M"], s: f32):
    y[n, m] = s * x[n, m]
    z[n] = sum[m](x[n, m])
    w[m, n] = x[n, m] > 0
    return y, z, w
"""

Call = Callable[..., Sequence[np.ndarray]]


@pytest.mark.parametrize("options", [{}, {"threads": 2}, {"threads": 1}, {"dynamic": True}], ids=str)
@pytest.mark.few(2)
def test_programs(options: dict[str, object]) -> None:
    """Of any shape, of other types and ranks, and with arrays without elements."""
    program = polyml.einsum(TEXT, **options)
    for n, m in ((5, 7), (1, 3), (300, 257), (0, 4), (4, 0)):
        x = np.random.default_rng(n).standard_normal((n, m)).astype(np.float32)
        wanted = program(x, 2)
        outs = np.full((n, m), 7, np.float32), np.full(n, 7, np.float32), np.full((m, n), True)
        for _ in range(2):  # by way of Python, which compiles, and of the entry point
            made = program(x, 2, out=outs)
            assert all(a is b for a, b in zip(made, outs, strict=True))
            for out, expected in zip(outs, wanted, strict=True):
                np.testing.assert_array_equal(out, expected)
        if x.size:
            only(program.kernel_for(x, 2))(x, 2, out=outs)  # not by way of Python
        np.testing.assert_array_equal(outs[0], 2 * x)
        np.testing.assert_allclose(outs[1], x.sum(1, dtype=np.float64), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(outs[2], x.T > 0)


def test_the_slow_path_takes_what_the_entry_point_leaves() -> None:
    program: Call = polyml.einsum(
        'def f(x: f32["N M"]):\n    y[n, m] = 2 * x[m, n]\n    z[n, m] = x[n, m] + 1\n    return y, z\n'
    )
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    turned, more = 2 * x.T, x + 1
    program(x)
    wide = np.zeros((4, 8), np.float32)
    same = x.copy()
    for given, outs in (
        (x, Pair(np.empty_like(x), np.empty_like(x))),
        (x, (wide[:, ::2], wide[:, 1::2])),
        (x, (np.empty((4, 4), ">f4"), np.empty((4, 4), np.float32, order="F"))),
        (same, (np.empty_like(x), same)),  # as if nothing overlapped
        (x, (np.empty_like(x).view(np.recarray), np.empty_like(x))),
    ):
        made = program(given, out=outs)
        assert all(a is b for a, b in zip(made, outs, strict=True))
        np.testing.assert_array_equal(outs[0], turned)
        np.testing.assert_array_equal(outs[1], more)
    good, frozen = np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32)
    frozen.flags.writeable = False
    for outs, message in (
        ((good, None), r"^out= for z must be an array of f32 \(4, 4\), and is NoneType"),
        ((good, np.empty((4, 4))), r"^out= for z must be an array of f32 \(4, 4\), and is f64 \(4, 4\)"),
        ((good[:3], good), r"^out= for y must be an array of f32 \(4, 4\), and is f32 \(3, 4\)"),
        ((good, frozen), "^out= for z is read-only"),
        ((good, good), "^out= for z shares memory with that for y"),
        ((good,), "^out= has 1 array, and f has 2 new results"),
        ([good, good.copy()], "^out= has 1 array, and f has 2 new results"),
        ((good, good.copy(), good.copy()), "^out= has 3 arrays, and f has 2 new results"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            program(x, out=outs)
    assert not good.any()


def test_results_of_rank_0_beside_others() -> None:
    """A 0-d array takes the number, and comes back as it is."""
    program: Call = polyml.einsum('def f(x: f32["N"]):\n    y[n] = 2 * x[n]\n    s = sum[n](x[n])\n    return y, s\n')
    x = np.arange(5, dtype=np.float32)
    outs = np.empty(5, np.float32), np.empty((), np.float32)
    entry = only(program.kernel_for(x))
    for call in (program, entry, entry):
        outs[1][...] = np.nan
        made = call(x, out=outs)
        assert made[0] is outs[0]
        assert made[1] is outs[1]
        assert outs[1] == 10
    for call in (program, entry):
        assert type(call(x)[1]) is np.float32
    for number in (np.float32(0), np.zeros(1, np.float32), np.zeros(()), x[3:4].reshape(())):  # the last is in x
        with pytest.raises(Missed):
            entry(x, out=(outs[0], number))
    for made in (program(x, out=(outs[0], last := x[4:].reshape(()))), program(x - x, out=outs)):  # as if nothing met
        assert type(made[1]) is np.ndarray
    assert last == 10
    assert outs[1] == 0


def test_one_result_of_rank_0() -> None:
    program = polyml.einsum('def f(x: f64["N"], a: f64):\n    s = sum[n](a * x[n])\n    return s\n')
    x, out = np.arange(4.0), np.zeros(())
    entry = only(program.kernel_for(x, 2))
    assert entry(x, 2, out=out) is out
    assert out == 12
    assert type(entry(x, 2)) is np.float64
    watched = [out, x, np.dtype(np.float64)]
    before = [sys.getrefcount(thing) for thing in watched]
    for _ in range(1000):
        entry(x, 2, out=out)
        entry(x, 2)
    assert [sys.getrefcount(thing) for thing in watched] == before


def test_many_are_given_to_the_slow_path() -> None:
    """The text of an entry point does not grow with the pairs of results."""
    lines = "\n".join(f"    y{k}[i] = x[i] + {k}" for k in range(20))
    f = polyml.einsum(f'def f(x: f32["N"]):\n{lines}\n    return {", ".join(f"y{k}" for k in range(20))}\n')
    x = np.arange(5, dtype=np.float32)
    outs = tuple(np.empty(5, np.float32) for _ in range(20))
    made = f(x, out=outs)
    assert all(a is b for a, b in zip(made, outs, strict=True))
    for k, out in enumerate(outs):
        np.testing.assert_array_equal(out, x + k)
    with pytest.raises(ArgumentError):
        f(x, out=(*outs[:-1], outs[0]))
    (kernel,) = f.kernels
    assert len(kernel.signature.results) > checks.MOST_OUTS
