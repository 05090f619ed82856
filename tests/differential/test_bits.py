"""Operations on bits: `& | ^ << >>` of integers of every type, and what programs make of them."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.einsum_frontend.printer import format_program
from polyml.einsum_frontend.source import program_from_text
from polyml.testing import verify

TYPES = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
ALL = """
def bits(a: T["N"], b: T["N"], s: T["N"]):
    x[n] = a[n] & b[n] | a[n] ^ b[n] << 1
    y[n] = a[n] << s[n]
    z[n] = a[n] >> s[n]
    w[n] = a[n] >> 3 & 7
    v[n] = (a[n] ^ b[n]) + (a[n] & 1)
    return x, y, z, w, v
"""
CRC = """
def crc16(data: u8["N"], poly: u32):
    crc: u32
    crc = 65535
    for n in range(N):
        crc = crc ^ data[n]
        for k in range(8):
            crc = where(crc & 1 == 1, crc >> 1 ^ poly, crc >> 1)
    y = (crc & 255) << 8 | crc >> 8
    return y
"""
BY_TABLE = """
def crc16(data: u8["N"], table: u32["256"]):
    crc: u32
    crc = 65535
    for n in range(N):
        crc = table[(crc ^ data[n]) & 255] ^ crc >> 8
    y = (crc & 255) << 8 | crc >> 8
    return y
"""


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.few(2)
def test_every_type(name: str) -> None:
    dtype = np.dtype(("uint" if name[0] == "u" else "int") + name[1:])
    rng, ends = np.random.default_rng(0), np.iinfo(dtype)
    a, b = (rng.integers(ends.min, ends.max, 71, dtype=dtype, endpoint=True) for _ in range(2))
    s = rng.integers(0 if name[0] == "u" else -3, 70, 71).astype(dtype)  # beyond the width, too
    program = polyml.einsum(ALL.replace("T", name))
    one, three, seven = (dtype.type(v) for v in (1, 3, 7))
    for part in (slice(0, 71), slice(70, None, -3), slice(0, 1), slice(0, 0)):
        x, y, t = a[part], b[part], s[part]
        want = (x & y | x ^ y << one, x << t, x >> t, x >> three & seven, (x ^ y) + (x & one))
        for found, expected in zip(program(x, y, t), want, strict=True):
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, expected)
    assert verify(program, a[:9], b[:9], s[:9])


def test_bool() -> None:
    program = polyml.einsum(
        'def f(a: bool["N"], b: bool["N"]):\n    x[n] = a[n] & b[n]\n    y[n] = a[n] | b[n]\n    z[n] = a[n] ^ b[n]\n    return x, y, z\n'
    )
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    for found, want in zip(program(a, b), (a & b, a | b, a ^ b), strict=True):
        assert found.dtype == bool
        np.testing.assert_array_equal(found, want)
    assert verify(program, a, b)


def test_a_checksum() -> None:
    data = np.frombuffer(b"123456789", np.uint8)
    swapped = 0x916F  # CRC-16/X-25, 0x906E, is inverted in the end; its bytes have changed places
    assert polyml.einsum(CRC)(data, np.uint32(0x8408)) == swapped
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ 0x8408, table >> 1).astype(np.uint32)
    by_table = polyml.einsum(BY_TABLE)
    assert by_table(data, table) == swapped
    assert "out_of_range" not in by_table.lower(data, table).text("graph")  # masked, so that the place is proved
    assert verify(polyml.einsum(CRC), data, np.uint32(0x8408))


def test_numbers_are_exact() -> None:
    program = polyml.einsum('def f(a: i64["N"]):\n    y[n] = a[n] ^ (1 << 62 | 5 & 4 ^ 1)\n    return y\n')
    assert program(np.zeros(1, np.int64))[0] == 2**62 | 5
    with pytest.raises(polyml.PolymlError, match="does not fit in 64 bits"):
        polyml.einsum('def f(a: i64["N"]):\n    y[n] = a[n] + (1 << 64)\n    return y\n')(np.zeros(1, np.int64))


@pytest.mark.parametrize("dtype", ["f32", "f16", "c64"])
@pytest.mark.parametrize("op", ["&", "|", "^", "<<", ">>"])
def test_of_integers_only(dtype: str, op: str) -> None:
    x = np.zeros(3, {"f32": np.float32, "f16": np.float16, "c64": np.complex64}[dtype])
    with pytest.raises(polyml.PolymlError, match="is not defined for"):
        polyml.einsum(f'def f(a: {dtype}["N"]):\n    y[n] = a[n] {op} a[n]\n    return y\n')(x)


def test_precedence_is_pythons() -> None:
    text = 'def f(a: i64["N"], b: i64["N"]):\n    y[n] = (a[n] | b[n]) & a[n] << (b[n] & 3) + 1 ^ 7\n    return y\n'
    printed = format_program(program_from_text(text, {}))
    assert "(a[n] | b[n]) & a[n] << (b[n] & 3) + 1 ^ 7" in printed
