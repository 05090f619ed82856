"""Device functions that kernels call, as text per element type; a module holds those that its kernels use.

Meaning is NumPy's: NaN wins in min and max, integer division by zero is zero, remainders have the divisor's sign.
"""

from __future__ import annotations

from collections.abc import Iterable

from polyml.codegen.cuda.text.types import c_type
from polyml.codegen.half_text import HALF
from polyml.dtypes import DType

__all__ = ["HELPERS", "helper_name", "helpers_text"]

_MIN = "__device__ __forceinline__ {T} pm_min_{t}({T} a, {T} b) {{ return {nan}a < b ? a : b; }}"
_MAX = "__device__ __forceinline__ {T} pm_max_{t}({T} a, {T} b) {{ return {nan}a > b ? a : b; }}"

_INT_FLOORDIV = """\
__device__ __forceinline__ {T} pm_floordiv_{t}({T} a, {T} b) {{
  if (b == 0) return 0;
  if ({minus_one}) return ({T})(({U})0 - ({U})a);
  const {T} q = ({T})(a / b);
  return ({T})(q - (({T})(a - q * b) != 0 && ((a < 0) != (b < 0))));
}}"""
_INT_MOD = """\
__device__ __forceinline__ {T} pm_mod_{t}({T} a, {T} b) {{
  if (b == 0 || {minus_one}) return 0;
  const {T} r = ({T})(a % b);
  return r != 0 && ((r < 0) != (b < 0)) ? ({T})(r + b) : r;
}}"""
_FLOAT_MOD = """\
__device__ __forceinline__ {T} pm_mod_{t}({T} a, {T} b) {{
  const {T} r = fmod{f}(a, b);
  if (r == 0 && b != 0) return copysign{f}(({T})0, b);
  return r != 0 && ((b < 0) != (r < 0)) ? r + b : r;
}}"""
_FLOAT_FLOORDIV = """\
__device__ __forceinline__ {T} pm_floordiv_{t}({T} a, {T} b) {{
  if (b == 0) return a / b;
  const {T} r = fmod{f}(a, b);
  {T} q = (a - r) / b;
  if (r != 0 && ((b < 0) != (r < 0))) q -= 1;
  if (q == 0) return copysign{f}(({T})0, a / b);
  const {T} whole = floor{f}(q);
  return q - whole > ({T})0.5 ? whole + 1 : whole;
}}"""
_UNSIGNED_FLOORDIV = "__device__ __forceinline__ {T} pm_floordiv_{t}({T} a, {T} b) {{ return b == 0 ? 0 : a / b; }}"
_UNSIGNED_MOD = "__device__ __forceinline__ {T} pm_mod_{t}({T} a, {T} b) {{ return b == 0 ? 0 : a % b; }}"
_SHL = """\
__device__ __forceinline__ {T} pm_shl_{t}({T} a, {T} b) {{
  return ({U})b < 8 * sizeof(a) ? ({T})(({U})a << b) : ({T})0;
}}"""
_INT_SHR = """\
__device__ __forceinline__ {T} pm_shr_{t}({T} a, {T} b) {{
  return ({T})(a >> (({U})b < 8 * sizeof(a) ? b : ({T})(8 * sizeof(a) - 1)));
}}"""
_UNSIGNED_SHR = """\
__device__ __forceinline__ {T} pm_shr_{t}({T} a, {T} b) {{
  return b < 8 * sizeof(a) ? ({T})(a >> b) : ({T})0;
}}"""
_POPCOUNT = """\
__device__ __forceinline__ {T} pm_popcount_{t}({T} a) {{
  return ({T})__popcll(a);
}}"""
_INT_POW = """\
__device__ __forceinline__ {T} pm_pow_{t}({T} a, {T} b) {{
  {U} result = 1, square = ({U})a;
  for (unsigned long long left = ({U})b; left != 0; left >>= 1) {{
    if (left & 1) result *= square;
    square *= square;
  }}
  return ({T})result;
}}"""
_SIGMOID = """\
__device__ __forceinline__ {T} pm_sigmoid_{t}({T} x) {{
  const {T} z = exp{f}(-fabs{f}(x));
  return (x < 0 ? z : 1) / (1 + z);
}}"""
_GELU = """\
__device__ __forceinline__ {T} pm_gelu_{t}({T} x) {{
  return ({T})0.5 * x * (1 + erf{f}(x * ({T})0.7071067811865476));
}}"""
_BEATS = """\
__device__ __forceinline__ bool pm_{name}_{t}({T} x, long long i, {T} y, long long j) {{
  // whether (x, i) replaces (y, j): the better value, NaN first, then the smaller index; -1 marks no value
  if (i == -1 || j == -1) return j == -1 && i != -1;
  const bool x_nan = x != x, y_nan = y != y;
  if (x_nan != y_nan) return x_nan;
  return x_nan || x == y ? i < j : x {order} y;
}}"""
_BLOCK = """\
__device__ {T} pm_block_{op}_{t}({T} value, {T}* scratch) {{
  // combines the values of all threads of a block: within warps, then across; every thread gets the result
  const int thread = threadIdx.x, warps = blockDim.x / 32;
  for (int distance = 16; distance > 0; distance /= 2) {{
    const {T} other = ({T})__shfl_xor_sync(0xffffffffu, {shuffled}value, distance);
    value = {combine};
  }}
  if (warps == 1) return value;
  if (thread % 32 == 0) scratch[thread / 32] = value;
  __syncthreads();
  value = scratch[0];
  for (int warp = 1; warp < warps; ++warp) {{
    const {T} other = scratch[warp];
    value = {combine};
  }}
  __syncthreads();
  return value;
}}"""
_BLOCK_PAIR = """\
__device__ void pm_block_{name}_{t}({T}& value, long long& index, {T}* scratch, long long* indices) {{
  // the best (value, index) of all threads of a block
  const int thread = threadIdx.x, warps = blockDim.x / 32;
  for (int distance = 16; distance > 0; distance /= 2) {{
    const {T} other = ({T})__shfl_xor_sync(0xffffffffu, {shuffled}value, distance);
    const long long its_index = __shfl_xor_sync(0xffffffffu, index, distance);
    if (pm_{name}_{t}(other, its_index, value, index)) {{ value = other; index = its_index; }}
  }}
  if (warps == 1) return;
  if (thread % 32 == 0) {{ scratch[thread / 32] = value; indices[thread / 32] = index; }}
  __syncthreads();
  value = scratch[0];
  index = indices[0];
  for (int warp = 1; warp < warps; ++warp) {{
    if (pm_{name}_{t}(scratch[warp], indices[warp], value, index)) {{ value = scratch[warp]; index = indices[warp]; }}
  }}
  __syncthreads();
}}"""
_ATOMIC_ADD = """\
__device__ __forceinline__ void pm_{name}_{t}({T}* target, {T} value) {{
  atomicAdd(({B}*)target, ({B})value);
}}"""
_ATOMIC = """\
__device__ __forceinline__ void pm_{name}_{t}({T}* target, {T} other) {{
  // combines the value with the target's, whatever others do to that meanwhile
  union {{ {B} bits; {T} value; }} now, next;
  now.bits = *(volatile {B}*)target;
  for (;;) {{
    const {T} value = now.value;
    next.value = {combine};
    const {B} before = atomicCAS(({B}*)target, now.bits, next.bits);
    if (before == now.bits) return;
    now.bits = before;
  }}
}}"""
_OFFSET = """\
__device__ __forceinline__ long long pm_offset(long long id, long long first, long long count) {
  // the smallest d >= 0 with (first + d) % count == id
  const long long d = (id - first) % count;
  return d < 0 ? d + count : d;
}"""
_FLOOR = """\
__device__ __forceinline__ long long pm_floor(long long a, long long b) {
  // a / b rounded down, b > 0
  return a / b - (a % b < 0);
}"""

