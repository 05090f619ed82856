"""Programs whose expected error stretch is marked: `y[n] = «x[n] & 1»`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.printer import format_program
from polyml.einsum_frontend.resolve import resolve
from polyml.einsum_frontend.syntax import Program
from polyml.errors import PolymlError
from polyml.source import Source


def resolved(text: str, namespace: Mapping[str, object] | None = None) -> Program:
    """The resolved program in `text`."""
    return resolve(parse(Source(text)), namespace or {})


def program(*lines: str, parameters: str = 'x: f32["N K"], w: f32["K M"], b: f32["M"], v: f32["N"]') -> str:
    """A program with `lines` as its body (one string per line, further indentation as written)."""
    return "\n".join([f"def f({parameters}):", *(f"    {line}" for line in lines)]) + "\n"


def printed(*lines: str, parameters: str | None = None, namespace: Mapping[str, object] | None = None) -> list[str]:
    """The body of the resolved program, printed, without the outer indentation."""
    text = program(*lines) if parameters is None else program(*lines, parameters=parameters)
    return [line[4:] for line in format_program(resolved(text, namespace)).splitlines()[1:]]


def check_refused(
    text: str,
    message: str,
    *,
    hint: str = "",
    error: type[PolymlError] = PolymlError,
    namespace: Mapping[str, object] | None = None,
) -> None:
    """Asserts that the program is refused at exactly the stretch between « and », with this message and a hint that contains `hint`."""
    assert text.count("«") == 1, "mark one stretch"
    assert text.count("»") == 1, "mark one stretch"
    before, rest = text.split("«")
    stretch, after = rest.split("»")
    with pytest.raises(error, match=message) as caught:
        resolved(before + stretch + after, namespace)
    span = caught.value.span
    assert span is not None, str(caught.value)
    start = (before.count("\n") + 1, len(before) - before.rfind("\n") - 1)
    upto = before + stretch
    end = (upto.count("\n") + 1, len(upto) - upto.rfind("\n") - 1)
    assert ((span.line, span.column), (span.end_line, span.end_column)) == (start, end), str(caught.value)
    assert hint in (caught.value.hint or ""), str(caught.value)
