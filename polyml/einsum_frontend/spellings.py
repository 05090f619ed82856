"""What Python has and the language has not, with the right spelling: tables for the parser's refusals."""

from __future__ import annotations

import ast

from polyml.dtypes import DTYPES
from polyml.ops import FUNCTIONS, REDUCTIONS

__all__ = ["REFUSED_BINARY", "REFUSED_COMPARE", "REFUSED_EXPRESSIONS", "attribute_hint", "spelled_out"]

REFUSED_BINARY: dict[type[ast.operator], tuple[str, str]] = {
    ast.MatMult: ("@", "write the indices: c[i, j] = a[i, k] * b[k, j]"),
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
_SPELLED_OUT = {
    "absolute": "abs(x)",
    "acos": "atan2(sqrt((1 - x) * (1 + x)), x)",
    "amax": "max[k](x[k])",
    "amin": "min[k](x[k])",
    "angle": "atan2(imag(z), real(z))",
    "arange": "the index itself, where its value is meant: y[n] = 2 * n + 1",
    "arccos": "atan2(sqrt((1 - x) * (1 + x)), x)",
    "arcsin": "atan2(x, sqrt((1 - x) * (1 + x)))",
    "arctan": "atan2(x, 1.0)",
    "arctan2": "atan2",
    "asin": "atan2(x, sqrt((1 - x) * (1 + x)))",
    "atan": "atan2(x, 1.0)",
    "average": "sum[n](x[n]) / N",
    "bincount": "an update of a tensor that is filled with 0: h[ids[n]] += 1",
    "cbrt": "copysign(abs(x)**(1/3), x)",
    "clip": "min(max(x, low), high)",
    "concatenate": "two statements into a declared tensor: y[i] = a[i] under `if i < N:`, y[N + j] = b[j]",
    "conjugate": "conj",
    "cosh": "(exp(x) + exp(-x)) / 2",
    "count_nonzero": "sum[n](x[n] != 0)",
    "cumprod": "y[n] = prod[k, k <= n](x[k])",
    "cumsum": "y[n] = sum[k, k <= n](x[k])",
    "diff": "y[n] = x[n + 1] - x[n], under `if n < N - 1:`",
    "divmod": "x // y and x % y",
    "dot": "the indices: sum[k](x[k] * y[k])",
    "einsum": "the indices: sum[k](x[n, k] * y[k, m])",
    "empty": "a declaration: y: f32['N']",
    "erfc": "1 - erf(x)",
    "exp2": "2.0**x",
    "expm1": "exp(x) - 1 (near 0, 2 * t / (1 - t) with t = tanh(x / 2))",
    "fabs": "abs(x)",
    "flip": "x[N - 1 - n]",
    "float": "f64(x)",
    "floor_divide": "x // y",
    "fma": "x * y + z",
    "full": "a declaration: y: f32['N'] = 7",
    "histogram": "an update of a tensor that is filled with 0: h[min(i64(x[n] * B), B - 1)] += 1",
    "hypot": "sqrt(x**2 + y**2)",
    "int": "i64(x)",
    "isfinite": "abs(x) < inf",
    "isinf": "abs(x) == inf",
    "isnan": "x != x",
    "leaky_relu": "where(x > 0, x, 0.01 * x)",
    "linspace": "index arithmetic: low + n * (high - low) / (N - 1)",
    "log10": "log(x) / log(10.0)",
    "log2": "log(x) / log(2.0)",
    "logaddexp": "max(x, y) + log1p(exp(-abs(x - y)))",
    "logical_and": "x and y",
    "logical_not": "not x",
    "logical_or": "x or y",
    "logsumexp": "m[n] = max[k](x[n, k]), then log(sum[k](exp(x[n, k] - m[n]))) + m[n]",
    "matmul": "the indices: sum[k](x[n, k] * y[k, m])",
    "maximum": "max",
    "mean": "sum[n](x[n]) / N",
    "minimum": "min",
    "mod": "x % y",
    "norm": "sqrt(sum[n](x[n]**2))",
    "ones": "a declaration: y: f32['N'] = 1",
    "outer": "the indices: y[i, j] = x[i] * w[j]",
    "pow": "x**y",
    "power": "x**y",
    "reciprocal": "1 / x",
    "reshape": "the indices: y[i, j] = x[K * i + j]",
    "rint": "round(x)",
    "roll": "x[(n - 1) % N], with y declared",
    "sign": "where(x > 0, 1, where(x < 0, -1, 0))",
    "silu": "x * sigmoid(x)",
    "sinh": "(exp(x) - exp(-x)) / 2",
    "softmax": "e[n, k] = exp(x[n, k] - max[j](x[n, j])), then e[n, k] / sum[j](e[n, j])",
    "softplus": "max(x, 0) + log1p(exp(-abs(x)))",
    "square": "x**2",
    "std": "m = sum[n](x[n]) / N, then sqrt(sum[n]((x[n] - m)**2) / N)",
    "swish": "x * sigmoid(x)",
    "tan": "sin(x) / cos(x)",
    "tensordot": "the indices: sum[k](x[n, k] * y[k, m])",
    "trace": "sum[i](x[i, i])",
    "transpose": "the indices: y[n, k] = x[k, n]",
    "tril": "where(j <= i, x[i, j], 0)",
    "triu": "where(j >= i, x[i, j], 0)",
    "trunc": "where(x < 0, ceil(x), floor(x))",
    "var": "m = sum[n](x[n]) / N, then sum[n]((x[n] - m)**2) / N",
    "zeros": "a declaration: y: f32['N'] = 0",
    "zeros_like": "a declaration: y: f32['N'] = 0",
}
"""Functions and reducers that people know from elsewhere, in the language's words."""
_NOT_EXPRESSIBLE = {
    **dict.fromkeys(("argsort", "median", "percentile", "quantile", "searchsorted", "sort", "sorted", "topk", "unique"), "sorting is not expressible: do it around the program, and pass the result as a parameter"),
    **dict.fromkeys(("normal", "rand", "randint", "randn", "random", "uniform"), "random numbers are drawn around the program, and passed as a parameter"),
}  # fmt: skip


def spelled_out(name: str) -> str | None:
    """A hint how to write what the function `name` does, where the table has it."""
    found = _SPELLED_OUT.get(name) or (f"{_NUMPY_DTYPES[name]}(x)" if name in _NUMPY_DTYPES else None)
    return _NOT_EXPRESSIBLE.get(name) if found is None else f"write {found}"


def attribute_hint(node: ast.Attribute) -> str:
    """How to write what `module.name` probably meant."""
    name = node.attr
    if name == "shape":
        return "name the sizes in the parameter's annotation: x: f32['N K'], and use N"
    if name in REDUCTIONS:
        return f"name the index that it reduces: {name}[k](x[k])"
    if name in FUNCTIONS or name in {"pi", "inf", "nan", "pad", *DTYPES}:
        return f"write {name}"
    if name in _NUMPY_DTYPES:
        return f"write {_NUMPY_DTYPES[name]}"
    if name == "T":
        return "swap the indices: x[k, n]"
    if (known := spelled_out(name)) is not None:
        return known
    return "give it a name of its own outside the program, or pass it as a parameter"
