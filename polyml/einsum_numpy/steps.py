"""A contraction in any semiring as statements of the language: one loop nest, or steps along a path."""

from __future__ import annotations

from collections.abc import Sequence

from polyml.dtypes import DType
from polyml.einsum_numpy.path import Path
from polyml.einsum_numpy.program import WIDE
from polyml.einsum_numpy.semirings import Semiring
from polyml.records import dataclass

__all__ = ["Value", "read", "statements"]


@dataclass(frozen=True, slots=True)
class Value:
    """An operand of a step. text: how it is read; labels: the indices in it; dtype: its element type's name."""

    text: str
    labels: tuple[str, ...]
    dtype: str


def statements(
    semiring: Semiring, values: Sequence[Value], result: Sequence[str], path: Path, dtype: DType, mask: Value | None
) -> str:
    """`out_[result] = the contraction of the values`, in `dtype`.

    Args:
        path: of one step, unless the semiring distributes. mask: what is left out of the last step adds nothing.
    """
    is_reduced = any(label not in result for value in (*values, *([mask] if mask else ())) for label in value.labels)
    form = "bool" if semiring.kind == "bool" else dtype.name
    if is_reduced and semiring.reducer in ("sum", "prod"):
        form = WIDE.get(form, form)
    text, left = "", list(values)
    for number, step in enumerate(path):
        taken = [left[position] for position in sorted(step)]
        left = [value for position, value in enumerate(left) if position not in step]
        if number == len(path) - 1:
            return text + _last(semiring, taken, result, form, dtype, mask)
        needed = {*result, *(label for value in left for label in value.labels), *(mask.labels if mask else ())}
        labels = tuple(dict.fromkeys(label for value in taken for label in value.labels if label in needed))
        made = Value(read(f"t{number}_", labels), labels, form)
        text += _step(semiring, f"t{number}_", labels, taken, form)
        left.append(made)
    raise AssertionError("internal: a path without steps")


def read(name: str, entries: Sequence[str]) -> str:
    """`name[entries]`, or the name of a scalar."""
    return f"{name}[{', '.join(entries)}]" if entries else name


def _product(semiring: Semiring, taken: Sequence[Value], form: str) -> str:
    if form == "bool":
        return semiring.combine([v.text if v.dtype == "bool" else f"({v.text} != 0)" for v in taken])
    return semiring.combine([v.text if v.dtype == form else f"{form}({v.text})" for v in taken])


def _summed(taken: Sequence[Value], kept: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(label for value in taken for label in value.labels if label not in kept))


def _step(semiring: Semiring, name: str, labels: Sequence[str], taken: Sequence[Value], form: str) -> str:
    value, items = _product(semiring, taken, form), ", ".join(_summed(taken, labels))
    if semiring.stable and items:
        return _stable(name, labels, value, items)
    return f"    {read(name, labels)} = {f'{semiring.reducer}[{items}]({value})' if items else value}\n"


def _last(
    semiring: Semiring, taken: Sequence[Value], result: Sequence[str], form: str, dtype: DType, mask: Value | None
) -> str:
    """The step that makes the result, in its own element type."""
    value = _product(semiring, taken, form)
    if mask is not None:
        nothing = Semiring("max", "").identity(dtype) if semiring.stable else semiring.identity(dtype)
        value, taken = f"where({mask.text}, {value}, {nothing})", [*taken, mask]
    items = ", ".join(_summed(taken, result))
    narrowed = form not in ("bool", dtype.name)
    if semiring.stable and items:
        return _stable("out_", result, value, items, dtype.name if narrowed else "")
    if items:
        value = f"{semiring.reducer}[{items}]({value})"
    return f"    {read('out_', result)} = {f'{dtype}({value})' if narrowed else value}\n"


def _stable(name: str, labels: Sequence[str], value: str, items: str, rounded: str = "") -> str:
    """log(sum(exp(value))), relative to the largest term; `rounded` to another element type."""
    peak, base = read(f"peak_{name}", labels), read(f"base_{name}", labels)
    return (
        f"    {peak} = max[{items}]({value})\n"
        f"    {base} = where(abs({peak}) < inf, {peak}, 0)\n"
        f"    {read(name, labels)} = {rounded}({base} + log(sum[{items}](exp({value} - {base}))))\n"
    )
