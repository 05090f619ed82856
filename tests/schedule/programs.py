"""Small scops written by hand: a statement per line, for the schedule's tests."""

from __future__ import annotations

import ast
import functools
import re

import islpy as isl

from polyml.dtypes import DTYPES, DType, boolean
from polyml.expressions import Apply, Const, Expr, Read, Subscript
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine

_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}


def scop_of(text: str) -> Scop:
    """A scop from lines `array`: `input x f32[4, 8]`, and lines `statement`: `S[i, k]: 0 <= i < 4 and 0 <= k < 8: c[i] sum= x[i, k]`.

    `c[i] = value` is an assign; `c[i] sum= value` an update, `c[i] sum: 0` its init. `loop t` before statements and `end` after them: they share the
    outermost dimension t, in the written order.
    """
    arrays: dict[str, Array] = {}
    rows: list[tuple[str, int | None, int]] = []
    loop, group, position = None, 0, 0
    for line in (part.strip() for part in text.strip().splitlines()):
        if line.startswith("loop"):
            loop, group = group, group
        elif line == "end":
            loop, group = None, group + 1
        elif match := re.fullmatch(r"(input|output|inout|local) (\w+) (\w+)\[(.*)\]", line):
            kind, name, dtype, shape = match.groups()
            extents = tuple(affine(int(s)) if s.strip().isdigit() else affine(s.strip()) for s in shape.split(",") if s)
            arrays[name] = Array(name=name, dtype=DTYPES[dtype], shape=extents, kind=kind)  # type: ignore[arg-type]
        elif line:
            rows.append((line, group if loop is not None else None, position))
            group += loop is None
            position += 1
    sizes = tuple(sorted({v for a in arrays.values() for s in a.shape for v in s.variables()}))
    statements = {s.name: s for s in (_statement(line, arrays, sizes) for line, _, _ in rows)}
    return _assemble(statements, arrays, sizes, [(group, at) for _, group, at in rows])


def _statement(line: str, arrays: dict[str, Array], sizes: tuple[str, ...]) -> Statement:
    head, condition, body = (part.strip() for part in line.split(":", 2))
    name, inside = head.rstrip("]").split("[")
    indices = tuple(i.strip() for i in inside.split(",") if i.strip())
    domain = isl.Set(f"[{', '.join(sizes)}] -> {{ {name}[{', '.join(indices)}] : {condition or 'true'} }}")
    if match := re.fullmatch(r"(.+?)\s+(sum|max|min)=\s+(.+)", body):
        kind, reduction = "update", match[2]
    elif match := re.fullmatch(r"(.+?)\s+(sum|max|min):\s+(.+)", body):
        kind, reduction = "init", match[2]
    else:
        match, kind, reduction = re.fullmatch(r"(.+?)\s+(=)\s+(.+)", body), "assign", None
    assert match is not None, body
    target = _expr(ast.parse(match[1], mode="eval").body, arrays)
    assert isinstance(target, Read)
    value = _expr(ast.parse(match[3], mode="eval").body, arrays)
    return Statement(
        name=name, indices=indices, domain=domain, kind=kind, target=Access(target.tensor, target.subscripts), value=value,
        reduction=reduction,
    )  # fmt: skip


def _expr(node: ast.expr, arrays: dict[str, Array]) -> Expr:
    match node:
        case ast.Constant(value=value):
            assert isinstance(value, int | float)
            return Const(value, DTYPES["f32"])
        case ast.BinOp(left, op, right):
            args = (_expr(left, arrays), _expr(right, arrays))
            return Apply(_BINARY[type(op)], args, args[0].dtype)
        case ast.Compare(left, [_], [right]):
            return Apply("lt", (_expr(left, arrays), _expr(right, arrays)), boolean)
        case ast.Call(ast.Name(function), arguments):
            args = tuple(_expr(a, arrays) for a in arguments)
            return Apply("select" if function == "where" else function, args, _dtype(args))
        case ast.Name(name):
            return Read(name, (), arrays[name].dtype)
        case ast.Subscript(ast.Name(name), index):
            items = index.elts if isinstance(index, ast.Tuple) else [index]
            return Read(name, tuple(_subscript(i, arrays) for i in items), arrays[name].dtype)
        case _:
            raise AssertionError(ast.dump(node))


def _dtype(args: tuple[Expr, ...]) -> DType:
    return args[-1].dtype


def _subscript(node: ast.expr, arrays: dict[str, Array]) -> Subscript:
    if isinstance(node, ast.Subscript):
        return _expr(node, arrays)
    match node:
        case ast.Constant(int(value)):
            return affine(value)
        case ast.Name(name):
            return affine(name)
        case ast.BinOp(left, op, right):
            a, b = _subscript(left, arrays), _subscript(right, arrays)
            assert isinstance(a, Affine)
            assert isinstance(b, Affine)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return b * a.constant if a.is_constant else a * b.constant
                case ast.FloorDiv():
                    return a // b.constant
                case ast.Mod():
                    return a % b.constant
    raise AssertionError(ast.dump(node))


