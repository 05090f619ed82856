"""Programs from decorated functions and from text: what is read, and when the source is not to be trusted."""

# ruff: noqa: F722, F821, UP037, RET504 - decorated functions are programs of the language, not Python

from __future__ import annotations

import functools
import linecache
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import polyml
from polyml import dtypes as pm
from polyml.einsum_frontend.printer import format_program
from polyml.einsum_frontend.source import program_from_function, program_from_text
from polyml.errors import EinsumSyntaxError

SCALE = 3.5


def dense(x: pm.f32["N K"], w: pm.f32["K M"], b: pm.f32):
    """One layer."""
    y[n, m] = relu(SCALE * x[n, k] * w[k, m] + b)
    return y


def test_a_function_of_a_module() -> None:
    program = program_from_function(dense)
    assert format_program(program) == (
        'def dense(x: f32["N K"], w: f32["K M"], b: f32):\n'
        "    y[n, m] = relu(sum[k](3.5 * x[n, k] * w[k, m]) + b)\n"
        "    return y\n"
    )
    assert program.captured == {"SCALE": 3.5}
    assert program.source.filename == __file__
    assert program.source.first_line == dense.__code__.co_firstlineno
    line = program.body[0].span.line + program.source.first_line - 1
    assert linecache.getline(__file__, line).lstrip().startswith("y[n, m] = relu")


def make_in_closure() -> Callable[..., object]:
    width = 2

    class Layers:
        def second(x: pm.f32["N K"], y: pm.f32["N"]):
            y[n] += width * SCALE * x[n, k] * x[n, k]

    return Layers.second


def test_a_closure_in_a_class_in_a_function() -> None:
    program = program_from_function(make_in_closure())
    assert program.captured == {"width": 2, "SCALE": 3.5}
    assert "y[n] += sum[k](2 * 3.5 * x[n, k] * x[n, k])" in format_program(program)


def test_a_cell_that_is_assigned_later_is_undefined() -> None:
    def program(x: pm.f32["N"]):
        x[n] *= later

    with pytest.raises(EinsumSyntaxError, match="undefined name 'later'"):
        program_from_function(program)
    later = 1


def test_errors_point_into_the_file() -> None:
    def program(x: pm.f32["N"]):
        x[n] = x[n] @ 1

    with pytest.raises(EinsumSyntaxError, match="write the indices") as caught:
        program_from_function(program)
    line = program.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}:16" in str(caught.value)
    assert str(caught.value).splitlines()[3] == " " * 19 + "^^^^^^^^"


def test_other_programs_of_the_enclosing_scope() -> None:
    layer = SimpleNamespace(program=program_from_function(dense))

    def network(x: pm.f32["N K"], w: pm.f32["K K"]):
        h = layer(x, w, 0.5)
        y = layer(h, w, 0.25)
        return y

    assert list(program_from_function(network).programs) == ["layer"]


def test_text_with_a_namespace() -> None:
    program = program_from_text("def f(x: f32['N']):\n    x[n] *= C\n", {"C": 4}, filename="here")
    assert program.captured == {"C": 4}
    assert program.source.filename == "here"


@pytest.mark.parametrize(
    ("given", "message"),
    [(len, "one of type builtin"), (lambda x: x, "not a lambda"), (3, "one of type int")],
)
def test_only_functions_are_decorated(given: Callable[..., object], message: str) -> None:
    with pytest.raises(EinsumSyntaxError, match=message):
        program_from_function(given)


def numpys_names(x: pm.f32["N"]):
    y[n] = np.exp(x[n])
    return y


async def coroutine(x: pm.f32["N"]):
    y[n] = 2 * x[n]
    return y


@functools.wraps(numpys_names)
def wrapped(*args: object) -> None:
    numpys_names(*args)


class Class:
    pass


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        (
            numpys_names,
            "'np.exp' is not in the language",
            "write exp",
        ),  # Python compiles a call into an imported module otherwise
        (coroutine, "a program is not async", "write `def`"),
        (wrapped, "another decorator has put a function of its own in the place of 'numpys_names'", "directly above"),
        (Class, "'Class' is a class", "a program is one function"),
        (polyml.einsum('def f(x: f32["N"]):\n    x[n] = 2 * x[n]\n'), "'f' is an einsum program already", "once"),
    ],
)
def test_what_is_wrong_with_a_function_is_said(given: Callable[..., object], message: str, hint: str) -> None:
    with pytest.raises(EinsumSyntaxError, match=message) as caught:
        program_from_function(given)
    assert hint in (caught.value.hint or "")


