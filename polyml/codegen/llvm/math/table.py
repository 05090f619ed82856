"""Which op is which recipe."""

from __future__ import annotations

from polyml.codegen.llvm.ir import Builder, Value
from polyml.codegen.llvm.math.arctangent import atan2
from polyml.codegen.llvm.math.exponential import erf, exp, gelu, sigmoid, tanh
from polyml.codegen.llvm.math.kit import Recipe, call, call_both
from polyml.codegen.llvm.math.logarithm import log, log1p
from polyml.codegen.llvm.math.power import pow
from polyml.codegen.llvm.math.trigonometric import cos, sin, sin_cos

__all__ = ["MATH", "sine_and_cosine", "vector_math"]

MATH: dict[str, Recipe] = {
    "exp": exp, "log": log, "log1p": log1p, "atan2": atan2, "sin": sin, "cos": cos, "tanh": tanh, "sigmoid": sigmoid, "erf": erf, "gelu": gelu, "pow": pow,
}  # fmt: skip


def vector_math(builder: Builder, op: str, *args: Value) -> Value:
    """The op of floats (scalars or vectors), as a call of a function in the builder's module."""
    return call(builder.module, builder, MATH[op], args)


def sine_and_cosine(builder: Builder, x: Value) -> tuple[Value, Value]:
    """Of the same number."""
    return call_both(builder.module, builder, sin_cos, x)
