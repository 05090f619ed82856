"""The text of functions that take NumPy's integers of any width, as entry points need them."""

from __future__ import annotations

import numpy as np

__all__ = ["INTEGERS", "emit_integers"]

INTEGERS = {
    f"{'u' if np.dtype(code).kind == 'u' else ''}integer_{code.lower()}": np.dtype(code).type for code in "bBhHiIlLqQ"
}
"""NumPy's types, one for each of C's, of which two may have one width; they are globals `object_integer_b` etc. of the module."""


def emit_integers() -> str:
    """`@numpy_integer`: 0 for anything else, 1 for a signed and 2 for an unsigned number, whose 64 bits are stored."""
    lines = [f"@object_{name} = global ptr null" for name in INTEGERS]
    lines += ["define internal i8 @numpy_integer(ptr %object, ptr %to) {", "  br label %integer_b"]
    after = dict(zip(INTEGERS, (*list(INTEGERS)[1:], "no"), strict=True))
    for name, number in INTEGERS.items():
        bits = 8 * np.dtype(number).itemsize
        lines += [
            f"{name}:",
            f"  %{name}.type = load ptr, ptr @object_{name}",
            f"  %{name}.is = call i1 @is_a(ptr %object, ptr %{name}.type)",
            f"  br i1 %{name}.is, label %{name}.take, label %{after[name]}",
            f"{name}.take:",
            f"  %{name}.p = getelementptr i8, ptr %object, i64 {{scalar}}",
            f"  %{name}.value = load i{bits}, ptr %{name}.p",
            f"  %{name}.wide = {_widened(name, bits)}",
            f"  store i64 %{name}.wide, ptr %to",
            f"  ret i8 {2 if name.startswith('u') else 1}",
        ]
    return "\n".join(
        [*lines, "no:", "  ret i8 0", "}", _held("integer_i64", 1, 2), _held("integer_u64", 2, 1), _AS_DOUBLE]
    )


def _widened(name: str, bits: int) -> str:
    if bits == 64:
        return f"add i64 %{name}.value, 0"
    return f"{'zext' if name.startswith('u') else 'sext'} i{bits} %{name}.value to i64"


def _held(name: str, own: int, other: int) -> str:
    """`@integer_i64` or `@integer_u64`: whether it is a number that one holds, which is stored. own: the kind that always fits; other: that which does where the highest bit is none."""
    return f"""
define internal i1 @{name}(ptr %object, ptr %to) {{
  %kind = call i8 @numpy_integer(ptr %object, ptr %to)
  %own = icmp eq i8 %kind, {own}
  %other = icmp eq i8 %kind, {other}
  %value = load i64, ptr %to
  %small = icmp sge i64 %value, 0
  %fits = and i1 %other, %small
  %good = or i1 %own, %fits
  ret i1 %good
}}
"""


_AS_DOUBLE = """
; One as a double.
define internal i1 @integer_f64(ptr %object, ptr %to) {
  %kind = call i8 @numpy_integer(ptr %object, ptr %to)
  %none = icmp eq i8 %kind, 0
  br i1 %none, label %no, label %yes
yes:
  %value = load i64, ptr %to
  %as.signed = sitofp i64 %value to double
  %as.unsigned = uitofp i64 %value to double
  %signed = icmp eq i8 %kind, 1
  %double = select i1 %signed, double %as.signed, double %as.unsigned
  store double %double, ptr %to
  ret i1 true
no:
  ret i1 false
}

"""
