"""What Python allows and the language does not: refused at the exact stretch, with the right spelling."""

from __future__ import annotations

import pytest

from polyml.errors import EinsumSyntaxError

from .marked import check_refused, program

EXPRESSIONS = [
    ("«~v[n]»", "`~` is not in the language", "write `not`"),
    ("«v[n] > 0 & v[n] < 9»", "`&` binds more tightly than comparisons", "write `and` between conditions"),
    ("«0 < n | n < 3»", "`|` binds more tightly than comparisons", "write `or` between conditions"),
    ("«x @ w»", "`@` is not in the language", "a[i, k] * b[k, j]"),
    ("«v[n] is 1»", "`is` is not in the language", "`==`"),
    ("«v[n] in 1»", "`in` is not in the language", "`or`"),
    ("«v[n] if n > 0 else 0»", "`a if c else b` is not", "write where(c, a, b)"),
    ("«lambda: v[n]»", "lambda is not", ""),
    ("(«t := v[n]»)", ":= is not", "statement of its own"),
    ("«[v[n], 1]»", "a list is not", ""),
    ("«(v[n], 1)»", "a tuple is not", ""),
    ("«[v[n] for n in v]»", "a comprehension is not", "sum[k]"),
    ("«f'{v}'»", "a string is not", ""),
    ("«'v'»", "a string is not", ""),
    ("v[n, «None»]", "None is not", "an index of the left side"),
    ("«complex(1)»", "`complex` takes 2 arguments, not 1", "complex"),
    ("«100000000000000000000»", "does not fit in 64 bits", "float"),
    ("v[«0:3»]", "a slice is not", "x[n, k]"),
    ("x[n, «...»]", "`...` is not", "one index per dimension"),
    ("v[«n < 3»]", "a condition is no subscript", "sum[k < 3]"),
    ("x[n, «k in v»]", "a condition is no subscript", "an `if` above the statement"),
    ("v[«n > 1 and n < 3»]", "a condition is no subscript", "sum[k < 3]"),
    ("v[«not n»]", "a condition is no subscript", "sum[k < 3]"),
    ("«x[n][k]»", "a subscript of a subscript", "x[n, k]"),
    ("«relu(x)»[n, k]", "the result of a call cannot be subscripted", ""),
    ("«x.shape»[n]", "attributes such as 'x.shape'", "name the sizes"),
    ("«np.pi»", "attributes such as 'np.pi'", "write pi"),
    ("«np.exp»(v[n])", "'np.exp' is not", "write exp"),
    ("«np.float32»(v[n])", "'np.float32' is not", "write f32"),
    ("«np.maximum»(v[n], 0)", "'np.maximum' is not", "write max"),
    ("(«v + 1»)[n]", "only a tensor can be subscripted", ""),
    ("«rel»(v[n]) + 1", "unknown function 'rel'", "did you mean 'relu'"),
    ("«softmax»(v[n])", "unknown function 'softmax'", "exp(x[n, k]"),
    ("«silu»(v[n])", "unknown function 'silu'", "write x * sigmoid"),
    ("«np.clip»(v[n])", "not in the language", "write min(max("),
    ("«mean»[n](v[n])", "unknown reducer 'mean'", "write sum[n]"),
    ("«len»(v)", "unknown function 'len'", "name the sizes"),
    ("«float»(v[n])", "unknown function 'float'", "write f64(x)"),
    ("«clip»(v[n], 0, 1)", "unknown function 'clip'", "min(max(x, low), high)"),
    ("«np.sum»(v)", "'np.sum' is not", "sum[k](x[k])"),
    ("«v.max»()", "'v.max' is not", "max[k](x[k])"),
    ("«np.mean»(v)", "'np.mean' is not", "write sum[n](x[n]) / N"),
    ("«mean»[k](x[n, k])", "unknown reducer 'mean'", "write sum[n](x[n]) / N"),
    ("max(x[n, k], axis=«1»)", "keyword arguments", "max[k](x[n, k])"),
    ("«sum(x[n, k], axis=1)»", "`sum` reduces over no index", "sum[k](x[k])"),
    ("«x.sum»(axis=1)", "'x.sum' is not", "sum[k](x[k])"),
    ("«sort»(v[n])", "unknown function 'sort'", "around the program"),
    ("«np.random.rand»()", "'np.random.rand' is not", "around the program"),
    ("«frobnicate»(v[n]) + 1", "unknown function 'frobnicate'", "another einsum program"),
    ("«total»[k](x[n, k])", "unknown reducer 'total'", "argmax"),
    ("«sum(x[n, k])»", "`sum` reduces over no index", "sum[k](x[k])"),
    ("«sum[k]»", "is a reducer and needs a body", "sum[k](x[k])"),
    ("«sum[k](x[n, k], 1)»", "takes one expression, not 2", ""),
    ("«np.sum[k]»(x[n, k])", "without a module", "sum[...]"),
    ("sum[«k + 1»](x[n, k])", "an item of a reducer is an index or a condition", "sum[k < 3]"),
    ("sum[«0:3»](x[n, k])", "an item of a reducer is an index or a condition", ""),
    ("«max(v[n])»", "two or more arguments, not 1", "max[k](x[k])"),
    ("«where(v[n], 1)»", "`where` takes 3 arguments, not 2", "condition"),
    ("«exp(v[n], 1)»", "`exp` takes 1 argument, not 2", ""),
    ("«f32()»", "`f32` takes 1 argument, not 0", ""),
    ("exp(x=«v[n]»)", "keyword arguments", "by position"),
    ("exp(«*v»)", r"`\*` is not", ""),
    ("«pad(v, ((1, 1),))»", "`pad` stands for a tensor", "subscript it"),
    ("«pad(v)»[n]", "`pad` takes a tensor and the widths", ""),
    ("«pad(v, 1, mode=2)»[n]", "`pad` takes a tensor and the widths", "zeros"),
    ("pad(«v + 1», 1)[n]", "takes the name of a tensor", "assign"),
    ("pad(x, «((1, 1), (1, 1), (1, 1))»)[n, k]", "3 pairs of widths for 2 subscripts", ""),
    ("pad(v, «((1, 1), (1, 1))»)[n]", "2 pairs of widths for 1 subscript\n", ""),
    ("pad(v, (1, «-1»))[n]", "a pad width is negative", ""),
    ("pad(x, («(1,)», (1, 1)))[n, k]", r"a pair \(before, after\)", ""),
    ("1 + («v»)(n)", "unknown function", ""),
    ("«v»[n](n)", "unknown reducer 'v'", ""),
]


