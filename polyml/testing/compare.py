"""Comparison of computed arrays with expected ones: exact for integers and bool, scaled by the length of the reductions for floats."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polyml.dtypes import DType, from_numpy

__all__ = ["assert_close", "tolerance"]

_SLACK = 8.0  # units of rounding that any elementwise chain may use up


_EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "c64": 2.0**-23, "f64": 2.0**-52, "c128": 2.0**-52}


def tolerance(dtype: np.dtype[np.generic], reduction_length: int) -> float:
    """The relative error to allow: `eps * (8 + 2 * reduction_length)`; the worst case of a sum of n terms in any order is about `n * eps`.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 4.2.
    """
    return _EPSILON[from_numpy(dtype).name] * (_SLACK + 2.0 * max(1, reduction_length))


def assert_close(
    actual: npt.ArrayLike,
    expected: npt.ArrayLike,
    reduction_length: int = 1,
    dtype: DType | None = None,
    *,
    computed_in: DType | None = None,
    scale: float = 0.0,
) -> None:
    """Raises AssertionError unless the two agree.

    Args:
        actual, expected: arrays of one shape; `actual` of `dtype` (default: that of `expected`).
        reduction_length: how many terms were summed into one element, over all statements on the way to it.
        computed_in: the narrower type that parts of it were computed in.
        scale: the size of the terms, where sums cancel; the largest finite magnitude in `expected` if that is larger. Errors count relative to it.

    NaN must stand where it is expected, and so must infinities; signed zeros are equal. Of complex numbers each part is compared.
    """
    a, e = np.asarray(actual), np.asarray(expected)
    wanted = e.dtype if dtype is None else dtype.numpy
    assert a.dtype == wanted, f"dtype {a.dtype}, expected {wanted}"
    assert a.shape == e.shape, f"shape {a.shape}, expected {e.shape}"
    if not (a.dtype.kind in "fc" or a.dtype.name == "bfloat16"):
        _report(a != e, a, e, "exact")
        return
    limit = tolerance(a.dtype if computed_in is None else computed_in.numpy, reduction_length)
    if a.dtype.kind == "c":
        a, e = (np.stack([np.real(v), np.imag(v)], axis=-1) for v in (a, e))
    finite = np.isfinite(e)
    size = max(scale, float(np.max(np.abs(e[finite].astype(np.longdouble)), initial=0)))
    with np.errstate(invalid="ignore", over="ignore"):
        same = (a == e) | (np.isnan(a) & np.isnan(e))
        near = finite & np.isfinite(a) & (np.abs(a.astype(np.longdouble) - e.astype(np.longdouble)) <= limit * size)
    _report(~(same | near), a, e, f"error above {limit:.3g} * {size:.6g}")


def _report(
    wrong: npt.NDArray[np.bool_], actual: npt.NDArray[np.generic], expected: npt.NDArray[np.generic], rule: str
) -> None:
    """Raises AssertionError with the first wrong elements, if there are any."""
    where = np.argwhere(wrong)
    if len(where) == 0:
        return
    shown = [
        f"  [{', '.join(map(str, at))}]: {actual[tuple(at)]!r}, expected {expected[tuple(at)]!r}" for at in where[:5]
    ]
    raise AssertionError("\n".join([f"{len(where)} of {wrong.size} elements are wrong ({rule}):", *shown]))