def _relation(statement: Statement, access: Access, arrays: dict[str, Array], sizes: tuple[str, ...]) -> isl.Map:
    fresh, terms, conditions = [], [], []
    for d, s in enumerate(access.subscripts):
        if isinstance(s, Affine):
            terms.append(s.isl_text())
        else:
            fresh.append(f"g{d}")
            terms.append(f"g{d}")
            conditions.append(f"0 <= g{d} < {arrays[access.array].shape[d].isl_text()}")
    text = f"[{', '.join(sizes)}] -> {{ {statement.name}[{', '.join(statement.indices)}] -> {access.array}[{', '.join(terms)}]"
    if conditions:
        text += f" : {' and '.join(conditions)}"
    return isl.Map(text + " }").intersect_domain(statement.domain)


def _assemble(
    statements: dict[str, Statement],
    arrays: dict[str, Array],
    sizes: tuple[str, ...],
    places: list[tuple[int | None, int]],
) -> Scop:
    from polyml.expressions import reads_of

    context = isl.Set(f"[{', '.join(sizes)}] -> {{ : {' and '.join(f'{s} >= 1' for s in sizes) or 'true'} }}")
    empty = isl.UnionMap.empty(context.get_space())
    reads, may, must, reductions, initial = empty, empty, empty, empty, empty
    depth = max(len(s.indices) for s in statements.values())
    for s, (group, position) in zip(statements.values(), places, strict=True):
        target = _relation(s, s.target, arrays, sizes).to_union_map()
        exact = all(isinstance(sub, Affine) for sub in s.target.subscripts)
        may, must = may.union(target), must.union(target) if exact else must
        if s.kind == "update":
            reads, reductions = reads.union(target), reductions.union(target)
        for read in reads_of(s.value):
            reads = reads.union(_relation(s, Access(read.tensor, read.subscripts), arrays, sizes).to_union_map())
        outer = [str(group if group is not None else position)]
        for d in range(depth):
            outer += [
                s.indices[d] if d < len(s.indices) else "0",
                str(position) if group is not None and d == 0 else "0",
            ]
        text = f"[{', '.join(sizes)}] -> {{ {s.name}[{', '.join(s.indices)}] -> [{', '.join(outer)}] }}"
        initial = initial.union(isl.Map(text).intersect_domain(s.domain).to_union_map())
    return Scop(
        name="region", context=context, sizes=sizes, arrays=arrays, statements=statements, initial=initial, reads=reads,
        may_writes=may, must_writes=must, reductions=reductions,
    )  # fmt: skip


def dependences_of(scop: Scop) -> Dependences:
    """Dependences by isl's dataflow, updates of one reduction apart (a plain stand-in for the analysis of polyml.scop)."""
    empty = isl.UnionMap.empty(scop.context.get_space())

    def flow(sink: isl.UnionMap, must: isl.UnionMap, may: isl.UnionMap) -> isl.UnionMap:
        info = isl.UnionAccessInfo.from_sink(sink).set_must_source(must).set_may_source(may)
        return info.set_schedule_map(scop.initial).compute_flow().get_may_dependence()

    updates = [n for n, s in scop.statements.items() if s.kind == "update"]
    soft = scop.may_writes.subtract(scop.must_writes).union(scop.reductions)
    hard = scop.must_writes.subtract(scop.reductions)
    raw = flow(scop.reads, hard, soft)
    anti = flow(scop.may_writes, hard, scop.reads).subtract(flow(scop.may_writes, hard, empty))
    output = flow(scop.may_writes, hard, soft)

    def own(relation: isl.UnionMap, inside: bool) -> isl.UnionMap:
        total = empty
        for m in (relation.get_map_list().get_at(i) for i in range(relation.n_map())):
            a, b = m.get_tuple_name(isl.dim_type.in_), m.get_tuple_name(isl.dim_type.out)
            if (a == b and a in updates) == inside:
                total = total.union(m.to_union_map())
        return total

    live_out = empty
    for n, a in scop.arrays.items():
        if a.kind in ("output", "inout"):
            ext = isl.Set(f"[{', '.join(scop.sizes)}] -> {{ {n}[{', '.join(f'a{d}' for d in range(len(a.shape)))}] }}")
            live_out = live_out.union(scop.may_writes.intersect_range(ext.to_union_set()))
    return Dependences(
        flow=own(raw, False), anti=own(anti, False), output=own(output, False), reduction=own(raw.union(output), True),
        live_in=empty, live_out=live_out,
    )  # fmt: skip


