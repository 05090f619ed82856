"""How the values between the stages are shown: `str` is text for people, and a notebook gets HTML, LaTeX where there are formulas.

A stage's printer registers the forms of its values here, so that the values themselves need not know their printer.
"""

from __future__ import annotations

import html
from functools import singledispatch

__all__ = ["Shown", "counted", "html_of", "latex_of", "text_of"]


def counted(number: int, thing: str) -> str:
    """ "1 region", "2 regions"."""
    return f"{number} {thing}" + "s" * (number != 1)


@singledispatch
def text_of(value: object) -> str:
    """The value as text."""
    return repr(value)


@singledispatch
def html_of(value: object) -> str:
    """The value as HTML: its text, where it has no other form."""
    return f"<pre>{html.escape(text_of(value))}</pre>"


@singledispatch
def latex_of(value: object) -> str | None:
    """The value as LaTeX; None when there is no such form."""
    return None


class Shown:
    """A base of values that have a printer; IPython calls the `_repr_*_` methods, and passes over a LaTeX form that is None."""

    __slots__ = ()

    def __str__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str:
        return html_of(self)

    def _repr_latex_(self) -> str | None:
        return latex_of(self)
