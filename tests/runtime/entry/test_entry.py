"""The emitted entry point: what it takes, what it leaves to the slow path, references, exceptions, threads."""

import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from polyml.dtypes import DTYPES, boolean, f64, i32, i64
from polyml.errors import SubscriptError
from polyml.runtime.entry.layout import array_header
from polyml.runtime.kernel import Kernel
from polyml.runtime.native import NativeKernel
from polyml.runtime.signature import KernelSignature, ScalarParameter, SizeParameter
from polyml.runtime.support.integer_text import INTEGERS
from tests.runtime.handmade import add_kernel, array, buffer, copy_region, function, make_kernel, result, shape


class Missed(Exception):
    """The entry point left the call to its slow path."""


def only(kernel: Kernel) -> Callable[..., object]:
    """The entry point alone."""

    def slow(*args: object, **keywords: object) -> object:
        raise Missed

    return kernel.entry_before(slow)


@pytest.fixture(scope="module")
def add() -> Kernel:
    return add_kernel()


@pytest.fixture
def operands() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.random((8, 8), np.float32), random.random((8, 8), np.float32)


def test_this_interpreter_has_entry_points() -> None:
    assert array_header() is not None


def test_the_host_function_and_the_entry_point_are_one_object(add: Kernel) -> None:
    """LLVM sets itself up for each; the regions have one of their own."""
    assert isinstance(add, NativeKernel)
    assert len(add.code.compiled.objects) == 2
    assert add.code.entry