SOFTMAX = """
input x f32[{N}, {M}]
output y f32[{N}, {M}]
local mx f32[{N}]
local e f32[{N}, {M}]
local s f32[{N}]
MI[n]: 0 <= n < {N}: mx[n] max: 0
MU[n, m]: 0 <= n < {N} and 0 <= m < {M}: mx[n] max= x[n, m]
E[n, m]: 0 <= n < {N} and 0 <= m < {M}: e[n, m] = exp(x[n, m] - mx[n])
SI[n]: 0 <= n < {N}: s[n] sum: 0
SU[n, m]: 0 <= n < {N} and 0 <= m < {M}: s[n] sum= e[n, m]
D[n, m]: 0 <= n < {N} and 0 <= m < {M}: y[n, m] = e[n, m] / s[n]
"""
DENSE = """
input x f32[{N}, {K}]
input w f32[{K}, {M}]
input b f32[{M}]
output y f32[{N}, {M}]
local a f32[{N}, {M}]
CI[n, m]: 0 <= n < {N} and 0 <= m < {M}: a[n, m] sum: 0
CU[n, m, k]: 0 <= n < {N} and 0 <= m < {M} and 0 <= k < {K}: a[n, m] sum= x[n, k] * w[k, m]
G[n, m]: 0 <= n < {N} and 0 <= m < {M}: y[n, m] = gelu(a[n, m] + b[m])
"""
ATTENTION = """
input q f32[{B}, {H}, {S}, {D}]
input k f32[{B}, {H}, {S}, {D}]
input v f32[{B}, {H}, {S}, {D}]
output o f32[{B}, {H}, {S}, {D}]
local s f32[{B}, {H}, {S}, {S}]
local mx f32[{B}, {H}, {S}]
local p f32[{B}, {H}, {S}, {S}]
local l f32[{B}, {H}, {S}]
local a f32[{B}, {H}, {S}, {D}]
QI[b, h, i, j]: 0 <= b < {B} and 0 <= h < {H} and 0 <= i < {S} and 0 <= j < {S}: s[b, h, i, j] sum: 0
QU[b, h, i, j, e]: 0 <= b < {B} and 0 <= h < {H} and 0 <= i < {S} and 0 <= j < {S} and 0 <= e < {D}: s[b, h, i, j] sum= q[b, h, i, e] * k[b, h, j, e]
MI[b, h, i]: 0 <= b < {B} and 0 <= h < {H} and 0 <= i < {S}: mx[b, h, i] max: 0
MU[b, h, i, j]: 0 <= b < {B} and 0 <= h < {H} and 0 <= i < {S} and 0 <= j < {S}: mx[b, h, i] max= s[b, h, i, j]
P[b, h, i, j]: 0 <= b < {B} and 0 <= h < {H} and 0 <= i < {S} and 0 <= j < {S}: p[b, h, i, j] = exp(s[b, h, i, j] - mx[b, h, i])
LI[b, h, i]: 0 <= b < {B} and 0 <= h < {H} and 0 <= i < {S}: l[b, h, i] sum: 0
LU[b, h, i, j]: 0 <= b < {B} and 0 <= h < {H} and 0 <= i < {S} and 0 <= j < {S}: l[b, h, i] sum= p[b, h, i, j]
OI[b, h, i, e]: 0 <= b < {B} and 0 <= h < {H} and 0 <= i < {S} and 0 <= e < {D}: a[b, h, i, e] sum: 0
OU[b, h, i, e, j]: 0 <= b < {B} and 0 <= h < {H} and 0 <= i < {S} and 0 <= j < {S} and 0 <= e < {D}: a[b, h, i, e] sum= p[b, h, i, j] * v[b, h, j, e]
O[b, h, i, e]: 0 <= b < {B} and 0 <= h < {H} and 0 <= i < {S} and 0 <= e < {D}: o[b, h, i, e] = a[b, h, i, e] / l[b, h, i]
"""
DISTANCES = """
input x f32[{N}, {K}]
input y f32[{M}, {K}]
output d f32[{N}, {M}]
DI[n, m]: 0 <= n < {N} and 0 <= m < {M}: d[n, m] sum: 0
DU[n, m, k]: 0 <= n < {N} and 0 <= m < {M} and 0 <= k < {K}: d[n, m] sum= (x[n, k] - y[m, k]) * (x[n, k] - y[m, k])
"""
JACOBI = """
inout a f64[{N}, {N}]
inout b f64[{N}, {N}]
loop t
A[t, i, j]: 0 <= t < {T} and 1 <= i < {N} - 1 and 1 <= j < {N} - 1: b[i, j] = a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1]
B[t, i, j]: 0 <= t < {T} and 1 <= i < {N} - 1 and 1 <= j < {N} - 1: a[i, j] = b[i, j] + b[i - 1, j] + b[i + 1, j] + b[i, j - 1] + b[i, j + 1]
end
"""
CONVOLUTION = """
input x f32[{C}, {H}, {W}]
input w f32[{O}, {C}, 3, 3]
output y f32[{O}, {H} - 2, {W} - 2]
VI[o, i, j]: 0 <= o < {O} and 0 <= i < {H} - 2 and 0 <= j < {W} - 2: y[o, i, j] sum: 0
VU[o, i, j, c, r, s]: 0 <= o < {O} and 0 <= i < {H} - 2 and 0 <= j < {W} - 2 and 0 <= c < {C} and 0 <= r < 3 and 0 <= s < 3: y[o, i, j] sum= x[c, i + r, j + s] * w[o, c, r, s]
"""
LAYER_NORM = """
input x f32[{N}, {M}]
input g f32[{M}]
output y f32[{N}, {M}]
local mean f32[{N}]
local total f32[{N}]
local d f32[{N}, {M}]
local v f32[{N}]
local r f32[{N}]
TI[n]: 0 <= n < {N}: total[n] sum: 0
TU[n, m]: 0 <= n < {N} and 0 <= m < {M}: total[n] sum= x[n, m]
ME[n]: 0 <= n < {N}: mean[n] = total[n] * 0.001
DE[n, m]: 0 <= n < {N} and 0 <= m < {M}: d[n, m] = x[n, m] - mean[n]
VI[n]: 0 <= n < {N}: v[n] sum: 0
VU[n, m]: 0 <= n < {N} and 0 <= m < {M}: v[n] sum= d[n, m] * d[n, m]
R[n]: 0 <= n < {N}: r[n] = rsqrt(v[n] * 0.001)
Y[n, m]: 0 <= n < {N} and 0 <= m < {M}: y[n, m] = d[n, m] * r[n] * g[m]
"""