_COMBINE = {
    "sum": "value + other",
    "prod": "value * other",
    "max": "pm_max_{t}(other, value)",
    "min": "pm_min_{t}(other, value)",
    "any": "value || other",
    "all": "value && other",
}
_WRAPPING = {"sum": "({T})(({U})value + ({U})other)", "prod": "({T})(({U})value * ({U})other)"}


def _plain_types(text: str) -> str:
    """A C function for the device, as a template without fields."""
    for fixed, plain in (("uint16_t", "unsigned short"), ("uint32_t", "unsigned int")):
        text = text.replace(fixed, plain)
    return "__device__ __forceinline__ " + text.replace("{", "{{").replace("}", "}}")


HELPERS: dict[str, tuple[str, ...]] = {
    "offset": (_OFFSET,), "floor": (_FLOOR,), "min": (_MIN,), "max": (_MAX,), "floordiv": (_INT_FLOORDIV, _UNSIGNED_FLOORDIV, _FLOAT_FLOORDIV),
    "mod": (_INT_MOD, _UNSIGNED_MOD, _FLOAT_MOD), "pow": (_INT_POW,), "shl": (_SHL,), "shr": (_INT_SHR, _UNSIGNED_SHR), "popcount": (_POPCOUNT,), "sigmoid": (_SIGMOID,), "gelu": (_GELU,),
    "argmax": (_BEATS,), "argmin": (_BEATS,), "block_argmax": (_BLOCK_PAIR,), "block_argmin": (_BLOCK_PAIR,),
    **{f"block_{op}": (_BLOCK,) for op in _COMBINE},
    "atomic_sum": (_ATOMIC_ADD,), "atomic_prod": (_ATOMIC,), "atomic_max": (_ATOMIC,), "atomic_min": (_ATOMIC,),
    **{name: (_plain_types(text),) for name, text in HALF.items()},
}  # fmt: skip
"""Texts by name: for signed integers, unsigned ones and floats, where these differ."""

