"""What Python has and the language has not, with the right spelling: tables for the parser's refusals."""

from __future__ import annotations

import ast

from polyml.dtypes import DTYPES
from polyml.ops import FUNCTIONS, REDUCTIONS

__all__ = ["REFUSED_BINARY", "REFUSED_COMPARE", "REFUSED_EXPRESSIONS", "attribute_hint"]

REFUSED_BINARY: dict[type[ast.operator], tuple[str, str]] = {
    ast.BitAnd: ("&", "write `and`"),
    ast.BitOr: ("|", "write `or`"),
    ast.BitXor: ("^", "write `!=` between conditions, `**` for a power"),
    ast.MatMult: ("@", "write the indices: c[i, j] = a[i, k] * b[k, j]"),
    ast.LShift: ("<<", "multiply by a power of two"),
    ast.RShift: (">>", "divide with `//` by a power of two"),
}
REFUSED_COMPARE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Is: ("is", "write `==`"),
    ast.IsNot: ("is not", "write `!=`"),
    ast.In: ("in", "write the comparisons, joined by `or`"),
    ast.NotIn: ("not in", "write the comparisons, joined by `and`"),
}
REFUSED_EXPRESSIONS: dict[type[ast.expr], tuple[str, str | None]] = {
    ast.IfExp: ("`a if c else b`", "write where(c, a, b)"),
    ast.Lambda: ("lambda", "write the expression itself"),
    ast.NamedExpr: (":=", "assign in a statement of its own"),
    ast.ListComp: ("a comprehension", "reduce with indices: sum[k](x[k])"),
    ast.GeneratorExp: ("a comprehension", "reduce with indices: sum[k](x[k])"),
    ast.SetComp: ("a comprehension", "reduce with indices: sum[k](x[k])"),
    ast.DictComp: ("a comprehension", "reduce with indices: sum[k](x[k])"),
    ast.Tuple: ("a tuple", None),
    ast.List: ("a list", "pass an array as a parameter"),
    ast.Set: ("a set", None),
    ast.Dict: ("a dict", None),
    ast.JoinedStr: ("a string", None),
    ast.Starred: ("`*`", None),
    ast.Slice: ("a slice", "name an index instead: x[n, k]"),
    ast.Await: ("await", "a program is not async: leave it out"),
    ast.Yield: ("yield", "results are returned: `return y`"),
    ast.YieldFrom: ("yield", "results are returned: `return y`"),
}
_NUMPY_DTYPES = {
    "float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16",
    "uint32": "u32", "uint64": "u64", "bool_": "bool", "float": "f64",
    "float16": "f16", "bfloat16": "bf16", "complex64": "c64", "complex128": "c128",
}  # fmt: skip
_NUMPY_FUNCTIONS = {
    "maximum": "max",
    "minimum": "min",
    "power": "**",
    "matmul": "an index",
    "einsum": "an index",
    "conjugate": "conj",
}


def attribute_hint(node: ast.Attribute) -> str:
    """How to write what `module.name` probably meant."""
    name = node.attr
    if name == "shape":
        return "name the sizes in the parameter's annotation: x: f32['N K'], and use N"
    if name in FUNCTIONS or name in REDUCTIONS or name in {"pi", "inf", "nan", "pad", *DTYPES}:
        return f"write {name}"
    if name in _NUMPY_DTYPES:
        return f"write {_NUMPY_DTYPES[name]}"
    if name in _NUMPY_FUNCTIONS:
        return f"write {_NUMPY_FUNCTIONS[name]}"
    if name == "T":
        return "swap the indices: x[k, n]"
    return "give it a name of its own outside the program, or pass it as a parameter"