@functools.cache
def program(text: str, **sizes: int) -> tuple[Scop, Dependences]:
    """The scop of a text with its sizes filled in, and its dependences."""
    filled = re.sub(r"\{(\w+)\}( - 2)?", lambda m: str(sizes[m[1]] - (2 if m[2] else 0)), text)
    scop = scop_of(filled)
    return scop, dependences_of(scop)


TRIANGULAR = """
input a f32[{N}, {N}]
output y f32[{N}]
YI[i]: 0 <= i < {N}: y[i] sum: 0
YU[i, j]: 0 <= i < {N} and 0 <= j <= i: y[i] sum= a[i, j] * a[j, i]
"""
SCAN = """
input x f32[{N}, {M}]
inout y f32[{N}, {M}]
S[i, j]: 0 <= i < {N} and 1 <= j < {M}: y[i, j] = y[i, j - 1] + x[i, j]
"""
WAVEFRONT = """
inout y f32[{N}, {N}]
S[i, j]: 1 <= i < {N} and 1 <= j < {N}: y[i, j] = y[i, j - 1] + y[i - 1, j]
"""
HISTOGRAM = """
input where i32[{N}]
input x f32[{N}]
output h f32[{M}]
HI[m]: 0 <= m < {M}: h[m] sum: 0
HU[n]: 0 <= n < {N}: h[where[n]] sum= x[n]
"""
CHAIN = """
input x f32[{N}, {K}]
input u f32[{K}, {H}]
input w f32[{H}, {M}]
output y f32[{N}, {M}]
local a f32[{N}, {H}]
local r f32[{N}, {H}]
AI[n, h]: 0 <= n < {N} and 0 <= h < {H}: a[n, h] sum: 0
AU[n, h, k]: 0 <= n < {N} and 0 <= h < {H} and 0 <= k < {K}: a[n, h] sum= x[n, k] * u[k, h]
R[n, h]: 0 <= n < {N} and 0 <= h < {H}: r[n, h] = relu(a[n, h])
YI[n, m]: 0 <= n < {N} and 0 <= m < {M}: y[n, m] sum: 0
YU[n, m, h]: 0 <= n < {N} and 0 <= m < {M} and 0 <= h < {H}: y[n, m] sum= r[n, h] * w[h, m]
"""
SYMBOLIC = """
input x f32[N, M]
output y f32[N, M]
local s f32[N]
SI[n]: 0 <= n < N: s[n] sum: 0
SU[n, m]: 0 <= n < N and 0 <= m < M: s[n] sum= x[n, m]
Y[n, m]: 0 <= n < N and 0 <= m < M: y[n, m] = x[n, m] / s[n]
"""
