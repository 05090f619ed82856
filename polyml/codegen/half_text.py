"""Conversions between half precision and f32, and products of pairs of bf16 and i16 and of four numbers of 8 bits, as C functions, for the emitters of C and CUDA C: the arithmetic of codegen/llvm/half.py, one value at a time."""

from __future__ import annotations

from polyml.dtypes import DType, f32, f64

__all__ = ["HALF", "converted_half"]

HALF: dict[str, str] = {
    "widen_bf16": """\
float widen_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}""",
    "narrow_bf16": """\
uint16_t narrow_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}""",
    "pair_bf16": "uint32_t pair_bf16(uint16_t first, uint16_t second) { return first | (uint32_t)second << 16; }",
    "dot_bf16": """\
float dot_bf16(uint32_t x, uint32_t y)
{
    uint32_t bits[4];
    float parts[4];
    bits[0] = x << 16;
    bits[1] = y << 16;
    bits[2] = x & 0xffff0000u;
    bits[3] = y & 0xffff0000u;
    memcpy(parts, bits, sizeof parts);
    return parts[0] * parts[1] + parts[2] * parts[3];
}""",
    "pair_i16": "uint32_t pair_i16(int16_t first, int16_t second) { return (uint16_t)first | (uint32_t)(uint16_t)second << 16; }",
    "dot_i16": """\
int32_t dot_i16(uint32_t x, uint32_t y)
{
    uint32_t low = (uint32_t)((int16_t)x * (int16_t)y), high = (uint32_t)((int16_t)(x >> 16) * (int16_t)(y >> 16));
    return (int32_t)(low + high);
}""",
    "quad_i8": """\
uint32_t quad_i8(uint8_t a, uint8_t b, uint8_t c, uint8_t d)
{
    return a | (uint32_t)b << 8 | (uint32_t)c << 16 | (uint32_t)d << 24;
}""",
    "dot_i8": """\
int32_t dot_i8(uint32_t x, uint32_t y)
{
    int32_t total = 0;
    for (int k = 0; k < 32; k += 8)
        total += (int32_t)(uint8_t)(x >> k) * (int8_t)(uint8_t)(y >> k);
    return total;
}""",
    "widen_f16": """\
float widen_f16(uint16_t half)
{
    uint32_t bits = (uint32_t)(half & 0x7fffu) << 13, exponent = bits & 0x0f800000u;
    float value;
    bits += exponent == 0x0f800000u ? 0x70000000u : exponent == 0 ? 0x38800000u : 0x38000000u;
    memcpy(&value, &bits, sizeof value);
    if (exponent == 0)
        value -= 6.103515625e-05f;
    return half & 0x8000u ? -value : value;
}""",
    "narrow_f16": """\
uint16_t narrow_f16(float value)
{
    uint32_t bits, sign, half;
    memcpy(&bits, &value, sizeof bits);
    sign = bits & 0x80000000u;
    bits ^= sign;
    if (bits >= 0x47800000u) {
        half = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (bits < 0x38800000u) {
        memcpy(&value, &bits, sizeof value);
        value += 0.5f;
        memcpy(&bits, &value, sizeof bits);
        half = bits - 0x3f000000u;
    } else {
        half = (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13;
    }
    return (uint16_t)(half | sign >> 16);
}""",
    "odd_f64": """\
float odd_f64(double value)
{
    float near = (float)value;
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    if (fabs((double)near) > fabs(value))
        bits -= 1;
    bits |= (double)near < value || (double)near > value;
    memcpy(&near, &bits, sizeof near);
    return near;
}""",
}
"""By name, without what a language writes in front of a function."""


def converted_half(text: str, source: DType, target: DType) -> tuple[str, DType]:
    """A conversion from or to half precision: the text of its last step (first: from half precision, which leaves an f32), and the type that it has."""
    if source.is_half:
        return f"widen_{source}({text})", f32
    single = f"odd_f64({text})" if source == f64 else text if source == f32 else f"(float)({text})"
    return f"narrow_{target}({single})", target
