"""Small Functions with marks, written by hand: what every loop pass is tried on, before and after, with the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Allocate, Assign, For, Function, If, LoopKind, Node, Place, UpdateArgument, Variable
from polyml.codegen.printer import loops_text
from polyml.dtypes import DType, boolean, f32, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.sets.affine import Affine, affine, maximum, minimum

Extent = int | str | Affine


def array(name: str, *shape: Extent, dtype: DType = f32) -> Variable:
    return Variable(name=name, dtype=dtype, shape=tuple(affine(e) for e in shape), scope="global")


def local(name: str, *shape: Extent, dtype: DType = f32) -> Variable:
    return Variable(name=name, dtype=dtype, shape=tuple(affine(e) for e in shape), scope="local")


def register(name: str, dtype: DType = f32) -> Variable:
    return Variable(name=name, dtype=dtype, shape=(), scope="register")


def at(name: str, *subscripts: Extent | Expr, dtype: DType = f32) -> Read:
    return Read(name, _subscripts(subscripts), dtype)


def put(name: str, *subscripts: Extent | Expr) -> Place:
    return Place(name, _subscripts(subscripts))


def _subscripts(subscripts: Sequence[Extent | Expr]) -> tuple[Subscript, ...]:
    return tuple(affine(s) if isinstance(s, int | str) else s for s in subscripts)


def loop(
    variable: str,
    lower: Extent,
    upper: Extent,
    *body: Node,
    kind: LoopKind = "sequential",
    factor: int = 1,
    step: int = 1,
) -> For:
    return For(
        variable=variable, lower=affine(lower), upper=affine(upper), step=step, kind=kind, factor=factor, body=body
    )


def call(op: str, *args: Expr) -> Apply:
    comparison = op in ("lt", "le", "gt", "ge", "eq", "ne", "and", "or")
    return Apply(op, args, boolean if comparison else args[-1].dtype)


def index(value: Extent) -> IndexValue:
    return IndexValue(affine(value), i64)


def number(value: float, dtype: DType = f32) -> Const:
    return Const(value, dtype)


def function(*body: Node, arguments: Sequence[Variable], written: str, sizes: Sequence[str] = ()) -> Function:
    return Function(
        name="f", arguments=tuple(arguments), written=frozenset(written.split()), sizes=tuple(sizes), body=body
    )


v = affine


def copy_with_neighbours(n: Extent) -> Function:
    """y[i] = x[i] + x[i + 2] * x[2 * i], and z[i // 3, i % 3] = x[i]: unaligned, strided and scattered."""
    value = call("add", at("x", "i"), call("mul", at("x", v("i") + 2), at("x", v("i") * 2)))
    body = (
        Assign(target=put("y", "i"), value=value),
        Assign(target=put("z", v("i") // 3, v("i") % 3), value=at("x", "i")),
    )
    arrays = [array("x", v(n) * 2 + 3), array("y", n), array("z", v(n) // 3 + 1, 3)]
    return _sized(n, loop("i", 0, n, *body, kind="vector", factor=2), arguments=arrays, written="y z")


def reductions(n: Extent) -> Function:
    """Sum, maximum and the place of the maximum of x, with an element of memory as a target."""
    best = UpdateArgument(
        kind="argmax", best=put("best"), argument=put("where", 0), candidate=at("x", "i"), candidate_index=index("i")
    )
    body = (
        Assign(target=put("s", 1), value=number(2.0)),
        Assign(target=put("top"), value=number(-np.inf)),
        Assign(target=put("best"), value=number(0.0)),
        Assign(target=put("where", 0), value=Const(-1, i64)),
        loop("i", 0, n, Assign(target=put("s", 1), value=at("x", "i"), reduction="sum"), kind="vector"),
        loop("i", 0, n, Assign(target=put("top"), value=at("x", "i"), reduction="max"), best, kind="vector", factor=2),
        Assign(target=put("s", 0), value=at("top")),
        Assign(target=put("s", 2), value=at("best")),
    )
    inside = Allocate(variable=register("top"), body=(Allocate(variable=register("best"), body=body),))
    arrays = [array("x", n), array("s", 3), array("where", 1, dtype=i64)]
    return _sized(n, inside, arguments=arrays, written="s where")


def matmul(n: Extent, m: Extent, k: Extent) -> Function:
    """c = x @ w in place of c, then c * 2 in y: jammed rows, vectors of columns; everything through memory."""
    product = call("mul", at("x", "n", "k"), at("w", "k", "m"))
    body = (
        Assign(target=put("c", "n", "m"), value=number(0.0)),
        loop("k", 0, k, Assign(target=put("c", "n", "m"), value=product, reduction="sum")),
        Assign(target=put("y", "n", "m"), value=call("mul", at("c", "n", "m"), number(2.0))),
    )
    nest = loop("n", 0, n, loop("m", 0, m, *body, kind="vector", factor=2), kind="jam", factor=4)
    arrays = [array("x", n, k), array("w", k, m), array("c", n, m), array("y", n, m)]
    sizes = [e for e in (n, m, k) if isinstance(e, str)]
    return function(nest, arguments=arrays, written="c y", sizes=sizes)


def tiled_rows(n: int, m: int, tile: int) -> Function:
    """s[i] += x[i, j] * j over tiles of rows, lanes along the rows, a register per row and the columns in an unrolled loop."""
    value = call("mul", at("x", "i", "j"), Apply("cast", (index("j"),), f32))
    body = (
        Assign(target=put("t"), value=at("s", "i")),
        loop("j", 0, m, Assign(target=put("t"), value=value, reduction="sum"), kind="unroll", factor=3),
        Assign(target=put("s", "i"), value=at("t")),
    )
    end = v(n) if tile >= n else minimum([v("i_tile") + tile, v(n)])
    rows = loop("i", "i_tile", end, Allocate(variable=register("t"), body=body), kind="vector", factor=2)
    nest = loop("i_tile", 0, n, rows, kind="parallel", step=tile)
    return function(nest, arguments=[array("x", n, m), array("s", n)], written="s")


def guarded(n: Extent) -> Function:
    """Conditions that differ between lanes, a select that must not read outside, and one that is shared."""
    inside = call("and", call("ge", index("i"), index(1)), call("lt", index("i"), index(v(n) - 1)))
    padded = Apply("select", (inside, at("x", v("i") - 1), number(0.0)), f32)
    positive = call("gt", at("x", "i"), number(0.0))
    shared = call("gt", index("j"), index(1))
    body = (
        If(condition=positive, then=(Assign(target=put("s"), value=at("x", "i"), reduction="sum"),)),
        If(
            condition=shared,
            then=(Assign(target=put("y", "j", "i"), value=padded),),
            otherwise=(Assign(target=put("y", "j", "i"), value=at("x", "i")),),
        ),
    )
    nest = (
        Assign(target=put("s"), value=number(0.0)),
        loop("j", 0, 4, loop("i", 0, n, *body, kind="vector"), kind="jam", factor=2),
        Assign(target=put("total", 0), value=at("s")),
    )
    arrays = [array("x", n), array("y", 4, n), array("total", 1)]
    return _sized(n, Allocate(variable=register("s"), body=nest), arguments=arrays, written="y total")


def gathered(n: Extent) -> Function:
    """y[i] = table[ids[i]], rows by an index array; and whether any and all ids are below 2."""
    small = call("lt", at("ids", "i", dtype=i64), Const(2, i64))
    body = (
        Assign(target=put("y", "i"), value=at("table", at("ids", "i", dtype=i64))),
        Assign(target=put("flags", 0), value=small, reduction="any"),
        Assign(target=put("flags", 1), value=small, reduction="all"),
    )
    arrays = [array("ids", n, dtype=i64), array("table", 5), array("y", n), array("flags", 2, dtype=boolean)]
    return _sized(n, loop("i", 0, n, *body, kind="vector", factor=3), arguments=arrays, written="y flags")


def triangle(n: int) -> Function:
    """c[i, j] -= a[i, k] * a[j, k] for k < j <= i: inner bounds depend on jammed and vector loops, which must give way."""
    product = call("mul", at("a", "i", "k"), at("a", "j", "k"))
    update = Assign(target=put("c", "i", "j"), value=Apply("neg", (product,), f32), reduction="sum")
    inner = loop("j", 0, v("i") + 1, loop("k", 0, "j", update), kind="vector")
    nest = loop("i", 0, n, inner, kind="jam", factor=2)
    return function(nest, arguments=[array("a", n, n), array("c", n, n)], written="c")


def padded_window(h: int, w: int) -> Function:
    """y[h, w] = sum of the 3x3 window of x around it, what lies outside left out: bounds that change at the edges."""
    rows = maximum([affine(0), 1 - v("h")]), minimum([affine(3), h + 1 - v("h")])
    columns = maximum([affine(0), 1 - v("w")]), minimum([affine(3), w + 1 - v("w")])
    tap = Assign(target=put("y", "h", "w"), value=at("x", v("h") + v("r") - 1, v("w") + v("s") - 1), reduction="sum")
    body = (Assign(target=put("y", "h", "w"), value=number(0.0)), loop("r", *rows, loop("s", *columns, tap)))
    nest = loop("h", 0, h, loop("w", 0, w, *body, kind="vector", factor=2), kind="jam", factor=2)
    return function(nest, arguments=[array("x", h, w), array("y", h, w)], written="y")


def prefix(n: int) -> Function:
    """In-place dependence on another element: a[0] is read while a[j] is written, and c[i] is summed in memory."""
    body = (
        Assign(target=put("a", "j"), value=call("add", at("a", 0), at("a", "j"))),
        Assign(target=put("c", "i"), value=at("a", "j"), reduction="sum"),
    )
    nest = loop("i", 0, n, loop("j", 1, n + 1, *body))
    return function(nest, arguments=[array("a", n + 1), array("c", n)], written="a c")


def _sized(n: Extent, *body: Node, arguments: Sequence[Variable], written: str) -> Function:
    return function(*body, arguments=arguments, written=written, sizes=[n] if isinstance(n, str) else [])


SIZES = (0, 1, 2, 3, 7, 8, 15, 16, 17, 37)


def cases() -> list[tuple[str, Function, dict[str, int]]]:
    """Name, function and values of sizes."""
    found: list[tuple[str, Function, dict[str, int]]] = []
    by_size: list[Callable[[Extent], Function]] = [copy_with_neighbours, reductions, guarded, gathered]
    for make in by_size:
        found += [(f"{make.__name__}-{n}", make(n), {}) for n in SIZES]
        found += [(f"{make.__name__}-N{n}", make("N"), {"N": n}) for n in (0, 1, 9, 16, 35)]
    for n, m, k in ((1, 1, 1), (4, 8, 3), (5, 13, 1), (7, 19, 2), (9, 4, 0), (3, 33, 2), (0, 4, 1)):
        found.append((f"matmul-{n}-{m}-{k}", matmul(n, m, k), {}))
    found += [(f"matmul-N{n}", matmul("N", "M", "K"), {"N": n, "M": m, "K": k}) for n, m, k in ((6, 21, 2), (0, 3, 0))]
    found += [
        (f"tiled_rows-{n}-{m}", tiled_rows(n, m, t), {}) for n, m, t in ((1, 1, 8), (21, 7, 8), (40, 4, 40), (5, 2, 2))
    ]
    found += [(f"triangle-{n}", triangle(n), {}) for n in (1, 2, 5, 9)]
    windows = ((1, 1), (2, 3), (9, 16), (4, 17), (6, 37), (7, 80))
    found += [(f"padded_window-{h}-{w}", padded_window(h, w), {}) for h, w in windows]
    found += [(f"prefix-{n}", prefix(n), {}) for n in (0, 1, 4)]
    return found


def random_arrays(program: Function, sizes: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """One array per argument. Small integers: sums are exact in any order, so that results can be compared bit by bit."""
    random = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for argument in program.arguments:
        shape = tuple(extent.evaluate(sizes) for extent in argument.shape)
        if argument.dtype == i64:
            arrays[argument.name] = random.integers(0, 4, shape)
        elif argument.dtype == boolean:
            arrays[argument.name] = np.array([False, True])
        else:
            arrays[argument.name] = random.integers(-5, 6, shape).astype(np.float32)
    return arrays


def run(program: Function, sizes: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """The arrays after running `program` on random ones, all of them."""
    arrays = random_arrays(program, sizes, seed)
    interpret(program, arrays, sizes)
    return arrays


def agree(before: Function, after: Function, sizes: Mapping[str, int], about: str = "") -> None:
    """That both leave the same in all arrays, bit by bit. about: what the message begins with."""
    expected, found = run(before, sizes), run(after, sizes)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=f"{about} {name}\n{loops_text(after)}")
