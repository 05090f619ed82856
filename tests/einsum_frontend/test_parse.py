"""Programs read from text: every construct, and every position."""

from __future__ import annotations

import textwrap

import pytest

from polyml.dtypes import f32, i64
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.printer import format_expression, format_program
from polyml.einsum_frontend.syntax import (
    Assign,
    Boolean,
    CallProgram,
    Compare,
    Declare,
    ForLoop,
    IfBlock,
    Name,
    Number,
    Pad,
    Program,
    Reducer,
    Return,
    Statement,
    Subscript,
    Unary,
)
from polyml.errors import EinsumSyntaxError
from polyml.source import Source, Span

from .marked import program


def covered(span: Span) -> str:
    """The source text under a span of one line."""
    assert span.line == span.end_line
    return span.source.line(span.line)[span.column : span.end_column]


def parsed(*lines: str) -> tuple[Statement, ...]:
    return parse(Source(program(*lines))).body


def test_parameters() -> None:
    text = """def f(x: f32["N K"], y: pm.f32["T + 1, B, 4"], z: i64["2*N-1"], s: f32, n: int):\n    return x"""
    x, y, z, s, n = parse(Source(text)).parameters
    assert [p.name for p in (x, y, z, s, n)] == ["x", "y", "z", "s", "n"]
    assert (x.dtype, z.dtype, s.dtype, n.dtype) == (f32, i64, f32, None)
    assert s.shape is None
    assert n.is_size
    assert not s.is_size
    assert x.shape is not None
    assert [covered(entry.span) for entry in x.shape] == ["N", "K"]
    assert y.shape is not None
    assert [covered(entry.span) for entry in y.shape] == ["T + 1", "B", "4"]
    assert z.shape is not None
    assert [covered(entry.span) for entry in z.shape] == ["2*N-1"]
    assert covered(x.span) == 'x: f32["N K"]'


@pytest.mark.parametrize("quote", ["'", '"', '"""', "r'", "u'"])
def test_positions_in_shape_strings_with_any_quotes(quote: str) -> None:
    (x,) = parse(
        Source(f"def f(x: f32[{quote}N  K+1{quote[-3:] if len(quote) == 3 else quote[-1]}]): return x")
    ).parameters
    assert x.shape is not None
    assert [covered(entry.span) for entry in x.shape] == ["N", "K+1"]


def test_shape_string_whose_characters_are_elsewhere_gets_the_whole_literal() -> None:
    (x,) = parse(Source('def f(x: f32["N" " K"]): return x')).parameters
    assert x.shape is not None
    assert [covered(entry.span) for entry in x.shape] == ['"N" " K"'] * 2


def test_a_comma_at_the_end_separates() -> None:
    (x,) = parse(Source('def f(x: f32["N + 1,"]): return x')).parameters
    assert x.shape is not None
    assert len(x.shape) == 1


def test_statements() -> None:
    body = parsed(
        '"""What it does."""',
        'y: f32["N K"]',
        "z: f32 = -1.5",
        "y[n, k] = x[n, k]",
        "s = 1",
        "y[n, k] += 1",
        "a, b = g(x, 2, N)",
        "g(y)",
        "return y, s",
    )
    kinds = [Declare, Declare, Assign, Assign, Assign, CallProgram, CallProgram, Return]
    assert [type(statement) for statement in body] == kinds
    match body:
        case [Declare(fill=None), Declare(shape=None, fill=Unary()), Assign(), Assign(subscripts=None), *rest]:
            match rest:
                case [Assign(op="+="), CallProgram(targets=("a", "b"), callee="g"), CallProgram(targets=()), Return()]:
                    return
    raise AssertionError(body)


def test_updates() -> None:
    body = parsed(*(f"y[n] {op} 1" for op in ("+=", "-=", "*=", "/=")))
    assert [statement.op for statement in body if isinstance(statement, Assign)] == ["+=", "-=", "*=", "/="]


@pytest.mark.parametrize(
    ("bounds", "expected"), [("T", ("0", "T", "1")), ("1, T", ("1", "T", "1")), ("T, 0, -1", ("T", "0", "-1"))]
)
def test_range_has_one_to_three_arguments(bounds: str, expected: tuple[str, str, str]) -> None:
    (loop,) = parsed(f"for t in range({bounds}):", "    y[n] = v[n]")
    assert isinstance(loop, ForLoop)
    assert tuple(map(format_expression, (loop.start, loop.stop, loop.step))) == expected


def test_if_elif_else_nest() -> None:
    (block,) = parsed("if n > 1:", "    y[n] = 1", "elif n > 0:", "    y[n] = 2", "else:", "    y[n] = 3")
    assert isinstance(block, IfBlock)
    (inner,) = block.orelse
    assert isinstance(inner, IfBlock)
    assert len(inner.orelse) == 1


