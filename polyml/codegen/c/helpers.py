"""Small C functions for what C's operators do differently: NaN in extrema, division rounding down, and others. Only those that a text uses are in it."""

from __future__ import annotations

import re

from polyml.codegen.half_text import HALF
from polyml.dtypes import DType, bf16, boolean, c64, c128, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

__all__ = ["C_TYPES", "c_type", "helper_texts", "suffix"]

C_TYPES: dict[DType, str] = {
    f32: "float", f64: "double", boolean: "bool",
    i8: "int8_t", i16: "int16_t", i32: "int32_t", i64: "int64_t",
    u8: "uint8_t", u16: "uint16_t", u32: "uint32_t", u64: "uint64_t",
    f16: "uint16_t", bf16: "uint16_t", c64: "c64", c128: "c128",
}  # fmt: skip


COMPLEX_TYPES: dict[str, str] = {
    "c64": "typedef struct { float re, im; } c64; /* laid out like float complex */",
    "c128": "typedef struct { double re, im; } c128; /* laid out like double complex */",
}


def c_type(dtype: DType) -> str:
    """The type of an element in C: half precision as its bits, complex numbers as pairs."""
    return C_TYPES[dtype]


def suffix(dtype: DType) -> str:
    """Of math.h's functions: "f" for float."""
    return "f" if dtype == f32 else ""


_FLOAT = {
    "min": "{T} min_{t}({T} x, {T} y) {{ return x < y || x != x ? x : y; }}",
    "max": "{T} max_{t}({T} x, {T} y) {{ return x > y || x != x ? x : y; }}",
    "relu": "{T} relu_{t}({T} x) {{ return x < 0 ? 0 : x; }}",
    "sigmoid": """\
{T} sigmoid_{t}({T} x)
{{
    {T} z = exp{s}(-fabs{s}(x));
    return (x < 0 ? z : 1) / (1 + z);
}}""",
    "gelu": "{T} gelu_{t}({T} x) {{ return {half} * x * (1 + erf{s}(x * {root})); }}",
    "mod": """\
{T} mod_{t}({T} x, {T} y)
{{
    {T} rest = fmod{s}(x, y);
    if (rest == 0)
        return y != 0 ? copysign{s}(0, y) : rest;
    return (rest < 0) != (y < 0) ? rest + y : rest;
}}""",
    "floordiv": """\
{T} floordiv_{t}({T} x, {T} y)
{{
    {T} rest = fmod{s}(x, y), quotient = (x - rest) / y, below;
    if (y == 0)
        return x / y;
    if (rest != 0 && (rest < 0) != (y < 0))
        quotient -= 1;
    if (quotient == 0)
        return copysign{s}(0, x / y);
    below = floor{s}(quotient);
    return quotient - below > {half} ? below + 1 : below;
}}""",
}
_INTEGER = {
    "min": "{T} min_{t}({T} x, {T} y) {{ return x < y ? x : y; }}",
    "max": "{T} max_{t}({T} x, {T} y) {{ return x > y ? x : y; }}",
    "relu": "{T} relu_{t}({T} x) {{ return x > 0 ? x : 0; }}",
    "bitand": "{T} bitand_{t}({T} x, {T} y) {{ return ({T})(x & y); }}",
    "bitor": "{T} bitor_{t}({T} x, {T} y) {{ return ({T})(x | y); }}",
    "bitxor": "{T} bitxor_{t}({T} x, {T} y) {{ return ({T})(x ^ y); }}",
    "shl": "{T} shl_{t}({T} x, {T} y) {{ return ({T})(({U})y < 8 * sizeof x ? (uint64_t)x << y : 0); }}",
    "pow": """\
{T} pow_{t}({T} x, {T} y)
{{
    {U} result = 1, square = ({U})x, left = ({U})y;
    for (; left != 0; left >>= 1) {{
        if (left & 1)
            result = ({U})(result * square);
        square = ({U})(square * square);
    }}
    return ({T})result;
}}""",
}
_SIGNED = {
    "shr": "{T} shr_{t}({T} x, {T} y) {{ return ({T})(x >> (({U})y < 8 * sizeof x ? y : ({T})(8 * sizeof x - 1))); }}",
    "abs": "{T} abs_{t}({T} x) {{ return ({T})(x < 0 ? -x : x); }}",
    "mod": """\
{T} mod_{t}({T} x, {T} y)
{{
    {T} rest;
    if (y == 0 || y == -1)
        return 0;
    rest = ({T})(x % y);
    return ({T})(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest);
}}""",
    "floordiv": """\
{T} floordiv_{t}({T} x, {T} y)
{{
    if (y == 0)
        return 0;
    if (y == -1)
        return ({T})(0 - ({U})x);
    return ({T})(x / y - (x % y != 0 && (x % y < 0) != (y < 0)));
}}""",
}
_UNSIGNED = {
    "popcount": """\
{T} popcount_{t}({T} x)
{{
    {T} count = 0;
    for (; x != 0; x = ({T})(x & (x - 1)))
        count += 1;
    return count;
}}""",
    "shr": "{T} shr_{t}({T} x, {T} y) {{ return ({T})(y < 8 * sizeof x ? x >> y : 0); }}",
    "mod": "{T} mod_{t}({T} x, {T} y) {{ return ({T})(y == 0 ? 0 : x % y); }}",
    "floordiv": "{T} floordiv_{t}({T} x, {T} y) {{ return ({T})(y == 0 ? 0 : x / y); }}",
}


def _table() -> dict[str, str]:
    table = {}
    for dtype, name in C_TYPES.items():
        if dtype.part != dtype:
            continue
        match dtype.kind:
            case "f":
                rows = _FLOAT
            case "i":
                rows = {**_INTEGER, **_SIGNED}
            case "u":
                rows = {**_INTEGER, **_UNSIGNED}
            case "b" | "c":
                rows = {}
        digits = {"half": "0.5", "root": "0.7071067811865476"}
        numbers = {key: text + suffix(dtype) for key, text in digits.items()}
        for op, text in rows.items():
            body = text.format(T=name, U=f"u{name}".replace("uuint", "uint"), t=dtype.name, s=suffix(dtype), **numbers)
            table[f"{op}_{dtype.name}"] = f"static inline {body}"
    return table | {name: f"static inline {body}" for name, body in HALF.items()}


_TABLE: dict[str, str] = _table()


def helper_texts(used: str) -> list[str]:
    """The definitions of the types and helpers that the text `used` names."""
    called = set(re.findall(r"\b([a-z]+_b?[fiu]\d+)\(", used))
    types = [text for name, text in COMPLEX_TYPES.items() if re.search(rf"\b{name}\b", used)]
    return types + [text for name, text in _TABLE.items() if name in called]
