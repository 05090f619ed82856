"""From positions of Python's `ast` to Spans of a program.

`ast` counts lines from 1 and columns in UTF-8 bytes; a Span counts columns in characters. Text that was parsed apart from its surroundings (after an added line,
or as one entry of a shape string) is shifted back to where it stands.
"""

from __future__ import annotations

import ast
import re

from polyml.records import dataclass
from polyml.source import Source, Span

__all__ = ["Positions", "split_lines"]


def split_lines(text: str) -> list[str]:
    """The lines of `text` as Python's tokenizer counts them (`str.splitlines` also splits at form feeds and the like)."""
    return re.split(r"\r\n|\r|\n", text)


@dataclass(frozen=True, slots=True)
class Positions:
    """Maps nodes of one `ast.parse` call to spans of `source`.

    lines: the lines that were given to `ast`. line_shift, column_shift: what to add to get to lines and columns of `source.text`
    (the column shift is in characters). fixed: when set, every node gets this span (text whose characters do not stand in the source one by one).
    """

    source: Source
    lines: tuple[str, ...]
    line_shift: int = 0
    column_shift: int = 0
    fixed: Span | None = None

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> Span:
        """Where `node` stands."""
        end_line = node.lineno if node.end_lineno is None else node.end_lineno
        end_column = node.col_offset + 1 if node.end_col_offset is None else node.end_col_offset
        return self.stretch(
            node.lineno,
            self.characters(node.lineno, node.col_offset),
            end_line,
            self.characters(end_line, end_column),
        )

    def stretch(self, line: int, column: int, end_line: int, end_column: int) -> Span:
        """The span of a stretch given in `ast`'s lines and in characters."""
        if self.fixed is not None:
            return self.fixed
        return Span(
            self.source,
            line + self.line_shift,
            column + self.column_shift,
            end_line + self.line_shift,
            end_column + self.column_shift,
        )

    def characters(self, line: int, byte_column: int) -> int:
        """A byte column of `ast` in characters."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return byte_column if text.isascii() else len(text.encode()[:byte_column].decode(errors="replace"))
