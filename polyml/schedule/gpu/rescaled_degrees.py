"""How values depend on a maximum: as exponentials that it scales (degree_of), or in proportion (slope_of)."""

from __future__ import annotations

from collections.abc import Mapping

from polyml.expressions import Apply, Const, Expr, Read, map_reads, walk
from polyml.records import dataclass

__all__ = ["Factor", "degree_of", "slope_of"]


@dataclass(frozen=True, slots=True)
class Factor:
    """Tells exponentials that the maximum scales. slopes: filled with c of those that were seen."""

    maximum: Read
    score: Expr
    slopes: set[float]

    def scales(self, exponent: Expr) -> bool:
        """Whether exp(exponent) is divided by exp(c * d) where the maximum grows by d, and bounded since the score is below it."""
        down, up = slope_of(exponent, self.maximum), slope_of(exponent, self.score)
        if down is None or up is None or up <= 0 or down != -up:
            return False
        self.slopes.add(up)
        return True


def degree_of(expr: Expr, known: Mapping[str, int], factor: Factor) -> int | None:
    """How many scaled exponentials are factors of the value, in all of its summands; None where that is not one number."""
    if not any(isinstance(e, Read) and (known.get(e.tensor) or e.tensor == factor.maximum.tensor) for e in walk(expr)):
        return 0
    match expr:
        case Read():
            return known.get(expr.tensor)
        case Apply(op="exp", args=(exponent,)):
            inside = map_reads(exponent, lambda r: Const(0, r.dtype) if r == factor.maximum else r)
            if degree_of(inside, known, factor) != 0:
                return None
            return 1 if factor.scales(exponent) else None
        case Apply(op="cast" | "neg", args=(value,)) if expr.dtype.is_float:
            return degree_of(value, known, factor)
        case Apply(op="mul", args=(one, other)):
            degrees = degree_of(one, known, factor), degree_of(other, known, factor)
            return None if None in degrees else sum(d for d in degrees if d is not None)
        case Apply(op="div", args=(one, other)):
            return degree_of(one, known, factor) if degree_of(other, known, factor) == 0 else None
        case Apply(op="add" | "sub", args=(one, other)):
            degree = degree_of(one, known, factor)
            return degree if degree == degree_of(other, known, factor) else None
        case Apply(op="select", args=(condition, one, other)):
            values = [degree_of(e, known, factor) for e in (one, other) if not (isinstance(e, Const) and e.value == 0)]
            same = len(set(values)) == 1 and degree_of(condition, known, factor) == 0
            return values[0] if same else None
        case _:
            return None


def slope_of(expr: Expr, atom: Expr) -> float | None:
    """By how much the value grows with that part of it, where it is linear in that; else None."""
    if expr == atom:
        return 1.0
    if not any(e == atom for e in walk(expr)):
        return 0.0
    match expr:
        case Apply(op="cast", args=(value,)) if expr.dtype.is_float and value.dtype.is_float:
            return slope_of(value, atom)
        case Apply(op="neg", args=(value,)):
            return _times(slope_of(value, atom), -1.0)
        case Apply(op="add" | "sub" as op, args=(one, other)):
            first, second = slope_of(one, atom), _times(slope_of(other, atom), -1.0 if op == "sub" else 1.0)
            return None if first is None or second is None else first + second
        case Apply(op="mul", args=(value, Const() as factor) | (Const() as factor, value)):
            return _times(slope_of(value, atom), float(factor.value))
        case Apply(op="div", args=(value, Const() as factor)) if factor.value:
            return _times(slope_of(value, atom), 1.0 / float(factor.value))
        case _:
            return None


def _times(slope: float | None, factor: float) -> float | None:
    return None if slope is None else slope * factor
