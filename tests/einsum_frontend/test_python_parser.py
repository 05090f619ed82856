"""Python's own parser, as programs are read: in several threads, beside others that use it."""

import ast
import threading
import warnings
from types import SimpleNamespace

import pytest

from polyml.einsum_frontend import python_parser
from polyml.einsum_frontend.python_parser import python_expression, python_tree, without_warnings


def test_the_trees_of_a_module_and_of_an_expression() -> None:
    assert ast.dump(python_tree("a = 1")) == ast.dump(ast.parse("a = 1"))
    assert ast.unparse(python_expression("a+1")) == "a + 1"


def test_threads_leave_the_filters_of_warnings_as_they_are() -> None:
    """Each would put back what the other one had set, and the process would see no warning any more."""
    before = list(warnings.filters)
    one_is_in, other_comes, one_is_out = threading.Event(), threading.Event(), threading.Event()

    def other() -> None:
        one_is_in.wait()
        other_comes.set()
        with without_warnings():
            one_is_out.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with without_warnings():
        one_is_in.set()
        other_comes.wait()
        thread.join(0.1)
    one_is_out.set()
    thread.join()
    assert list(warnings.filters) == before


def test_depths_that_another_thread_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def parse(text: str, *, mode: str) -> ast.AST:
        calls.append(mode)
        if len(calls) % 2:
            raise SystemError("AST constructor recursion depth mismatch (before=30, after=40)")
        return ast.parse(text, mode=mode)

    there = SimpleNamespace(parse=parse, Module=ast.Module, Expression=ast.Expression)
    monkeypatch.setattr(python_parser, "ast", there)
    assert ast.unparse(python_expression("a+1")) == "a + 1"
    assert ast.unparse(python_tree("a = 1")) == "a = 1"
    assert calls == ["eval", "eval", "exec", "exec"]
