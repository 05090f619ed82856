"""Every static error of the resolver: the message, the exact stretch, and the remedy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from polyml.errors import EinsumSyntaxError, NotAffineError

from .marked import check_refused, program, resolved

PARAMETERS = 'x: f32["N K"], w: f32["K M"], v: f32["N"], ids: i64["N"], a: f32, m: int'
DENSE = resolved(program("y[n] = x[n, k] * v[k]", "return y", parameters='x: f32["N K"], v: f32["K"]'))
TWO = resolved(program("y = a * m", "z = a", "return y, z", parameters="a: f32, m: int"))
WRITES = resolved(program("x[n] *= y[n]", parameters='x: f32["N"], y: f32["N"]'))
SCOPE = {
    "dense": SimpleNamespace(program=DENSE),
    "two": SimpleNamespace(program=TWO),
    "writes": SimpleNamespace(program=WRITES),
    "array": np.zeros(3),
    "text": "abc",
    "function": print,
    "HALF": 0.5,
}

NAMES = [
    ("undefined", "y[n] = v[n] * «beta»", "undefined name 'beta'", ""),
    ("misspelt", "total[n] = v[n]\n    y[n] = v[n] * «totl»", "undefined name 'totl'", "did you mean 'total'"),
    ("index in no subscript", "y[n] = v[n] * «q»", "undefined name 'q'", "an index stands in a subscript"),
    ("reducer's index outside", "y[n] = sum[q](x[n, q]) / «q»", "undefined name 'q'", "only inside its parentheses"),
    ("array of the scope", "y[n] = v[n] * «array»", "'array' is a ndarray of the enclosing", "pass it as a parameter"),
    ("text of the scope", "y[n] = v[n] * «text»", "'text' is a str of the enclosing", ""),
    ("subscripted array of the scope", "y[n] = «array[n]»", "'array' is no tensor", "array: f32[...]"),
    ("function of the scope", "y[n] = v[n] * «function»", "not a number", "only numbers and einsum programs"),
    ("program as a value", "y[n] = v[n] * «dense»", "is an einsum program, not a value", "t = dense(x)"),
    ("function word as a value", "y[n] = v[n] * «exp»", "'exp' is a function", ""),
    ("function word as an index", "y[i8] = v[«i8»]", "'i8' is a function of the language", "choose another name for what is meant here, an index"),
    ("bare tensor", "y[n] = relu(«x»)", "'x' has 2 dimensions and is used without", "x[i, j]"),
    ("bare vector", "y = «v»", "'v' has 1 dimension and is used without", "v[i]"),
    ("undefined tensor", "y[n] = «z[n]»", "undefined name 'z'", "is a parameter: z: f32"),
    ("rank", "y[n] = «x[n]»", "'x' has 2 dimensions, but 1 subscript", "one subscript for each"),
    ("rank of pad", "y[n] = «pad(v, 1)[n, n]»", "'v' has 1 dimension, but 2 subscripts", ""),
    ("scalar with subscripts", "y[n] = «a[n]»", "'a' is a scalar and has no subscripts", "write a"),
    ("size with subscripts", "y[n] = «N[n]»", "'N' is a size and has no subscripts", ""),
    ("tensor in a subscript", "y[n] = v[«ids»]", "'ids' has 1 dimension and is used without", "ids[i]"),
    ("step of a size", "for t in range(0, N, «K»):\n        v[t] = t", "an integer other than 0", "'K' is known at a call only"),
    ("index called as a tensor", "y[n] = v[«v»] * 2", "'v' has 1 dimension and is used", "an index needs a name that nothing"),
    ("read before assigned", "y[n] = v[n] * «late»\n    late = 1", "'late' is read before it is assigned", ""),
    ("reads itself", "y[n] = «y[n - 1]» + v[n]", "'y' is read before it is assigned", "y[t] = y[t - 1]"),
    ("declared without value", "y: f32['N']\n    z[n] = «y[n]»", "'y' is read before it has a value", "fill it"),
    ("upper-case index", "y[n] = x[n, «J»]", "undefined name 'J'", "indices are lower-case"),
    ("power beyond 64 bits", "y[n] = v[n] * «2**63»", "does not fit in 64 bits", "2.0**100"),
    ("immense power", "y[n] = v[n] / «9**9**9»", "does not fit in 64 bits", "2.0**100"),
    ("product beyond 64 bits", "y[n] = v[n] + «10**15 * 10**15» * m", "does not fit in 64 bits", "floats"),
    ("difference beyond 64 bits", "y[n] = v[n] * («-9223372036854775808 - 1»)", "does not fit in 64 bits", "floats"),
]  # fmt: skip

LOOPS = [
    ("tensor of a loop after it", "for t in range(N):\n        y[n] = v[n]\n    return «y»", "ended with it", "declare it before the loop"),
    ("read after the loop", "for t in range(N):\n        y[n] = v[n]\n    z[n] = «y[n]»", "ended with it", "declare it before"),
    ("0-d as subscript after it", "for t in range(N):\n        s = argmax[n](v[n])\n    z = v[«s»]", "ended with it", "declare it"),
    (
        "0-d inside a subscript after it",
        "for t in range(N):\n        s = argmax[n](v[n])\n    z = v[«s» + 1]",
        "cannot gather here",
        "choose another name",
    ),
    ("update after the loop", "for t in range(N):\n        y[n] = v[n]\n    «y[n]» += 1", "ended with it", "declare it before"),
    ("read from the last iteration", "for t in range(N):\n        z[n] = «y[n]»\n        y[n] = z[n]", "before this iteration makes it", "declare it before"),
    ("scalar from the last iteration", "for t in range(N):\n        z = «s» + 1\n        s = z", "before this iteration", "declare it before"),
    ("left side by loop variable", "for t in range(N):\n        y[n, «t»] = v[n]", "subscripted by a loop variable", "declare it before the loop"),
    ("loop variable arithmetic", "for t in range(N):\n        y[«t + 1»] = 1", "subscripted by a loop variable", "declare it before"),
    ("assigns its variable", "for t in range(N):\n        «t» = 1", "a loop variable and cannot be assigned", "another name"),
    ("nested same variable", "for t in range(N):\n        «for t in range(N):\n            v[n] = t»", "'t' exists already", ""),
    ("variable is a tensor", "«for v in range(N):\n        x[n, k] = 0»", "'v' exists already", "another name"),
    ("variable is a size", "«for N in range(3):\n        x[n, k] = 0»", "'N' exists already", ""),
    ("step zero", "for t in range(0, N, «0»):\n        v[n] = t", "an integer other than 0", "T - 1, -1, -1"),
    ("symbolic step", "for t in range(0, N, «m»):\n        v[n] = t", "an integer other than 0", ""),
    ("subscripted loop variable", "for t in range(N):\n        v[n] = «t[n]»", "'t' is a loop variable and has no", ""),
]  # fmt: skip

LEFT_SIDES = [
    ("scalar parameter", "«a» = 1", "'a' is a scalar parameter and cannot be assigned", ""),
    ("scalar parameter update", "«a» += 1", "'a' is a scalar parameter", ""),
    ("int parameter", "«m» = 1", "'m' is a size and cannot be assigned", "another name"),
    ("size", "«N[n]» = v[n]", "'N' is a size and cannot be assigned", ""),
    ("rank", "«x[n]» = v[n]", "'x' has 2 dimensions, but 1 subscript", ""),
    ("rank of a new one", "y[n] = v[n]\n    «y[n, k]» = x[n, k]", "'y' has 1 dimension, but 2", ""),
    ("without subscripts", "«x» = 1", "'x' has 2 dimensions and is assigned without", "x[i, j] = ..."),
    ("0-d with subscripts", "s = 1\n    «s[n]» = v[n]", "'s' is a scalar and has no subscripts", ""),
    ("update of nothing", "«y[n]» += v[n]", "`\\+=` on 'y', which has no value", "declare and fill"),
    ("update of nothing by -=", "«s» -= v[n]", "`-=` on 's', which has no value", ""),
    ("update of a declared one", "y: f32['N']\n    «y[n]» *= 2", "`\\*=` on 'y', which has no value", "= 0"),
    ("not plain", "y[«n + 1»] = v[n]", "needs plain indices", "declare it first"),
    ("number", "y[«0»] = a", "needs plain indices", "declare it first"),
    ("an int", "y[«m»] = x[0, 0]", "needs plain indices: 'm' is one number", "choose another name for the index, or declare it"),
    ("a scalar", "y[«a»] = x[0, 0]", "needs plain indices: 'a' is one number", "choose another name for the index, or declare it"),
    ("gathered", "y[«ids[n]»] = v[n]", "needs plain indices", ""),
    ("twice", "y[n, «n»] = v[n]", "has 'n' twice", ""),
    ("reducer", "v[«sum[k](m)»] = 1", "a left subscript cannot reduce", ""),
    ("declared twice", "y: f32 = 1\n    «y: f32 = 2»", "'y' exists already", ""),
    ("declared parameter", "«x: f32['N'] = 1»", "'x' exists already", ""),
    ("declared with a bad size", "y: f32['N «J»'] = 1", "undefined name 'J'", "sizes come from the parameters: m, N, K, M"),
    ("declared with a tensor", "y: f32['N «v»'] = 1", "'v' is no size", "v: int"),
    ("declared with a local", "s = 3\n    y: f32['N «s»'] = 1", "'s' is no size", "s: int"),
    ("declared with a loop variable", "for t in range(N):\n        y: f32['«t»'] = 1", "a shape is made of sizes", "largest"),
    ("filled by a tensor", "y: f32['N'] = «v[n]»", "one number for the whole tensor", "y[n] = ..."),
    ("filled by a reducer", "y: f32['N'] = «sum[n](v[n])»", "one number for the whole tensor", ""),
    ("return of nothing", "return «y»", "undefined name 'y'", ""),
    ("return of a misspelt", "total = 1\n    return «totl»", "undefined name 'totl'", "did you mean 'total'"),
    ("return twice", "y = 1\n    return y, «y»", "'y' is returned twice", ""),
    ("return of a size", "return «N»", "not a tensor of the program", "r = N; return r"),
    ("return of a scalar", "return «a»", "not a tensor of the program", ""),
    ("return without value", "y: f32['N']\n    return «y»", "returned, but has no value", ""),
    ("return too early", "«return x»\n    y = 1", "not the last statement", "once"),
    ("return in a loop", "for t in range(N):\n        «return x»", "not the last statement", ""),
    ("no result", "y = 1\n    «z = 2»", "the program has no result", "return y"),
]  # fmt: skip

REDUCERS = [
    ("size", "y[n] = sum[«N»](v[n])", "cannot reduce over 'N': it is a size", "another name"),
    ("unknown size", "y[n] = sum[«J»](v[n])", "cannot reduce over 'J': it is a size", ""),
    ("mixed case", "y[n] = sum[«kH»](v[n])", "'kH': it is not lower-case", ""),
    ("parameter", "y[n] = sum[«v»](v[n])", "'v': it is a parameter", ""),
    ("word", "y[n] = sum[«exp»](v[n])", "'exp': it is a word of the language", ""),
    ("twice", "y[n] = sum[k, «k»](x[n, k])", "'k' appears twice among the items", ""),
    ("binds nothing", "y[n] = «sum[n < 3](v[n])»", "this sum binds no index", "where(condition"),
    ("binds nothing from above", "y[n] = «sum[k >= n](v[k])»", "this sum binds no index", "name the index: sum[k, ..]"),
    ("binds nothing but an outer", "y = sum[r < 2](«sum[r < 1](v[r])»)", "this sum binds no index", ""),
    ("argmax over two", "y = «argmax[n, k](x[n, k])»", "argmax works over one index, not 2", "first"),
    ("argmin over two", "y = «argmin[n < 3, k](x[n, k])»", "argmin works over one index, not 2", ""),
]  # fmt: skip

CONDITIONS = [
    ("unused index", "if «q» > 0:\n        v[n] = 1", "undefined name 'q'", "among its items"),
    ("one of two", "if «k» > 0:\n        x[n, k] = 1\n        v[n] = 2", "names the index 'k', which the statement in line 4", "of its own"),
    ("in else", "if «k» > 0:\n        x[n, k] = 1\n    else:\n        v[n] = 2", "the statement in line 5 does not use", ""),
    ("made by both", "if «n < 3»:\n        y[n] = v[n]\n    else:\n        y[n] = 0", "'y' is made under an `if`", "declare it before"),
    ("in an inner loop", "if «k» > 0:\n        for t in range(3):\n            v[n] = t\n        x[n, k] = 1", "the statement in line 4", ""),
    ("right index above =", "if «k» < n:\n        v[n] = x[n, k]", "left side of the `=` in line 3 lacks", "sum[k, ...]"),
    ("not in every term", "if «k» < n:\n        v[n] += x[n, k] + a", "not every term of the statement in line 3", ""),
    ("deeper sum", "if «k» < n:\n        v[n] += relu(x[n, k] * w[k, 0])", "not every term", ""),
    ("reducer's index", "if «k» < n:\n        v[n] += sum[k](x[n, k])", "undefined name 'k'", "sum[k, k < n]"),
    ("tensor element", "if «v[n]» > 0:\n        v[n] = 1", "about indices, not about data", "where("),
    ("scalar", "if n > 0 and «a» > 0:\n        v[n] = 1", "reads 'a', which is data", "where("),
    ("declaration", "if N > 3:\n        «y: f32 = 1»", "a declaration cannot stand under `if`", "before"),
    ("declaration in a loop under if", "if N > 3:\n        for t in range(3):\n            «y: f32 = 1»", "a declaration cannot", ""),
    ("call", "if N > 3:\n        «y = dense(x, v)»", "a call of a program cannot stand under", ""),
    ("return", "if N > 3:\n        «return x»", "not the last statement", ""),
]  # fmt: skip

NOT_AFFINE = [
    ("product", "y[n, k] = v[«n * k»]", "multiplies 'n' by 'k'", "numbers and sizes"),
    ("square", "y[n] = v[«n * n»]", "multiplies 'n' by 'n'", ""),
    ("power", "y[n] = v[«n ** 2»]", "a subscript is not affine: 'n \\*\\* 2'", "first"),
    ("quotient", "y[n] = v[«n / 2»]", "a subscript is not an integer", "`//`"),
    ("divided by an index", "y[n, k] = v[«n // k»]", "divides by 'k'", ""),
    ("divided by zero", "y[n] = sum[k](x[n, «k // 0»])", "a subscript divides by 0", "1 or more"),
    ("remainder by zero", "y[n] = sum[k, «k % (2 - 2)» == 0](x[n, k])", "condition divides by 0", ""),
    ("divided by a negative number", "y[n] = v[«n % -4»]", "divides by -4, which is not a positive number", "turn the signs"),
    ("negative power", "for t in range(«2**-1»):\n        v[n] = t", "a loop bound has a power of -1", ""),
    ("fraction", "y[n] = v[n + «0.5»]", "the number 0.5, which is not an integer", ""),
    ("captured fraction", "y[n] = v[n + «HALF»]", "the number 0.5", ""),
    ("boolean", "y[n] = v[«True»]", "not an integer", ""),
    ("function", "y[n] = v[«abs(n)»]", "a subscript is not affine", "statement of its own"),
    ("extremum on the left", "v[«min(n, 3)»] += 1", "a subscript is not affine", "an `if` leaves out"),
    ("mask", "y[n] = v[«v[n] > 0»]", "a subscript is not affine", "where(mask, .., ..)"),
    ("reducer", "y[n] = v[«argmax[k](x[n, k])»]", "a subscript is not affine", ""),
    ("left", "v[«n * n»] += 1", "multiplies 'n' by 'n'", ""),
    ("loop variable times index", "for t in range(N):\n        v[n] = v[«t * n»]", "multiplies 't' by 'n'", ""),
    ("condition of a reducer", "y[n] = sum[k, «k * n» < 3](x[n, k])", "a reducer's condition multiplies", ""),
    ("data in a reducer", "y[n] = sum[k, «x[n, k]» > 0](x[n, k])", "reads 'x\\[n, k\\]', which is data", "where("),
    ("no comparison", "y[n] = sum[k, not «(k + 1)»](x[n, k])".replace("«(k + 1)»", "(«k + 1»)"), "not a comparison", "i > 0"),
    ("if product", "if «n * k» < 3:\n        x[n, k] = 0", "an `if` condition multiplies", ""),
    ("if no comparison", "if «n»:\n        v[n] = 0", "not a comparison", ""),
    ("bound reads an element", "for k in range(«v[0]»):\n        x[k, 0] = 0", r"a loop bound reads 'v\[0\]', which is data", "row[z]"),
    ("bound reads a scalar", "for t in range(«a»):\n        v[n] = t", "a loop bound reads 'a', which is data", "`int` parameter"),
    ("bound of functions", "for t in range(min(N, «abs(K)»)):\n        v[n] = t", "a loop bound is not affine", ""),
    ("fractional bound", "for t in range(«2.5»):\n        v[n] = t", "the number 2.5", ""),
    ("pad width", "y[n] = pad(v, «a»)[n]", "a pad width reads 'a'", ""),
]  # fmt: skip

CALLS = [
    ("unknown", "«y = dens(x, v)»", "unknown function or program 'dens'", "did you mean 'dense'"),
    ("itself", "«y = f(x, v)»", "'f' calls itself", "write a loop"),
    ("a declaration", "«y = zeros(x, v)»", "unknown function or program 'zeros'", "write a declaration"),
    ("a Python function", "«y = function(x)»", "'function' is a Python builtin_function_or_method, not an einsum", ""),
    ("a tensor", "«y = x(1)»", "'x' is not a program", "square brackets"),
    ("too few arguments", "«y = dense(x)»", r"'dense' takes 2 arguments \(x, v\), not 1", ""),
    ("expression for a tensor", "y = dense(x, «v[n]»)", "'v' is a tensor, and 'v\\[n\\]' is not the name", "first"),
    ("rank", "y = dense(«v», v)", "'v' has 1 dimension, and 'dense' declares 2 for its 'x'", ""),
    ("undefined argument", "y = dense(«z», v)", "undefined name 'z'", ""),
    ("too few targets", "«y = two(a, m)»", "'two' has 2 results, but the statement has 1", ""),
    ("too many targets", "«y, z = dense(x, v)»", "'dense' has 1 results", ""),
    ("a target twice", "«y, y = two(a, m)»", "a target appears twice", ""),
    ("size for a scalar reads", "y, z = two(«v[n]», m)", "'a' is one number, and its argument reads", "0-d"),
    ("fraction for a size", "y, z = two(a, «1.5»)", "the size 'm' has the number 1.5", ""),
    ("tensor for a scalar", "y, z = two(«v», m)", "without subscripts", ""),
    ("target is a size", "«N = dense(x, v)»", "'N' is no tensor and cannot be assigned", ""),
    ("target is a scalar", "«a = dense(x, v)»", "'a' is a scalar parameter", ""),
    ("target of another rank", "«x = dense(x, v)»", "'x' has 2 dimensions, but the result", ""),
    ("written and read", "writes(«v», v)", "writes 'x', and 'v' is passed twice", "copy"),
]  # fmt: skip

GROUPS = {
    "names": NAMES, "loops": LOOPS, "left": LEFT_SIDES, "reducers": REDUCERS, "conditions": CONDITIONS, "affine": NOT_AFFINE,
    "calls": CALLS,
}  # fmt: skip
CASES = [(group, *row) for group, rows in GROUPS.items() for row in rows]


@pytest.mark.parametrize(
    ("group", "statement", "message", "hint"), [(c[0], *c[2:]) for c in CASES], ids=[f"{c[0]}-{c[1]}" for c in CASES]
)
def test_refused(group: str, statement: str, message: str, hint: str) -> None:
    text = program(statement, parameters=PARAMETERS)
    error = NotAffineError if group == "affine" else EinsumSyntaxError
    if message.startswith(("the size 'm' has", "reads 'a'")):
        error = NotAffineError
    check_refused(text, message, hint=hint, error=error, namespace=SCOPE)


SIGNATURES = [
    ("a size that is a tensor", 'v: f32["N"], x: f32["«v»"]', "'v' is a parameter, but no size", "v: int"),
    ("a size that is a scalar", 'a: f32, x: f32["«a»"]', "'a' is a parameter, but no size", ""),
    ("a lower-case size", 'x: f32["«n»"]', "the size 'n' is not upper-case", "write N"),
    ("a reserved size", 'x: f32["«pi»"]', "'pi' is a word of the language", ""),
    ("nothing binds it", 'x: f32["«T»//2"]', "no argument gives the size 'T'", "T: int"),
    ("nor one of two", 'x: f32["«T»+U 2"]', "no argument gives the size 'T'", "2*T"),
    ("isl's word", "«mod: f32»", "a parameter cannot be named 'mod'", "ASCII"),
    ("isl's word in upper case", "«MAX: int»", "a parameter cannot be named 'MAX'", "ASCII"),
    ("not ASCII", "«α: f32»", "a parameter cannot be named 'α'", "ASCII"),
    ("too long", f"«{'a' * 201}: f32»", "a parameter cannot be named", "at most 200"),
]


@pytest.mark.parametrize(
    ("parameters", "message", "hint"), [row[1:] for row in SIGNATURES], ids=[row[0] for row in SIGNATURES]
)
def test_signature_is_refused(parameters: str, message: str, hint: str) -> None:
    check_refused(program("y = 1", "return y", parameters=parameters), message, hint=hint, error=EinsumSyntaxError)


def test_a_program_without_statements_that_write_has_no_result() -> None:
    with pytest.raises(EinsumSyntaxError, match="no result"):
        resolved(program("y[n] = v[n]"))


class Touchy:
    """An object of the enclosing scope whose attributes must not be asked for."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"{name} was asked for")


def test_suggestions_do_not_run_code_of_the_enclosing_scope() -> None:
    scope = {"touchy": Touchy(), "dense": SimpleNamespace(program=DENSE)}
    check_refused(program("«y = dens(v)»", "return y"), "unknown", hint="did you mean 'dense'", namespace=scope)
    check_refused(program("y[n] = v[n] * «touchy»", "return y"), "'touchy' is a Touchy", namespace=scope)


def test_very_long_expressions_are_refused_and_do_not_crash() -> None:
    with pytest.raises(EinsumSyntaxError, match="nested too deeply"):
        resolved(program("y[n] = " + " + ".join(["v[n]"] * 3000), "return y"))