def test_reducers_and_chains() -> None:
    (statement,) = parsed("y[n] = max[r < 3, s](x[n, r + s]) + any[k, 0 <= k < n and not k == 2](x[n, k])")
    assert isinstance(statement, Assign)
    first, second = statement.value.left, statement.value.right  # type: ignore[union-attr]
    assert isinstance(first, Reducer)
    assert (first.kind, len(first.items)) == ("max", 2)
    assert isinstance(first.items[0], Compare)
    assert isinstance(second, Reducer)
    assert isinstance(second.items[1], Boolean)


@pytest.mark.parametrize(
    ("widths", "expected"),
    [("((0, 1), (2, 3))", [0, 1, 2, 3]), ("1", [1, 1, 1, 1]), ("(1, 2)", [1, 2, 1, 2]), ("((1, 2),)", [1, 2, 1, 2])],
)
def test_pad_takes_numpys_widths(widths: str, expected: list[int]) -> None:
    (statement,) = parsed(f"y[n, k] = pad(x, {widths})[n, k]")
    assert isinstance(statement, Assign)
    assert isinstance(statement.value, Subscript)
    assert isinstance(statement.value.tensor, Pad)
    ends = [end for pair in statement.value.tensor.widths for end in pair]
    assert [end.value for end in ends if isinstance(end, Number)] == expected


def test_dtypes_are_functions_with_or_without_a_module() -> None:
    assert len(parsed("y[n] = f64(v[n]) + pm.i32(v[n])")) == 1


def test_a_plus_sign_is_dropped() -> None:
    (statement,) = parsed("s = +N")
    assert isinstance(statement, Assign)
    assert isinstance(statement.value, Name)


def same(one: Program, other: Program) -> bool:
    return format_program(one) == format_program(other)


@pytest.mark.parametrize("prefix", ["    ", "\t", "            "])
def test_indented_text_keeps_its_columns(prefix: str) -> None:
    text = "@pm.einsum\n" + program("y[n] = v[n] * 2", "# a comment", "return y")
    indented = textwrap.indent(text, prefix)
    plain, moved = parse(Source(text)), parse(Source(indented))
    assert same(plain, moved)
    for a, b in zip(plain.body, moved.body, strict=True):
        assert (b.span.line, b.span.column) == (a.span.line, a.span.column + len(prefix))
        assert covered(b.span) == covered(a.span)


def test_columns_are_characters() -> None:
    (statement, _) = parse(Source('def f(x: f32["N"]):\n    äö[n] = x[n] * x[n]  # ü\n    return äö\n')).body
    assert isinstance(statement, Assign)
    assert covered(statement.target_span) == "äö[n]"
    assert covered(statement.value.span) == "x[n] * x[n]"


def test_text_before_the_function_is_blank_or_comment() -> None:
    assert parse(Source("\n\n# hello\n  # there\ndef f(x: f32['N']):\n    return x\n")).name == "f"


REFUSED_TEXTS = [
    ("", "there is no program", (1, 0)),
    ("x = 1", "the text is not a function", (1, 0)),
    ("async def f(): pass", "not async", (1, 0)),
    ("def f():\n    return x\ny = 1", "goes on after the function", (3, 0)),
    ("    def f():\n        return x\n    y = 1", "goes on after the function", (3, 4)),
    ("def f() -> int:\n    return x", "no return annotation", (1, 11)),
    ('def f():\n    """Nothing."""', "no statements", (2, 4)),
    ("def f():\n    y = (x\n", "not Python syntax: '\\(' was never closed", (2, 8)),
    ("    def f():\n        y = 'é' + * 2", "not Python syntax: invalid syntax", (2, 18)),
    ("def f():\n    y = \0", "not Python syntax", (1, 0)),
    ("def f():\n    return " + "(" * 250 + "x" + ")" * 250, "not Python syntax: too many nested", (2, 211)),
    ("def f():\n    y = " + "-" * 5000 + "x", "nested too deeply", (1, 0)),
    ("def f():\n    y = " + "x**" * 5000 + "x", "nested too deeply", (1, 0)),
    ("def f():\n    y = " + "x + " * 5000 + "x", "nested too deeply", (1, 0)),
]


@pytest.mark.parametrize(("text", "message", "position"), REFUSED_TEXTS, ids=range(len(REFUSED_TEXTS)))
def test_text_is_refused(text: str, message: str, position: tuple[int, int]) -> None:
    with pytest.raises(EinsumSyntaxError, match=message) as caught:
        parse(Source(text))
    span = caught.value.span
    assert span is not None
    assert (span.line, span.column) == position, str(caught.value)


def test_errors_place_the_program_in_its_file() -> None:
    with pytest.raises(EinsumSyntaxError) as caught:
        parse(Source("def f():\n    while x: pass\n", "model.py", 41))
    assert "at model.py:42:5" in str(caught.value)
    assert str(caught.value).splitlines()[2:4] == ["        while x: pass", "        ^^^^^^^^^^^^^"]
