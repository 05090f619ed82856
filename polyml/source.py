"""Program text and positions in it: what every error message points at."""

from __future__ import annotations

import re
from dataclasses import field

from polyml.records import dataclass

__all__ = ["Source", "Span"]

_LONGEST = 240
"""Characters of a line that an excerpt shows."""


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one program.

    `text` is what was parsed; `filename` and `first_line` (1-based line of the text's first line in that file) place it for the user.
    """

    text: str
    filename: str = "<einsum>"
    first_line: int = 1

    def line(self, number: int) -> str:
        """The text of line `number` (1-based, relative to `text`), without its newline."""
        lines = re.split(r"\r\n|\r|\n", self.text)  # as Python's tokenizer: splitlines knows more line ends
        return lines[number - 1] if 0 < number <= len(lines) else ""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of program text: 1-based lines and 0-based columns (in characters) relative to `source.text`; the end is exclusive."""

    source: Source = field(repr=False)
    line: int
    column: int
    end_line: int
    end_column: int

    def excerpt(self) -> str:
        """`file:line:column`, the source line, and carets under the stretch (its first line only)."""
        text = self.source.line(self.line)
        end = self.end_column if self.end_line == self.line else len(text)
        text, column, end = _shortened(text, self.column, end)
        indent = re.sub(r"[^\t]", " ", text[:column])  # a tab stays one, so that the carets stand right
        carets = indent + "^" * max(1, end - column)
        where = f"{self.source.filename}:{self.source.first_line + self.line - 1}:{self.column + 1}"
        return f"  at {where}\n    {text}\n    {carets}"

    def to(self, other: Span) -> Span:
        """The stretch from the start of this one to the end of `other`."""
        return Span(self.source, self.line, self.column, other.end_line, other.end_column)

    def __str__(self) -> str:
        return f"{self.source.filename}:{self.source.first_line + self.line - 1}:{self.column + 1}"


def _shortened(text: str, column: int, end: int) -> tuple[str, int, int]:
    """A line without what is far from the stretch between two columns, and the columns in what is left."""
    if len(text) <= _LONGEST:
        return text, column, end
    start = min(max(0, column - _LONGEST // 3), len(text) - _LONGEST)
    shown = text[start : start + _LONGEST]
    before, after = "... " if start else "", " ..." if start + _LONGEST < len(text) else ""
    shift = len(before) - start
    return before + shown + after, column + shift, min(end, start + _LONGEST) + shift
