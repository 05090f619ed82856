"""Schedules written by hand over small scops, for the tests of code generation."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.dtypes import f32
from polyml.expressions import Apply, Const
from polyml.schedule.schedule import Schedule, Storage
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from tests.scop.helpers import add, equation, mul, read, scop, tensor

Spec = Sequence["str | list[tuple[str, Spec]]"]
"""From the outside in: "@mark", a band member in isl's syntax over the statement's own indices ("n", "8*floor(n/8)"), or, last, a sequence
of (statement names, spec)."""


def tree(scop: Scop, spec: Spec, statements: Sequence[str] | None = None) -> isl.Schedule:
    """The schedule tree of `spec` over the named statements (all of them by default)."""
    names = list(scop.statements) if statements is None else list(statements)
    if not spec:
        domain = isl.UnionSet("{ }")
        for name in names:
            domain = domain.union(scop.statements[name].domain.to_union_set())
        return isl.Schedule.from_domain(domain)
    head = spec[0]
    if isinstance(head, list):
        assert len(spec) == 1
        parts = [tree(scop, inner, group.split()) for group, inner in head]
        result = parts[0]
        for part in parts[1:]:
            result = result.sequence(part)
        return result
    below = tree(scop, spec[1:], names)
    if head.startswith("@"):
        return below.get_root().child(0).insert_mark(isl.Id(head[1:])).get_schedule()
    pieces = [f"{name}[{', '.join(scop.statements[name].indices)}] -> [({head})]" for name in names]
    parameters = f"[{', '.join(scop.sizes)}] -> " if scop.sizes else ""
    return below.insert_partial_schedule(isl.MultiUnionPwAff(f"{parameters}[{{ {'; '.join(pieces)} }}]"))


def schedule(scop: Scop, spec: Spec, storage: Sequence[Storage] = ()) -> Schedule:
    """A Schedule without a proof: the dependences are empty."""
    empty = isl.UnionMap("{ }")
    none = Dependences(flow=empty, anti=empty, output=empty, reduction=empty, live_in=empty, live_out=empty)
    return Schedule(scop=scop, dependences=none, tree=tree(scop, spec), storage={s.array: s for s in storage})


def contracted(scop: Scop, array: str, shape: tuple[int, ...], offset: str) -> Storage:
    """Storage of `shape` below the mark allocate:<array>; `offset` in isl's syntax, the same text for all statements that have its indices."""
    users = [
        s
        for s in scop.statements.values()
        if s.target.array == array or array in str(s.value) or (s.argument is not None and s.argument.array == array)
    ]
    offsets = {s.name: isl.MultiAff(f"{{ {s.name}[{', '.join(s.indices)}] -> [{offset}] }}") for s in users}
    return Storage(array=array, place=f"allocate:{array}", shape=shape, offsets=offsets)


def dense(n: int, m: int, k: int) -> Scop:
    """`y[n, m] = relu(sum[k](x[n, k] * w[k, m]) + b[m])`."""
    x, w, b, t, y = tensor("x", n, k), tensor("w", k, m), tensor("b", m), tensor("t", n, m), tensor("y", n, m)
    point, box = f"0 <= n < {n} and 0 <= m < {m}", f"0 <= n < {n} and 0 <= m < {m} and 0 <= k < {k}"
    product = mul(read(x, "n", "k"), read(w, "k", "m"))
    relu = Apply("relu", (add(read(t, "n", "m"), read(b, "m")),), f32)
    ops = [
        equation(t, "n m k", box, ["n", "m"], product, reduce="sum", reduced="k"),
        equation(y, "n m", point, ["n", "m"], relu),
    ]
    return scop(ops, [x, w, b], [y])


def dense_schedule(n: int, m: int, k: int, *, jam: int = 4, vectors: int = 2) -> Schedule:
    """Rows jammed, columns in vectors, the accumulator contracted to one element."""
    program = dense(n, m, k)
    spec: Spec = [
        "@parallel", f"{2 * jam}*floor(n/{2 * jam})", f"@jam:{jam}", "n", f"@vector:{vectors}", "m", "@allocate:t",
        [("S_t_init", []), ("S_t", ["k"]), ("S_y", [])],
    ]  # fmt: skip
    return schedule(program, spec, [contracted(program, "t", (1, 1), "n, m")])


def softmax(n: int, m: int) -> Scop:
    """Softmax of the rows of x."""
    x, top, e, s, y = tensor("x", n, m), tensor("top", n), tensor("e", n, m), tensor("s", n), tensor("y", n, m)
    box = f"0 <= n < {n} and 0 <= m < {m}"
    minus = Apply("sub", (read(x, "n", "m"), read(top, "n")), f32)
    over = Apply("div", (Const(1.0, f32), read(s, "n")), f32)
    ops = [
        equation(top, "n m", box, ["n"], read(x, "n", "m"), reduce="max", reduced="m"),
        equation(e, "n m", box, ["n", "m"], Apply("exp", (minus,), f32)),
        equation(s, "n m", box, ["n"], read(e, "n", "m"), reduce="sum", reduced="m"),
        equation(y, "n m", box, ["n", "m"], mul(read(e, "n", "m"), over)),
    ]
    return scop(ops, [x], [y])


def softmax_schedule(n: int, m: int, *, vectors: int = 2) -> Schedule:
    """One row at a time: the maximum, exponentials and their sum together, the quotient; the exponentials live in one row."""
    program = softmax(n, m)
    along: Spec = [f"@vector:{vectors}", "m"]
    spec: Spec = [
        "@parallel", "n", "@allocate:top", "@allocate:e", "@allocate:s",
        [
            ("S_top_init", []),
            ("S_top", along),
            ("S_s_init", []),
            ("S_e S_s", [*along, [("S_e", []), ("S_s", [])]]),
            ("S_y", along),
        ],
    ]  # fmt: skip
    storage = [
        contracted(program, "top", (1,), "n"),
        contracted(program, "e", (1, m), "n, 0"),
        contracted(program, "s", (1,), "n"),
    ]
    return schedule(program, spec, storage)
