"""The slow path: what is converted, what is refused and how, and that callers' arrays stay untouched."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import polyml
from polyml.dtypes import DTYPES, boolean, c64, f32, f64, i8, i64, u16, u64
from polyml.errors import ArgumentError, DTypeError, PolymlError, ShapeError, SubscriptError
from polyml.runtime.arguments import (
    Layout,
    Wanted,
    bind,
    empty_with_layout,
    layout_of,
    overlaps_itself,
    prepare,
    share_memory,
)
from polyml.runtime.kernel import Kernel
from polyml.runtime.signature import ScalarParameter, SizeParameter
from tests.runtime.handmade import add_kernel, array, buffer, copy_region, function, make_kernel, result

Arrays = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def add() -> Kernel:
    return add_kernel()


@pytest.fixture
def operands() -> Arrays:
    random = np.random.default_rng(0)
    return random.random((8, 8), np.float32), random.random((8, 8), np.float32)


@pytest.fixture(scope="module")
def update() -> Kernel:
    """y[8] = x[8], y in place, and o[8] = x[8]."""
    functions = [function("f", ("x", "y")), function("f", ("x", "o"))]
    parameters = [array("x", 8), array("y", 8, written=True)]
    return make_kernel(
        parameters, [result("o", 8)], copy_region("f", 4, 8), functions, returned=("o", "y"), name="update"
    )


# -- binding -----------------------------------------------------------------------------------------------------------------------


def test_positions_and_names() -> None:
    assert bind("f", ("a", "b"), (1, 2), {}) == ([1, 2], None)
    assert bind("f", ("a", "b"), (1,), {"out": 3, "b": 2}) == ([1, 2], 3)
    assert bind("f", ("a", "out"), (1,), {"out": 3}) == ([1, 3], None)


@pytest.mark.parametrize(
    ("args", "keywords", "message"),
    [
        ((1, 2, 3), {}, r"f takes 2 arguments \(a, b\), and 3 were given"),
        ((1,), {}, "f misses b\nhint: its parameters: a, b"),
        ((1, 2), {"b": 3}, "f got two values for b"),
        ((1, 2), {"axis": 3}, "f has no parameter axis"),
    ],
)
def test_binding_faults(args: tuple[object, ...], keywords: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        bind("f", ("a", "b"), args, keywords)
    with pytest.raises(TypeError):  # as Python's own functions do
        bind("f", ("a", "b"), args, keywords)


# -- one argument ------------------------------------------------------------------------------------------------------------------

X = Wanted("x", f32, 1)


def test_what_fits_is_used_as_it_is() -> None:
    x = np.zeros(8, np.float32)[::-2]
    prepared = prepare(X, x)
    assert prepared.value is x
    assert not prepared.copied


@pytest.mark.parametrize(
    "given",
    [
        [1.0, 2.0, 3.0],
        (1, 2, 3),
        [True, False, True],
        np.array([1, 2, 3], ">f4"),
        np.frombuffer(b"x" + np.arange(3, dtype=np.float32).tobytes(), np.uint8)[1:].view(np.float32),
        np.array([(1, 2, 3), (4, 5, 6)], [("a", "i2"), ("x", "f4"), ("b", "i2")])["x"],
        np.array([1, 2, 3], np.float32).view(np.recarray),
    ],
)
def test_what_is_converted(given: object) -> None:
    value = prepare(X, given).value
    assert isinstance(value, np.ndarray)
    assert (value.dtype, value.flags.aligned, value.dtype.isnative) == (np.float32, True, True)
    np.testing.assert_array_equal(value, np.asarray(given, np.float32))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            np.zeros(3),
            DTypeError,
            r"argument x has dtype f64, and the program declares f32\nhint: convert it to f32, or declare x: f64",
        ),
        (np.zeros(3, np.complex64), DTypeError, "argument x has dtype c64"),
        (np.zeros(3, np.longdouble), DTypeError, f"argument x has dtype {np.dtype(np.longdouble)}"),
        (["a"], DTypeError, "argument x has dtype <U1"),
        (None, DTypeError, "argument x must be an array of f32, and is None"),
        ({}, DTypeError, "argument x must be an array of f32, and is of type dict"),
        ("1", DTypeError, "argument x must be an array of f32, and is of type str$"),
        ([None], DTypeError, "argument x has dtype object"),
        (np.zeros((3, 3), np.float32), ShapeError, r"argument x has 2 dimensions \(3, 3\), and the program declares 1"),
        (1.0, ShapeError, "argument x has 0 dimensions"),
        (np.zeros((1, 1), np.float32)[0, 0], ShapeError, "argument x has 0 dimensions"),
        ([[1, 2], [3]], ArgumentError, "argument x is no array"),
    ],
)
def test_array_faults(given: object, error: type[PolymlError], message: str) -> None:
    with pytest.raises(error, match=message):
        prepare(X, given)


def test_masks_are_not_ignored() -> None:
    """What lies under a mask is read only where nothing is masked."""
    message = r"argument x is a masked array, 2 elements of which are masked(.|\n)*hint: pass x.filled\(..\), or x.data"
    for mask in ([True, True, False], [[True, True, False]]):
        values = np.ma.masked_array(np.zeros(np.shape(mask), np.float32), mask)
        with pytest.raises(ArgumentError, match=message):
            prepare(X, values)  # whatever else is wrong with it
    with pytest.raises(ArgumentError, match="1 element of which is masked"):
        prepare(Wanted("x", f32, None), np.ma.masked)
    for bare in (
        np.ma.masked_array([1, 2, 3], np.ma.nomask, np.float32),
        np.ma.masked_array([1, 2, 3], [0, 0, 0], "f4"),
    ):
        value = prepare(X, bare).value
        assert isinstance(value, np.ndarray)
        np.testing.assert_array_equal(value, [1, 2, 3])


def test_lists_of_integers_fit_or_are_refused() -> None:
    nothing = prepare(Wanted("x", i8, 2), [[], []]).value
    assert isinstance(nothing, np.ndarray)
    assert (nothing.shape, nothing.dtype) == ((2, 0), np.int8)
    for dtype in (i8, u16, u64):
        value = prepare(Wanted("x", dtype, 1), [1, 100]).value
        assert isinstance(value, np.ndarray)
        assert value.dtype == dtype.numpy
        assert value.tolist() == [1, 100]
    for dtype, numbers in ((i8, [1, 300]), (i8, [2**31]), (u16, [5, -1]), (u64, [-1])):
        with pytest.raises(ArgumentError, match=f"argument x has {numbers[-1]}, which {dtype} cannot hold"):
            prepare(Wanted("x", dtype, 1), numbers)


@pytest.mark.parametrize(
    ("wanted", "given", "value"),
    [
        (Wanted("s", f32, None), 1, 1.0),
        (Wanted("s", f32, None), np.float64(0.5), 0.5),
        (Wanted("s", f32, None), np.array(3), 3.0),
        (Wanted("s", f32, None), 1e60, np.inf),
        (Wanted("s", i8, None), np.int64(-128), -128),
        (Wanted("s", u16, None), True, 1),
        (Wanted("s", u64, None), 2**64 - 1, 2**64 - 1),
        (Wanted("s", u64, None), np.uint64(2**63), 2**63),
        (Wanted("s", f32, None), 2**70, 2.0**70),
        (Wanted("s", c64, None), -(2**63) - 1, -(2.0**63)),
        (Wanted("s", boolean, None), np.True_, True),
    ],
)
def test_scalars(wanted: Wanted, given: object, value: object) -> None:
    made = prepare(wanted, given).value
    assert isinstance(made, np.ndarray)
    assert made.shape == ()
    assert made.dtype == wanted.dtype.numpy  # type: ignore[union-attr]
    assert made == value


@pytest.mark.parametrize(
    ("wanted", "given", "message"),
    [
        (Wanted("s", f32, None), 1j, "argument s must be an f32 number"),
        (Wanted("s", f32, None), "1", "argument s must be an f32 number, and is '1'"),
        (Wanted("s", f32, None), None, "argument s must be an f32 number"),
        (
            Wanted("s", f32, None),
            np.zeros((2, 3)),
            r"argument s must be an f32 number, and is an array of shape \(2, 3\) and dtype float64",
        ),
        (Wanted("s", i8, None), 1.0, "argument s must be an i8 number"),
        (Wanted("s", i8, None), 128, "argument s = 128 does not fit i8"),
        (Wanted("s", u16, None), -1, "argument s = -1 does not fit u16"),
        (Wanted("s", i64, None), 10**30, "does not fit"),
        (Wanted("s", u64, None), 2**64, "does not fit u64"),
        (Wanted("s", f64, None), 10**400, "does not fit f64"),
        (Wanted("s", boolean, None), 1, "argument s must be a bool number"),
        (Wanted("s", boolean, None), 2**64, "argument s must be a bool number, and is 18446744073709551616"),
        (Wanted("s", boolean, None), 10**4000, "argument s must be a bool number, and is a number of 13288 bits"),
        (Wanted("s", boolean, None), np.array(1, object), "argument s must be a bool number"),
        (Wanted("n", None, None), 1.0, r"argument n must be an integer, and is 1\.0"),
        (Wanted("n", None, None), 2**63, "does not fit into 64 bits"),
        (Wanted("n", None, None), 10**4000, "n = a number of 13288 bits does not fit into 64 bits"),
        (Wanted("s", u16, None), 10**4000, "s = a number of 13288 bits does not fit u16"),
        (Wanted("s", f32, None), 10**4000, "s = a number of 13288 bits does not fit f32"),
    ],
)
def test_scalar_faults(wanted: Wanted, given: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        prepare(wanted, given)


# -- memory ------------------------------------------------------------------------------------------------------------------------


def test_layouts_are_canonical() -> None:
    data = np.zeros((4, 6), np.float32)
    assert layout_of(data) == Layout(f32, (4, 6), None)
    assert layout_of(data.T) == Layout(f32, (6, 4), (1, 6))
    assert layout_of(data[:, ::-2]) == Layout(f32, (4, 3), (6, -2))
    assert layout_of(data[1:2, ::2]) == layout_of(data[::9, ::2]) == Layout(f32, (1, 3), (0, 2))
    assert layout_of(data[:, :1].T) == Layout(f32, (1, 4), (0, 6))
    assert layout_of(np.broadcast_to(data[0], (3, 6))) == Layout(f32, (3, 6), (0, 1))
    assert layout_of(data[:0].T) == Layout(f32, (6, 0), None)


@pytest.mark.parametrize(
    "view",
    [
        lambda d: d.T,
        lambda d: d[::-1, ::2],
        lambda d: d[1:2],
        lambda d: np.broadcast_to(d[:1], (5, 6)),
        lambda d: d[:0],
    ],
)
def test_new_arrays_with_a_layout(view: Callable[[np.ndarray], np.ndarray]) -> None:
    like = view(np.arange(24, dtype=np.float32).reshape(4, 6))
    made = empty_with_layout(layout_of(like))
    assert layout_of(made) == layout_of(like)
    np.copyto(made, like)
    np.testing.assert_array_equal(made, like)


def test_overlap_within_an_array() -> None:
    data = np.zeros(24, np.float32)
    apart = [
        data,
        data[::-1],
        data.reshape(4, 6).T,
        data.reshape(2, 3, 4).transpose(1, 2, 0)[::-1, ::2],
        data[:0],
        np.zeros((1, 5))[:1],
    ]
    within = [np.broadcast_to(data, (2, 24)), as_strided(data, (4, 4), (4, 4)), as_strided(data, (3, 4), (12, 4))]
    assert not any(map(overlaps_itself, apart))
    assert all(map(overlaps_itself, within))


def test_sharing_is_decided_exactly() -> None:
    data = np.zeros(20, np.float32)
    assert not share_memory(data[::2], data[1::2])
    assert share_memory(data[::2], data[::3])


# -- a kernel alone -----------------------------------------------------------------------------------------------------------------


def test_other_layouts_are_copied(add: Kernel, operands: Arrays) -> None:
    a, b = operands
    for x, y in ((a.T, b), (a[::-1], b.astype(">f4")), (np.broadcast_to(a[0], (8, 8)), np.asfortranarray(b))):
        np.testing.assert_array_equal(add(x, y), x + y)
    np.testing.assert_array_equal(add(a.tolist(), b=b), a + b)


def test_sizes_must_be_the_kernels(add: Kernel, operands: Arrays) -> None:
    with pytest.raises(ShapeError, match=r"argument b has shape \(4, 8\), and this kernel is compiled for \(8, 8\)"):
        add(operands[0], operands[1][:4])
    kernel = make_kernel(
        [SizeParameter(name="N", value=3), ScalarParameter(name="s", dtype=f32)],
        [result("o")],
        copy_region("f", 4),
        [function("f", ("s", "o"))],
    )
    assert kernel(3, np.float32(2)) == 2
    with pytest.raises(ShapeError, match="argument N is 4, and this kernel is compiled for 3"):
        kernel(4, 1.0)


def test_strided_kernel_takes_other_layouts() -> None:
    region = """