@pytest.mark.parametrize(("expression", "message", "hint"), EXPRESSIONS, ids=[row[0] for row in EXPRESSIONS])
def test_expression_is_refused(expression: str, message: str, hint: str) -> None:
    check_refused(program(f"y[n] = {expression}", "return y"), message, hint=hint, error=EinsumSyntaxError)


STATEMENTS = [
    ("while", "«while n > 0:\n        y[n] = v[n]»", "`while` is not", "one step"),
    ("break", "for t in range(N):\n        «break»", "`break` is not", "one step"),
    ("continue", "for t in range(N):\n        «continue»", "`continue` is not", "`if`"),
    ("pass", "«pass»", "`pass` is not", "leave it out"),
    ("def", "«def g(): return 1»", "a function inside a program", "of its own"),
    ("class", "«class A: x = 1»", "a class is not", ""),
    ("import", "«import numpy»", "`import` is not", "need none"),
    ("assert", "«assert N»", "`assert` is not", "around the call"),
    ("global", "«global z»", "`global` is not", ""),
    ("del", "«del x»", "`del` is not", ""),
    ("with", "«with x: y[n] = v[n]»", "`with` is not", ""),
    ("expression", "«x[n, k] + 1»", "an expression is no statement", "assign it"),
    ("chain", "y[n] = «z[n]» = v[n]", "a statement assigns once", ""),
    ("tuple", "«y[n], z[n]» = v[n]", "assigns one tensor", "a, b = f(x)"),
    ("tuple of expression", "«y, z» = 1", "assigns one tensor", ""),
    ("attribute", "«y.z» = 1", "cannot be assigned to", "y[n, m]"),
    ("double subscript", "«y[n][m]» = 1", "cannot be assigned to", ""),
    ("reserved target", "«max» = 1", "'max' is a word of the language", "another name"),
    ("reserved tensor", "«sum»[n] = v[n]", "'sum' is a word of the language", ""),
    ("reserved call target", "«exp», z = g(x)", "'exp' is a word of the language", ""),
    ("power update", "«y[n] **= 3»", "this update is not", "y[n] = y[n] ** 3"),
    ("int declaration", "y: «int» = 0", "declares only parameters", "i64"),
    ("subscripted declaration", "«y[n]»: f32 = 0", "a declaration names a tensor", ""),
    ("for else", "for t in range(N):\n        y[n] = v[n]\n    else:\n        «z[n] = v[n]»", "`for ... else`", ""),
    ("for two", "for «a, b» in range(N):\n        y[n] = v[n]", "one variable", "range(T)"),
    ("for list", "for t in «x»:\n        y[n] = v[n]", "runs over a range", ""),
    ("for no arguments", "for t in «range()»:\n        y[n] = v[n]", "runs over a range", "one to three"),
    ("for reserved", "for «pi» in range(N):\n        y[n] = v[n]", "word of the language", ""),
    ("bare return", "«return»", "names no result", "in place"),
    ("keyword call", "y = g(x=«v»)", "keyword arguments", ""),
    ("slice target", "y[«:»] = v[n]", "a slice is not", ""),
    ("compared target", "y[«n < 3»] = v[n]", "a condition is no subscript", "name the index alone"),
    ("member target", "y[«c in C», n] += v[n]", "a condition is no subscript", "the range that y is declared with"),
    ("return expression", "return «x + 1»", "by name, not expressions", "return y"),
    ("return list", "return «[x, v]»", "by name, not expressions", "commas alone"),
    ("return access", "y[n] = v[n]\n    return y, «v[n]»", "by name, not expressions", ""),
    ("yield", "«yield x»", "yield is not", "return y"),
    ("raise", "«raise x»", "`raise` is not", ""),
    ("try", "«try:\n        y[n] = v[n]\n    finally:\n        z[n] = v[n]»", "`try` is not", ""),
]