_NEEDS = {
    "block_max": "max",
    "block_min": "min",
    "block_argmax": "argmax",
    "block_argmin": "argmin",
    "atomic_max": "max",
    "atomic_min": "min",
}


def helper_name(name: str, dtype: DType | None) -> str:
    """The function's name for an element type (None: for index values)."""
    assert name in HELPERS, f"internal: no device function {name}"
    return f"pm_{name}" if dtype is None else f"pm_{name}_{dtype}"


def helpers_text(used: Iterable[tuple[str, DType | None]]) -> str:
    """The definitions of the functions, those that they call included, in an order that compiles."""
    wanted = set(used)
    wanted |= {(_NEEDS[name], dtype) for name, dtype in wanted if name in _NEEDS}
    order = {name: position for position, name in enumerate(HELPERS)}
    ordered = sorted(wanted, key=lambda pair: (order[pair[0]], str(pair[1])))
    return "\n".join(_text(name, dtype) for name, dtype in ordered)


def _text(name: str, dtype: DType | None) -> str:
    texts = HELPERS[name]
    if dtype is None:
        return texts[0]
    kind = name.removeprefix("block_").removeprefix("atomic_")
    words = _unsigned(dtype)  # what atomic operations compare, and add unless it is a float
    values = {
        "T": c_type(dtype), "t": dtype.name, "U": _unsigned(dtype), "f": "f" if dtype.bits == 32 else "", "name": name if name.startswith("atomic_") else kind, "op": kind,
        "B": c_type(dtype) if name == "atomic_sum" and dtype.is_float else words,
        "nan": "a != a || " if dtype.is_float else "", "minus_one": "b == -1",
        "order": ">" if kind == "argmax" else "<", "shuffled": "" if dtype.bits >= 32 else "(int)",
    }  # fmt: skip
    combine = _COMBINE.get(kind, "")
    if dtype.is_integer:
        combine = _WRAPPING.get(kind, combine)
    values["combine"] = combine.format(**values)
    position = {"i": 0, "u": 1, "b": 1, "f": 2}[dtype.kind]
    return texts[min(position, len(texts) - 1)].format(**values)


def _unsigned(dtype: DType) -> str:
    """The type that the element type's arithmetic wraps in (at least `unsigned int`: C promotes narrower ones to int)."""
    return "unsigned long long" if dtype.bits == 64 else "unsigned int"
