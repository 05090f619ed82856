"""Small graphs from text, for tests of the graph stages (no frontend involved).

    x: f32[4, 6]                      an input (`s: f32` a 0-d one); `sizes(N)` declares symbolic sizes
    tensor(y, f32[4, 5])              the shape of a result, where its left side does not tell it
    y[n, m] = sum[k](x[n, k] * w[k, m])
    if k <= n: z[n] = max[k](x[n, k])          a condition restricts the domain
    h1(h0)[n] = e, h1(h0)[n] += e     a functional update of h0; `+=` accumulates
    for t in range(0, 5): carry(h0, h, h2, h3) ...        a loop; carry(initial, inner, next, result)
    check(flag)                       a Check
    final(x, x2)                      input x is written and holds x2 at the end
    return y, z

Casts are dtype calls, ranges come from plain subscripts on either side (not those under `where`). All operands of an operator must have one dtype (or be numbers).
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass, field, replace

import islpy as isl

from polyml.dtypes import DTYPES, DType, boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript, reads_of
from polyml.graph.ir import Carried, Check, Equation, Graph, Input, Loop, Op, Tensor
from polyml.ops import OPS, REDUCTIONS, result_dtype
from polyml.sets.affine import Affine, affine

_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Pow: "pow",
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.And: "and", ast.Or: "or",
}  # fmt: skip


def graph(text: str, name: str = "program") -> Graph:
    """The graph that the text describes."""
    return _Builder(name).build(text)


@dataclass
class _Builder:
    name: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    sizes: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    carries: list[tuple[str, str, str, str]] = field(default_factory=list)

    def build(self, text: str) -> Graph:
        ops = self.block(ast.parse(_dedent(text)).body)
        bounds = " and ".join(f"{s} >= 1" for s in self.sizes) or "true"
        context = isl.Set(f"[{', '.join(self.sizes)}] -> {{ : {bounds} }}" if self.sizes else "{ : }")
        return Graph(
            name=self.name, sizes=self.sizes, context=context, inputs=tuple(self.inputs), ops=ops, outputs=self.outputs
        )

    def block(self, statements: list[ast.stmt]) -> tuple[Op, ...]:
        ops: list[Op] = []
        for s in statements:
            match s:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                    self.inputs.append(Input(tensor=self.declare(name, annotation)))
                case ast.Expr(value=ast.Call(func=ast.Name(id=verb), args=args)):
                    ops += self.directive(verb, args)
                case ast.If(test=test, body=[ast.Assign() | ast.AugAssign() as inner]):
                    ops.append(self.equation(inner, ast.unparse(test)))
                case ast.Assign() | ast.AugAssign():
                    ops.append(self.equation(s, ""))
                case ast.For():
                    ops.append(self.loop(s))
                case ast.Return(value=ast.Tuple(elts=names)):
                    self.outputs = tuple(self.tensors[ast.unparse(n)] for n in names)
                case ast.Return(value=value):
                    self.outputs = (self.tensors[ast.unparse(value)],)
                case _:
                    raise AssertionError(ast.unparse(s))
        return tuple(ops)

    def directive(self, verb: str, args: list[ast.expr]) -> list[Op]:
        names = [ast.unparse(a) for a in args]
        match verb:
            case "sizes":
                self.sizes = tuple(names)
            case "tensor":
                self.declare(names[0], args[1])
            case "check":
                return [Check(flag=self.tensors[names[0]], error="IndexError", message=f"{names[0]} is set")]
            case "carry":
                self.carries.append((names[0], names[1], names[2], names[3]))
                for other in (names[1], names[3]):
                    self.tensors[other] = replace(self.tensors[names[0]], name=other)
            case "final":
                for position, item in enumerate(self.inputs):
                    if item.tensor.name == names[0]:
                        self.inputs[position] = replace(item, written=True, final=self.tensors[names[1]])
        return []

    def loop(self, s: ast.For) -> Loop:
        bounds = [self.affine(a) for a in s.iter.args]
        start, stop = (affine(0), bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
        step = bounds[2].constant if len(bounds) == 3 else 1
        variable = s.target.id
        outer, self.carries, self.variables = self.carries, [], (*self.variables, variable)
        body = self.block(s.body)
        carried = tuple(Carried(*(self.tensors[n] for n in names)) for names in self.carries)
        self.carries, self.variables = outer, self.variables[:-1]
        return Loop(variable=variable, start=start, stop=stop, step=step, body=body, carried=carried)

    def declare(self, name: str, annotation: ast.expr) -> Tensor:
        match annotation:
            case ast.Name(id=dtype):
                shape: tuple[Affine, ...] = ()
            case ast.Subscript(value=ast.Name(id=dtype), slice=extents):
                shape = tuple(self.affine(e) for e in (extents.elts if isinstance(extents, ast.Tuple) else [extents]))
        self.tensors[name] = Tensor(name, DTYPES[dtype], shape, name)
        return self.tensors[name]

    # -- equations --------------------------------------------------------------------------------------------------------------

    def equation(self, s: ast.Assign | ast.AugAssign, condition: str) -> Equation:
        target = s.targets[0] if isinstance(s, ast.Assign) else s.target
        subscripts: list[ast.expr] = []
        if isinstance(target, ast.Subscript):
            subscripts = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
            target = target.value
        base = None
        if isinstance(target, ast.Call):
            base, target = self.tensors[ast.unparse(target.args[0])], target.func
        name = target.id
        value, reduce, reduced = s.value, None, ()
        match value:
            case ast.Call(func=ast.Subscript(value=ast.Name(id=kind), slice=items), args=[body]) if kind in REDUCTIONS:
                value, reduce = body, kind
                reduced = tuple(ast.unparse(i) for i in (items.elts if isinstance(items, ast.Tuple) else [items]))
        accumulate = isinstance(s, ast.AugAssign)
        places = tuple(self.subscript(x) for x in subscripts)
        body_expr = self.expr(value)
        left = list(dict.fromkeys(n for x in subscripts for n in self.free(x) if n not in reduced))
        indices = (*left, *reduced)
        known = self.tensors.get(name) or (replace(base, name=name) if base else None)
        bounds = [f"{e} >= 0" for e in indices]
        gathers = [
            (r.tensor, r.subscripts)
            for p in (body_expr, *places)
            if not isinstance(p, Affine)
            for r in reads_of(_outside_select(p))
        ]
        for tensor, subs in [*gathers, *([(name, places)] if known else [])]:
            shape = known.shape if tensor == name else self.tensors[tensor].shape
            bounds += [
                f"{x.name} < {n.isl_text()}"
                for x, n in zip(subs, shape, strict=True)
                if isinstance(x, Affine) and x.name in indices
            ]
        parameters = ", ".join((*self.sizes, *self.variables))
        terms = " and ".join([*bounds, *([f"({condition})"] if condition else [])]) or "true"
        domain = isl.Set(f"[{parameters}] -> {{ {name}[{', '.join(indices)}] : {terms} }}")
        if known is None:
            bare = isl.Set(f"[{parameters}] -> {{ [{', '.join(indices)}] : {' and '.join(bounds) or 'true'} }}")
            shape = tuple(self.extent(bare, indices.index(p.name)) for p in places)
            known = Tensor(name, i64 if reduce in ("argmax", "argmin") else body_expr.dtype, shape, name)
        result = replace(known, name=name)
        self.tensors[name] = result
        if reduce is None and accumulate:
            reduce = "sum"
        return Equation(
            result=result, indices=indices, domain=domain, target=places, body=body_expr, reduce=reduce, reduced=reduced,
            accumulate=accumulate, base=base,
        )  # fmt: skip

    def extent(self, domain: isl.Set, position: int) -> Affine:
        text = str(domain.dim_max(position))
        body = text.split("[(")[-1].split(")]")[0]
        return self.affine(ast.parse(body, mode="eval").body) + 1

    def free(self, node: ast.expr) -> list[str]:
        names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
        return [
            n
            for n in names
            if n not in self.tensors and n not in self.sizes and n not in self.variables and n not in DTYPES
        ]

    def subscript(self, node: ast.expr) -> Subscript:
        gathers = any(isinstance(n, ast.Name) and n.id in self.tensors for n in ast.walk(node))
        return self.expr(node) if gathers else self.affine(node)

    def affine(self, node: ast.expr) -> Affine:
        match node:
            case ast.Constant(value=value):
                return affine(value)
            case ast.Name(id=name):
                return affine(name)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self.affine(inner)
            case ast.BinOp(left=left, op=op, right=right):
                x, y = self.affine(left), self.affine(right)
                match op:
                    case ast.Add():
                        return x + y
                    case ast.Sub():
                        return x - y
                    case ast.Mult():
                        return x * y.constant if y.is_constant else y * x.constant
                    case ast.FloorDiv():
                        return x // y.constant
                    case ast.Mod():
                        return x % y.constant
        raise AssertionError(ast.unparse(node))

    # -- expressions ------------------------------------------------------------------------------------------------------------

    def expr(self, node: ast.expr) -> Expr:
        match node:
            case ast.Constant(value=bool(value)):
                return Const(value, boolean)
            case ast.Constant(value=int(value)):
                return Const(value, i64)
            case ast.Constant(value=float(value)):
                return Const(value, DTYPES["f32"])
            case ast.Name(id=name) if name in self.tensors:
                return Read(name, (), self.tensors[name].dtype)
            case ast.Name(id="inf"):
                return Const(float("inf"), DTYPES["f32"])
            case ast.Name(id=name):
                return IndexValue(affine(name), i64)
            case ast.Subscript(value=ast.Name(id=name), slice=items):
                subs = items.elts if isinstance(items, ast.Tuple) else [items]
                return Read(name, tuple(self.subscript(x) for x in subs), self.tensors[name].dtype)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self.apply("neg", [self.expr(inner)])
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return self.apply("not", [self.expr(inner)])
            case ast.BinOp(left=left, op=op, right=right):
                return self.apply(_BINARY[type(op)], [self.expr(left), self.expr(right)])
            case ast.BoolOp(op=op, values=[left, right]):
                return self.apply(_BINARY[type(op)], [self.expr(left), self.expr(right)])
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.apply(_BINARY[type(op)], [self.expr(left), self.expr(right)])
            case ast.Call(func=ast.Name(id=name), args=[arg]) if name in DTYPES:
                inner = self.expr(arg)
                if isinstance(inner, Const):
                    return Const(inner.value, DTYPES[name])
                return Apply("cast", (inner,), DTYPES[name])
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.apply("select" if name == "where" else name, [self.expr(a) for a in args])
        raise AssertionError(ast.unparse(node))

    def apply(self, op: str, args: list[Expr]) -> Expr:
        values = args[1:] if op == "select" else args
        strong = [a.dtype for a in values if not isinstance(a, Const)] or [values[0].dtype]
        dtype: DType = strong[0]
        assert all(d == dtype for d in strong), f"{op} of {strong}"
        values = [Const(a.value, dtype) if isinstance(a, Const) else a for a in values]
        full = (args[0], *values) if op == "select" else tuple(values)
        return Apply(OPS[op].name, full, result_dtype(op, dtype))


def _outside_select(expr: Expr) -> Expr:
    """The expression without the branches of its selects, whose reads need not be in bounds."""
    if isinstance(expr, Apply):
        args = expr.args[:1] if expr.op == "select" else expr.args
        return replace(expr, args=tuple(map(_outside_select, args)))
    return expr


def _dedent(text: str) -> str:
    return textwrap.dedent(text)