@pytest.mark.parametrize(("statement", "message", "hint"), [r[1:] for r in STATEMENTS], ids=[r[0] for r in STATEMENTS])
def test_statement_is_refused(statement: str, message: str, hint: str) -> None:
    check_refused(program(statement), message, hint=hint, error=EinsumSyntaxError)


PARAMETERS = [
    ("«x»", "parameter 'x' has no type", "f32"),
    ("x: «f3»", "unknown type 'f3'", "did you mean 'f32'"),
    ("x: «float»", "unknown type 'float'", "f64"),
    ("x: «np.float32»", "unknown type 'float32'", "write f32"),
    ("x: «f8»", "unknown type 'f8'", ""),
    ("x: «'f32'»", "not a string as a whole", ""),
    ("x: «int['N']»", "one number and has no shape", "i64"),
    ("x: «1»", "not a type of the language", ""),
    ("x: f32[«N, 4»]", "written as a string", 'f32["N 4"]'),
    ("x: f32[«'N', 'K + 1'»]", "written as a string", 'f32["N, K + 1"]'),
    ("x: f32[«''»]", "the shape is empty", "f32"),
    ("x: f32['N «K)»']", r"'K\)' is not an entry", ""),
    ("x: f32['N «+» 1']", r"'\+' is not an entry", "commas"),
    ("x: f32['N,« »,K']", "an entry of the shape is missing", ""),
    ("x: f32['N, «N*K»']", "multiplies two sizes", "x[h // R]"),
    ("x: f32['N «K/2»']", "affine in sizes", ""),
    ("x: f32['N «N//0»']", "divides by something else", "N//2"),
    ("x: f32['N «N//k»']", "divides by something else", "`int` parameter"),
    ("x: f32[«shape»]", "written as a string", "read and not run"),
    ("x: f32[«f'{K} N'»]", "written as a string", "read and not run"),
    ("«self», x: f32", "'self' has no type", "a program is no method: leave self out"),
    ("x: f32['«2.5» N']", "affine in sizes", ""),
    ("x: f32['N «f»(3)']", "unknown function", ""),
    ("*«x: f32»", "no `\\*` or", ""),
    ("**«x: f32»", "no `\\*` or", ""),
    ("x: f32 = «1»", "no default", ""),
    ("*, «x: f32»", "keyword-only", ""),
    ("«x: f32», /", "no `/`", ""),
    ("x: f32, «x: int»", "parameter 'x' appears twice", ""),
    ("«max: f32»", "'max' is a word of the language", ""),
]


@pytest.mark.parametrize(("parameter", "message", "hint"), PARAMETERS, ids=[row[0] for row in PARAMETERS])
def test_parameter_is_refused(parameter: str, message: str, hint: str) -> None:
    check_refused(f"def f({parameter}):\n    y = 1\n    return y\n", message, hint=hint, error=EinsumSyntaxError)
