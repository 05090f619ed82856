"""Hand-made equations for the scop's tests."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.dtypes import DType, f32
from polyml.expressions import Apply, Expr, Read, Subscript
from polyml.graph.ir import Carried, Equation, Loop, Op, Tensor
from polyml.scop.build import build
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine, affine


def tensor(name: str, *shape: int, dtype: DType = f32) -> Tensor:
    return Tensor(name, dtype, tuple(affine(n) for n in shape), name)


def read(t: Tensor, *subscripts: str | int | Affine | Expr) -> Read:
    return Read(t.name, tuple(affine(s) if isinstance(s, str | int) else s for s in subscripts), t.dtype)


def add(a: Expr, b: Expr) -> Expr:
    return Apply("add", (a, b), a.dtype)


def mul(a: Expr, b: Expr) -> Expr:
    return Apply("mul", (a, b), a.dtype)


def equation(
    result: Tensor,
    indices: str,
    limits: str,
    target: Sequence[Subscript | str],
    body: Expr,
    *,
    reduce: str | None = None,
    reduced: str = "",
    base: Tensor | None = None,
    accumulate: bool = False,
    params: str = "",
) -> Equation:
    names = tuple(indices.split())
    head = f"[{params}] -> " if params else ""
    domain = isl.Set(f"{head}{{ {result.name}[{', '.join(names)}] : {limits} }}")
    return Equation(
        result=result,
        indices=names,
        domain=domain,
        target=tuple(affine(t) if isinstance(t, str) else t for t in target),
        body=body,
        reduce=reduce,
        reduced=tuple(reduced.split()),
        base=base,
        accumulate=accumulate,
    )


def matmul() -> Scop:
    x, w, b = tensor("x", 8, 5), tensor("w", 5, 7), tensor("b", 7)
    t, y = tensor("t", 8, 7), tensor("y", 8, 7)
    ops: list[Op] = [
        equation(
            t,
            "n m k",
            "0 <= n < 8 and 0 <= m < 7 and 0 <= k < 5",
            ["n", "m"],
            mul(read(x, "n", "k"), read(w, "k", "m")),
            reduce="sum",
            reduced="k",
        ),
        equation(
            y,
            "n m",
            "0 <= n < 8 and 0 <= m < 7",
            ["n", "m"],
            Apply("relu", (add(read(t, "n", "m"), read(b, "m")),), f32),
        ),
    ]
    return scop(ops, [x, w, b], [y])


def scop(
    ops: Sequence[Op], inputs: Sequence[Tensor], outputs: Sequence[Tensor], storage: dict[str, str] | None = None
) -> Scop:
    return build(
        ops, name="region", sizes=(), context=isl.Set("{ : }"), inputs=inputs, outputs=outputs, storage=storage or {}
    )


def floyd_warshall(n: int = 6) -> Scop:
    """`for k: p[i, j] = min(p[i, j], p[i, k] + p[k, j])`, in place."""
    p, inner, following, after = (tensor(name, n, n) for name in ("p", "p_in", "p_next", "p_out"))
    body = Apply("min", (read(inner, "i", "j"), add(read(inner, "i", "k"), read(inner, "k", "j"))), f32)
    eq = equation(following, "i j", f"0 <= i < {n} and 0 <= j < {n}", ["i", "j"], body, params="k", base=inner)
    loop = Loop(
        variable="k",
        start=affine(0),
        stop=affine(n),
        step=1,
        body=(eq,),
        carried=(Carried(p, inner, following, after),),
    )
    names = {t.name: "p" for t in (p, inner, following, after)}
    return scop([loop], [p], [after], names)