def test_result(add: Kernel, operands: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = operands
    made = only(add)(a, b)
    assert isinstance(made, np.ndarray)
    assert (made.dtype, made.shape, made.flags.owndata) == (np.float32, (8, 8), True)
    np.testing.assert_array_equal(made, a + b)


def test_unusual_calls_go_to_the_slow_path(add: Kernel, operands: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = operands
    misaligned = np.frombuffer(b"\0" * 257, np.uint8)[1:].view(np.float32).reshape(8, 8)
    unusual = [
        (), (a,), (a, b, b), (a, None), (a, 1.0), (a, b.tolist()), (a, b.astype(np.float64)), (a, b.astype(np.int32)), (a, b.T), (a, b[:4]),
        (a, b[None]), (a, b.ravel()), (a, b.astype(">f4")), (a, np.zeros((8, 16), np.float32)[:, ::2]), (a, misaligned), (a, b[::-1]),
        (np.ma.masked_array(a), b), (a.view(np.recarray), b), (a, np.zeros((0, 8), np.float32)), (np.float32(1), b),
    ]  # fmt: skip
    entry = only(add)
    for args in unusual:
        with pytest.raises(Missed):
            entry(*args)
    for keywords in ({"b": b}, {"out": b}):
        with pytest.raises(Missed):
            entry(a, **keywords)
    frozen = a.copy()
    frozen.flags.writeable = False
    unfit = [
        None,
        b,
        frozen,
        a[:4],
        np.empty((8, 8)),
        np.empty((8, 8), np.float32, order="F"),
        np.empty((8, 8), np.float32).tolist(),
        (a,),
    ]
    for out in unfit:
        with pytest.raises(Missed):
            entry(a, b, out=out)
    for keywords in ({"axis": b}, {"out": np.empty_like(a), "axis": 1}):
        with pytest.raises(Missed):
            entry(a, b, **keywords)
    np.testing.assert_array_equal(entry(a, b), a + b)


def test_out_is_filled_and_given_back(add: Kernel, operands: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = operands
    entry, memory = only(add), np.zeros(200, np.float32)
    out = memory[100:164].reshape(8, 8)
    before = sys.getrefcount(out)
    for _ in range(5):
        assert entry(a, b, out=out) is out
    assert sys.getrefcount(out) == before
    np.testing.assert_array_equal(out, a + b)
    assert not memory[:100].any()
    assert not memory[164:].any()
    with pytest.raises(Missed):  # one element in common
        entry(a, memory[37:101].reshape(8, 8), out=out)
    assert entry(a, memory[36:100].reshape(8, 8), out=out) is out


def test_the_slow_path_gets_the_arguments_unchanged(add: Kernel, operands: tuple[np.ndarray, np.ndarray]) -> None:
    entry = add.entry_before(lambda *args, **keywords: (args, keywords))
    b = operands[1]
    assert entry() == ((), {})
    args, keywords = entry(1, "x", b, out=b, k=None)
    assert args == (1, "x", b)
    assert keywords == {"out": b, "k": None}


def test_read_only_and_equal_dtype_objects_are_taken(add: Kernel, operands: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = operands
    a.flags.writeable = False
    unpickled = pickle.loads(pickle.dumps(b))
    assert unpickled.dtype is not b.dtype
    np.testing.assert_array_equal(only(add)(a, unpickled), a + b)


def test_strides_of_single_extents_do_not_matter() -> None:
    kernel = copy_kernel_of(1, 8)
    entry = only(kernel)
    data = np.arange(64, dtype=np.float32).reshape(8, 8)
    for view in (data[2:3], data[5:][:1], np.arange(8, dtype=np.float32)[None]):
        np.testing.assert_array_equal(entry(view), view)


def copy_kernel_of(*extents: int, strides: tuple[int, ...] | None = None) -> Kernel:
    """o = x, for 8 elements in a row."""
    return make_kernel(
        [array("x", *extents, strides=strides)],
        [result("o", *extents)],
        copy_region("f", 4, 8),
        [function("f", ("x", "o"))],
    )


def test_other_strides_by_specialization() -> None:
    region = """
define i32 @f(ptr %x, ptr %o) {
  %p = getelementptr float, ptr %x, i64 -3
  %v = load float, ptr %p, align 4
  store float %v, ptr %o, align 4
  ret i32 0
}
"""
    entry = only(
        make_kernel([array("x", 4, 2, strides=(-1, 4))], [result("o", 1)], region, [function("f", ("x", "o"))])
    )
    x = np.arange(8, dtype=np.float32).reshape(2, 4)[:, ::-1].T
    np.testing.assert_array_equal(entry(x), [0])
    for other in (x[::-1], np.ascontiguousarray(x)):
        with pytest.raises(Missed):
            entry(other)


def test_empty_arrays() -> None:
    nothing = "define i32 @f(ptr %x, ptr %o) {\n  ret i32 0\n}\n"
    entry = only(make_kernel([array("x", 0, 3)], [result("o", 3, 0)], nothing, [function("f", ("x", "o"))]))
    made = entry(np.zeros((6, 0), np.float32).T[:, ::2])
    assert isinstance(made, np.ndarray)
    assert made.shape == (3, 0)


# -- numbers -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
def test_scalars_are_converted(name: str) -> None:
    dtype = DTYPES[name]
    kernel = make_kernel(
        [ScalarParameter(name="s", dtype=dtype)],
        [result("o", dtype=dtype)],
        copy_region("f", dtype.itemsize),
        [function("f", ("s", "o"))],
    )
    entry = only(kernel)
    info = np.iinfo(dtype.numpy) if dtype.is_integer else None
    complex_numbers = [
        0.1,
        3,
        2 - 0.5j,
        -1e-46j,
        np.complex64(1 / 3 + 2j),
        np.complex128(1e300 - 1 / 3j),
        np.float32(0.1),
        float("inf"),
    ]
    integers = [number(5) for number in INTEGERS.values()]
    good = {
        "c": complex_numbers,
        "f": [0.1, -2.5, 3, 2**60, float("inf"), *integers, np.int8(-3), np.int64(-7), np.uint64(2**64 - 1)],
        "b": [True, False],
    }.get(
        dtype.kind, [0, 1, info and info.min, info and info.max, *integers, dtype.numpy.type(info.max if info else 1)]
    )
    bad: list[object] = {
        "c": [10**400, True, None, "1", np.timedelta64(1)],
        "f": [10**400, True, None, "1", np.timedelta64(1)],
        "b": [1, 0.0, None, np.int64(1)],
    }.get(dtype.kind, [1.0, True, None, np.float32(1), info and int(info.max) + 1, info and int(info.min) - 1])
    if dtype.is_integer:
        bad.append(np.uint64(2**64 - 1) if dtype.kind == "i" else np.int8(-1))
    for number in good:
        with np.errstate(over="ignore"):
            expected = np.asarray(number).astype(dtype.numpy)
        held = np.asarray(number)
        for given in (number, held, held.astype(held.dtype.newbyteorder())):
            made = entry(given)
            assert type(made) is dtype.numpy.type  # a 0-d result is a scalar, as in NumPy
            assert made == expected
        assert sys.getrefcount(held) == 2 + (given is held)
    for thing in [*bad, *map(np.asarray, bad), np.array([1]), np.ma.masked_array(1)]:
        with pytest.raises(Missed):
            entry(thing)
    if dtype.is_float:
        assert np.isnan(entry(float("nan")))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_half_scalars_are_rounded_as_in_numpy(name: str) -> None:
    """Every number of the type, what lies between neighbours, and a little beside that."""
    dtype = DTYPES[name]
    kernel = make_kernel(
        [ScalarParameter(name="s", dtype=dtype)],
        [result("o", dtype=dtype)],
        copy_region("f", 2),
        [function("f", ("s", "o"))],
    )
    entry = only(kernel)
    every = np.arange(0, 1 << 16, 37, dtype=np.uint16)
    numbers, following = (bits.view(dtype.numpy).astype(float) for bits in (every, every + np.uint16(1)))
    between = (numbers + following) / 2
    with np.errstate(all="ignore"):
        tried = np.concatenate(
            [numbers, between, np.nextafter(between, 0), between * (1 + 2**-40), [1e300, -65520, 65519.99, 5e-324]]
        )
        expected = tried.astype(dtype.numpy)
    made = np.array([entry(number) for number in tried.tolist()])
    known = ~np.isnan(expected.astype(float))
    np.testing.assert_array_equal(made.view(np.uint16)[known], expected.view(np.uint16)[known])
    assert np.isnan(made[~known].astype(float)).all()
    scalar = dtype.numpy.type(0.1)
    assert entry(scalar) == scalar


def size_kernel(*parameters: object, sizes: tuple[str, ...], extent: tuple[object, ...]) -> Kernel:
    """o[extent] with o[0] = the first size."""
    passed = ", ".join(f"i64 %{s}" for s in sizes)
    region = f"define i32 @f(ptr %o, {passed}) {{\n  store i64 %{sizes[0]}, ptr %o\n  ret i32 0\n}}\n"
    return make_kernel(
        parameters, [result("o", *extent, dtype=i64)], region, [function("f", ("o",), sizes)], sizes=sizes
    )  # type: ignore[arg-type]


def test_symbolic_and_specialized_ints() -> None:
    kernel = size_kernel(SizeParameter(name="N"), SizeParameter(name="M", value=3), sizes=("N",), extent=("N", 3))
    entry = only(kernel)
    for n in (1, np.int64(5), np.uint8(5)):
        made = entry(n, np.int16(3))
        assert isinstance(made, np.ndarray)
        assert made.shape == (n, 3)
        assert made[0, 0] == n
    for args in ((5, 4), (5.0, 3), (True, 3), (2**63, 3), (5, None), (np.uint64(2**63), 3), (np.int32(5), 4)):
        with pytest.raises(Missed):
            entry(*args)
    assert sys.exception() is None


def test_a_negative_extent_is_numpys_error() -> None:
    entry = only(size_kernel(SizeParameter(name="N"), sizes=("N",), extent=("N",)))
    with pytest.raises(ValueError, match="negative dimensions"):
        entry(-1)


def test_sizes_from_shapes() -> None:
    n = shape("N")[0]
    x = replace(array("x", "N", 2), shape=(n, shape(2)[0]))
    y = replace(array("y", 1, 1), shape=(2 * n + 1, (n + 5) // 4))
    entry = only(size_kernel(x, y, sizes=("N",), extent=("N",)))
    for count in (1, 3, 8):
        made = entry(np.zeros((count, 2), np.float32), np.zeros((2 * count + 1, (count + 5) // 4), np.float32))
        assert made[0] == count
    for wrong in ((7, 1), (6, 2), (7, 3)):
        with pytest.raises(Missed):
            entry(np.zeros((3, 2), np.float32), np.zeros(wrong, np.float32))
    with pytest.raises(Missed):  # not contiguous
        entry(np.zeros((3, 4), np.float32)[:, ::2], np.zeros((7, 2), np.float32))
    entry(
        np.zeros((3, 4), np.float32)[::3, :2], np.zeros((3, 1), np.float32)
    )  # extents of 1: the strides do not matter


# -- in-place parameters ------------------------------------------------------------------------------------------------------------


def update_kernel(returned: tuple[str, ...] = ("y",)) -> Kernel:
    """y[8] = x[8], y in place."""
    return make_kernel(
        [array("x", 8), array("y", 8, written=True)],
        [],
        copy_region("f", 4, 8),
        [function("f", ("x", "y"))],
        returned=returned,
    )


def test_in_place() -> None:
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    assert only(update_kernel())(x, y) is y
    np.testing.assert_array_equal(x, y)
    assert only(update_kernel(()))(x, y) is None
    first, second = only(update_kernel(("y", "y")))(x, y)
    assert first is second is y


def test_in_place_needs_writable_memory_of_its_own() -> None:
    entry = only(update_kernel())
    memory = np.arange(24, dtype=np.float32)
    frozen = np.zeros(8, np.float32)
    frozen.flags.writeable = False
    for x, y in (
        (memory[:8], frozen),
        (memory[:8], memory[:8]),
        (memory[:8], memory[7:15]),
        (memory[7:15], memory[:8]),
    ):
        with pytest.raises(Missed):
            entry(x, y)
    assert entry(memory[:8], memory[8:16]) is not None
    np.testing.assert_array_equal(memory[8:16], np.arange(8))


# -- references ---------------------------------------------------------------------------------------------------------------------


def test_references_balance(add: Kernel, operands: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = operands
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    entry, in_place = only(add), only(update_kernel(("y", "y")))
    pair = make_kernel(
        [array("x", 8)], [result("o", 8), result("p", 8)],
        copy_region("f", 4, 8), [function("f", ("x", "o")), function("f", ("x", "p"))], returned=("p", "o", "x", "o"),
    )  # fmt: skip
    both = only(pair)
    watched: list[object] = [a, b, x, y, np.dtype(np.float32), entry, in_place, both]

    def counts() -> list[int]:
        return [sys.getrefcount(thing) for thing in watched]

    def calls() -> None:
        ours, numpys = sys.getrefcount(entry(a, b)), sys.getrefcount(np.empty((8, 8)))
        assert ours == numpys
        in_place(x, y)
        p, o, same, again = both(x)
        assert same is x
        assert again is o
        shared, single = sys.getrefcount(o), sys.getrefcount(p)
        assert shared == single + 1
        with pytest.raises(Missed):
            entry(a)

    calls()
    gc.collect()
    before = counts()
    for _ in range(10):
        calls()
    gc.collect()
    assert counts() == before


def test_no_leak_over_many_calls(add: Kernel, operands: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = operands
    entry = only(add)
    blocks = sys.getallocatedblocks
    for _ in range(100):
        entry(a, b)
    gc.collect()
    before, references = blocks(), (sys.getrefcount(a), sys.getrefcount(a.dtype))
    for _ in range(100_000):
        entry(a, b)
    gc.collect()
    assert blocks() - before < 100
    assert (sys.getrefcount(a), sys.getrefcount(a.dtype)) == references


def test_none_is_given_with_a_reference() -> None:
    entry, x, y = only(update_kernel(())), np.zeros(8, np.float32), np.zeros(8, np.float32)
    before = sys.getrefcount(None)
    for _ in range(10_000):
        entry(x, y)
    assert abs(sys.getrefcount(None) - before) < 1000


def test_a_kernel_dies_with_its_last_owner(operands: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = operands
    kernel = add_kernel()
    entry, ghost = kernel.entry, weakref.ref(kernel)
    del kernel
    gc.collect()
    np.testing.assert_array_equal(entry(a, b), a + b)  # the function owns its code
    del entry
    gc.collect()
    assert ghost() is None


# -- faults ------------------------------------------------------------------------------------------------------------------------


def check_kernel() -> Kernel:
    """y = x in place, unless the bool f is true."""
    regions = copy_region("look", 1) + copy_region("f", 4, 8)
    return make_kernel(
        [array("flag", dtype=boolean), array("x", 8), array("y", 8, written=True)], [result("o", 8)], regions,
        [function("look", ("flag", "t")), function("f", ("x", "y")), function("f", ("x", "o"))],
        temporaries=[buffer("t", dtype=boolean), buffer("large", 100_000)], checks=[("t", "index out of range")], returned=("o", "y"),
    )  # fmt: skip


def test_a_failed_check_raises_and_leaves_the_arrays_alone() -> None:
    entry = only(check_kernel())
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    before = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(3):
        with pytest.raises(SubscriptError, match="index out of range"):
            entry(np.array(True), x, y)
    assert not y.any()
    made, same = entry(np.array(False), x, y)
    assert same is y
    np.testing.assert_array_equal(made, y)
    del same
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before


def test_no_memory() -> None:
    region = "define i32 @f(ptr %t) {\n  ret i32 0\n}\n"
    kernel = make_kernel(
        [SizeParameter(name="N")],
        [],
        region,
        [function("f", ("t",))],
        sizes=("N",),
        temporaries=[buffer("t", "N", "N", dtype=f64)],
    )
    entry = only(kernel)
    assert entry(100) is None
    for n in (2**30, 2**32, 2**40):  # the last two do not fit into 64 bits
        with pytest.raises(MemoryError, match="temporary arrays"):
            entry(n)
    result_kernel = size_kernel(SizeParameter(name="N"), sizes=("N",), extent=("N", 2**20))
    with pytest.raises(MemoryError):
        only(result_kernel)(2**38)


# -- threads -----------------------------------------------------------------------------------------------------------------------


def test_eight_threads(add: Kernel, operands: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = operands
    expected, wrong = a + b, []
    entry = add.entry

    def work() -> None:
        for _ in range(3000):
            made = entry(a, b)
            if not np.array_equal(made, expected):
                wrong.append(made)

    team = [threading.Thread(target=work) for _ in range(8)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    assert not wrong


def test_the_gil_is_free_while_a_kernel_runs() -> None:
    region = """
define i32 @f(ptr %x) {
  br label %wait
wait:
  %v = load atomic float, ptr %x monotonic, align 4
  %zero = fcmp oeq float %v, 0.0
  br i1 %zero, label %wait, label %end
end:
  ret i32 0
}
"""
    kernel = make_kernel([array("x", 1)], [], region, [function("f", ("x",))])
    x = np.zeros(1, np.float32)
    waiter = threading.Thread(target=kernel.entry, args=(x,))
    waiter.start()
    x[0] = 1  # would never run, if the waiter held the GIL
    waiter.join(10)
    assert not waiter.is_alive()


def test_signature_text() -> None:
    signature = KernelSignature(
        name="f",
        parameters=(
            array("x", 3, "N", strides=(1, 3)),
            ScalarParameter(name="s", dtype=f64),
            SizeParameter(name="N"),
            SizeParameter(name="K", value=2),
        ),
        results=(result("o", 2, dtype=i32),),
        returned=("o",),
        sizes=("N",),
    )
    assert str(signature) == "f(x: f32[3, N] strides (1, 3), s: f64, N: int, K = 2) -> i32[2]"