def test_a_class_as_text() -> None:
    with pytest.raises(EinsumSyntaxError, match="the text is not a function"):
        polyml.einsum("class f:\n    pass\n")


def test_a_function_without_source() -> None:
    namespace: dict[str, Callable[..., object]] = {}
    exec("def f(x: 'int'): return x", namespace)
    with pytest.raises(EinsumSyntaxError, match="the source of 'f' cannot be read") as caught:
        program_from_function(namespace["f"])
    assert "as text" in (caught.value.hint or "")


ORIGINAL = """
from polyml.dtypes import f32

def f(x: f32["N K"]):
    y: f32["N"] = 0
    y[n] += 2 * x[n, k]
    return y
"""
EDITS = [
    ("another constant", "2 * x", "3 * x"),
    ("another operator", "+=", "-="),
    ("another index", "x[n, k]", "x[n, j]"),
    ("another order", "2 * x[n, k]", "x[n, k] * 2"),
    ("another shape of a parameter", '"N K"', '"N 4"'),
    ("another type of a parameter", 'f32["N K"]', 'f64["N K"]'),
    ("another result", "return y", "return x"),
    ("a line less", "    return y\n", ""),
    ("a line more", "    y: f32", "    z = 1\n    y: f32"),
    ("a moved line", "    y[n]", "\n    y[n]"),
    ("no function", 'def f(x: f32["N K"]):', "class f:"),
    ("not Python", "2 * x", "2 * ) x"),
    ("a dtype more", "    y: f32", "     y: f32"),
]


@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
@pytest.mark.parametrize(("old", "new"), [row[1:] for row in EDITS], ids=[row[0] for row in EDITS])
def test_an_edited_file_is_noticed(tmp_path: Path, old: str, new: str, future: str) -> None:
    path = tmp_path / "edited.py"
    module = types.ModuleType("edited")
    path.write_text(future + ORIGINAL)
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), module.__dict__)
    assert "y[n] += sum[k](2 * x[n, k])" in format_program(program_from_function(module.f))
    assert old in ORIGINAL
    path.write_text(future + ORIGINAL.replace(old, new))
    linecache.clearcache()
    with pytest.raises(EinsumSyntaxError, match=r"is not what Python compiled|cannot be read") as caught:
        program_from_function(module.f)
    assert "as text" in (caught.value.hint or "")


def test_lines_above_may_change(tmp_path: Path) -> None:
    path = tmp_path / "shifted.py"
    path.write_text(ORIGINAL)
    module = types.ModuleType("shifted")
    exec(compile(ORIGINAL, str(path), "exec", dont_inherit=True), module.__dict__)
    sys.modules.pop("shifted", None)
    linecache.clearcache()
    assert program_from_function(module.f).source.first_line == 4


def test_long_lines_are_shown_around_what_is_wrong() -> None:
    text = f'def f(x: f32["N"]):\n    y[n] = {" + ".join(["x[n]"] * 150)} + oops + {" + ".join(["x[n]"] * 150)}\n    return y\n'
    with pytest.raises(EinsumSyntaxError, match="undefined name 'oops'") as caught:
        polyml.einsum(text)
    _, place, line, carets, *_ = str(caught.value).split("\n")
    assert place.endswith(":2:1062")
    assert len(line) < 260
    assert line[carets.index("^") : carets.rindex("^") + 1] == "oops"
    assert line.strip().startswith("... ")
    assert line.endswith(" ...")
    at_the_end = text.replace("oops", "x[n]").replace("\n    return", " + oops\n    return")
    with pytest.raises(EinsumSyntaxError) as caught:
        polyml.einsum(at_the_end)
    line, carets = str(caught.value).split("\n")[2:4]
    assert line.endswith("oops")
    assert carets.rindex("^") + 1 == len(line)