define i32 @f(ptr %x, ptr %o) {
  %p = getelementptr float, ptr %x, i64 -3
  %v = load float, ptr %p, align 4
  store float %v, ptr %o, align 4
  ret i32 0
}
"""
    kernel = make_kernel([array("x", 4, strides=(-1,))], [result("o")], region, [function("f", ("x", "o"))])
    x = np.arange(4, dtype=np.float32)
    assert kernel(x[::-1]) == 0
    assert kernel(x) == 3


def test_out(add: Kernel, update: Kernel, operands: Arrays) -> None:
    a, b = operands
    wide = np.zeros((8, 16), np.float32)
    for out in (
        np.empty((8, 8), np.float32),
        wide[:, ::2],
        np.empty((8, 8), ">f4"),
        np.empty((8, 8), np.float32, order="F"),
    ):
        assert add(a, b, out=out) is out
        np.testing.assert_array_equal(out, a + b)
    assert add(a, b, out=(wide[:, 8:],)) is not None
    expected = a + a.T
    assert add(a, a.T, out=a) is a  # as if nothing overlapped
    np.testing.assert_array_equal(a, expected)
    x, y, o = (np.full(8, k, np.float32) for k in range(3))
    made, same = update(x, y, out=o)
    assert made is o
    assert same is y
    assert o[0] == y[0] == 0
    with pytest.raises(ArgumentError, match="shares memory with argument y, which is updated in place"):
        update(x, y, out=y)


def test_out_faults(add: Kernel, operands: Arrays) -> None:
    a, b = operands
    frozen = np.empty((8, 8), np.float32)
    frozen.flags.writeable = False
    faults = [
        ([[0.0]], "must be an array of f32 .8, 8., and is list"),
        (np.empty((8, 8)), "and is f64"),
        (np.empty((8, 4), np.float32), r"and is f32 \(8, 4\)"),
        ((a, b), "out= has 2 arrays, and handmade has 1 new result"),
        (frozen, "read-only"),
        (as_strided(np.empty(8, np.float32), (8, 8), (0, 4)), "share memory"),
    ]
    for out, message in faults:
        with pytest.raises(ArgumentError, match=message):
            add(a, b, out=out)


def test_out_is_called_as_the_program_calls_it() -> None:
    """Not by the name of the last of its values in the graph."""
    program = polyml.einsum(
        'def f(x: f32["N"]):\n    y: f32["N"] = 1\n    z[n] = x[n]\n    for t in range(3):\n        y[n] = y[n] * x[n]\n    y[n] += 1\n    return z, y\n'
    )
    x = np.arange(4, dtype=np.float32)
    with pytest.raises(ArgumentError, match=r"^out= for y must be an array"):
        program(x, out=(x.copy(), x[:3].copy()))
    with pytest.raises(ArgumentError, match=r"^out= for z must be an array"):
        program(x, out=(x[:3].copy(), x.copy()))
    both = np.zeros(8, np.float32)
    with pytest.raises(ArgumentError, match=r"^out= for y shares memory with that for z"):
        program(x, out=(both[:4], both[3:7]))
    both.flags.writeable = False
    with pytest.raises(ArgumentError, match=r"^out= for z is read-only"):
        program(x, out=(both[:4], x.copy()))
    with pytest.raises(ArgumentError, match=r"^out= for z has elements that share memory"):
        program(x, out=(np.lib.stride_tricks.as_strided(x.copy(), (4,), (0,)), x.copy()))


def test_out_arrays_of_several_results() -> None:
    """Views of one array, apart or not."""
    program = polyml.einsum('def f(x: f32["N"]):\n    y[n] = 2 * x[n]\n    z[n] = y[n] + 1\n    return y, z\n')
    x, both = np.arange(4, dtype=np.float32), np.zeros(8, np.float32)
    program(x, out=(both[:4], both[4:]))
    assert both.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    with pytest.raises(ArgumentError, match=r"out= for z.* shares memory with that for y"):
        program(x, out=(both[:4], both[3:7]))
    assert both.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_written_arguments_in_other_forms_are_updated(update: Kernel) -> None:
    x = np.arange(8, dtype=np.float32)
    for y in (np.zeros(16, np.float32)[::2], np.zeros(8, ">f4"), np.zeros(33, np.uint8)[1:].view(np.float32)):
        _, same = update(x, y)
        assert same is y
        np.testing.assert_array_equal(y, x)


def test_written_arguments_that_overlap(update: Kernel) -> None:
    memory = np.arange(12, dtype=np.float32)
    for x, y in (
        (memory[:8], memory[4:]),
        (memory[4:], memory[:8]),
        (memory[:8], memory[:8]),
        (memory[4:], memory[::-1][:8]),
    ):
        with pytest.raises(ArgumentError, match="argument y is updated in place, and it shares memory with argument x"):
            update(x, y)
    np.testing.assert_array_equal(memory, np.arange(12))
    made, y = update(memory[:8], memory[4:].copy())
    np.testing.assert_array_equal(y, made)
    twice = make_kernel(
        [array("x", 8, written=True), array("y", 8, written=True)],
        [],
        copy_region("f", 4, 8),
        [function("f", ("x", "y"))],
        returned=(),
    )
    with pytest.raises(ArgumentError, match="argument x is updated in place, and it shares memory with argument y"):
        twice(memory[:8], memory[4:])


def test_written_arguments_must_be_writable_arrays(update: Kernel) -> None:
    x, frozen = np.zeros(8, np.float32), np.zeros(8, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="argument y is updated in place, and it is read-only"):
        update(x, frozen)
    with pytest.raises(ArgumentError, match="argument y is updated in place, so it must be an array, not list"):
        update(x, [0.0] * 8)
    with pytest.raises(ArgumentError, match="argument y is updated in place, and its elements share memory"):
        update(x, as_strided(x, (8,), (0,)))


def test_an_overlapping_layout_is_refused_by_the_kernel_that_is_compiled_for_it() -> None:
    overlapping = make_kernel(
        [array("x", 3), array("y", 3, written=True, strides=(0,))],
        [],
        copy_region("f", 4, 3),
        [function("f", ("x", "y"))],
        returned=(),
    )
    x, y = np.arange(1, 4, dtype=np.float32), np.zeros(1, np.float32)
    with pytest.raises(ArgumentError, match="argument y is updated in place, and its elements share memory"):
        overlapping(x, as_strided(y, (3,), (0,)))
    assert y == 0
    with pytest.raises(ArgumentError, match=r"argument y does not fit the strides \(0,\)"):
        overlapping(x, np.zeros(3, np.float32))


@pytest.mark.parametrize("name", ["f32", "c64"])
def test_a_layout_that_repeats_elements_holds_nan(name: str) -> None:
    copies = polyml.einsum(f'def copies(x: {name}["N"]):\n    y[n] = x[n]\n    return y\n')
    x = np.full(3, np.nan, DTYPES[name].numpy)
    kernel = copies.compile(np.broadcast_to(x[0], (3,)))
    assert np.isnan(kernel(x)).all()
    with pytest.raises(ArgumentError, match=r"argument x does not fit the strides \(0,\)"):
        kernel(np.array([0, 0, 1], x.dtype))


def test_an_overlapping_layout_is_refused_by_every_call() -> None:
    """The first one compiles a kernel for the layout, and others find it."""
    update = polyml.einsum('def update(x: f32["N M"]):\n    x[i, j] += 1\n    return x\n')
    memory = np.zeros(9, np.float32)
    for strides in ((4, 4), (0, 4), (8, 4)):
        for _ in range(3):
            with pytest.raises(ArgumentError, match="argument x is updated in place, and its elements share memory"):
                update(as_strided(memory, (3, 3), strides))
    assert not memory.any()
    assert update(as_strided(memory, (3, 3), (4, 12))).all()


def test_arrays_stay_untouched_on_error() -> None:
    functions = [function("look", ("flag", "t")), function("f", ("x", "y")), function("f", ("x", "o"))]
    kernel = make_kernel(
        [array("flag", dtype=boolean), array("x", 8), array("y", 8, written=True)], [result("o", 8)], copy_region("look", 1) + copy_region("f", 4, 8),
        functions, temporaries=[buffer("t", dtype=boolean)], checks=[("t", "row 9 of 8")],
    )  # fmt: skip
    x, y, out = (np.full(8, k, np.float32) for k in range(3))
    for target in (y, y[::-1]):
        with pytest.raises(SubscriptError, match="row 9 of 8"):
            kernel(np.True_, x, target, out=out)
        with pytest.raises(ArgumentError):
            kernel(np.False_, x, target, out=out[:4])
    assert (y == 1).all()
    assert (out == 2).all()


def test_repr_and_text(add: Kernel) -> None:
    assert repr(add) == "<polyml.Kernel handmade(a: f32[8, 8], b: f32[8, 8]) -> f32[8, 8]>"
    assert "define i32 @add" in add.llvm
    assert "add:" in add.assembly
