"""Python's own parser, without its warnings (of string escapes, which it gives where the program stands, too), and by one thread at a time.

Filters of warnings belong to the process: of two threads that set them aside at once, the last one to put them back puts back the other's, and no warning is seen any more.
"""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from polyml.forks import wait_at_forks

__all__ = ["python_expression", "python_tree", "without_warnings"]

_lock = threading.RLock()

wait_at_forks(_lock)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Nothing that is read meanwhile warns; other threads that want the same wait."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def python_tree(text: str) -> ast.Module:
    """The tree of a module's text, or whatever Python's parser raises."""
    tree = _tree(text, "exec")
    assert isinstance(tree, ast.Module), "internal: a module of another kind"
    return tree


def python_expression(text: str) -> ast.expr:
    """The tree of an expression's text, or whatever Python's parser raises."""
    tree = _tree(text, "eval")
    assert isinstance(tree, ast.Expression), "internal: an expression of another kind"
    return tree.body


def _tree(text: str, mode: Literal["exec", "eval"]) -> ast.AST:
    with without_warnings():
        try:
            return ast.parse(text, mode=mode)
        except SystemError:
            # Python 3.11 counts the depth of all threads' trees in one place, and may find that it is not what it was.
            return ast.parse(text, mode=mode)
