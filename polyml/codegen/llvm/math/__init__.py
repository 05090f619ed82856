"""Vector math in our own IR: one readable recipe per function, for any lane count, f32 and f64."""

from polyml.codegen.llvm.math.table import MATH, sine_and_cosine, vector_math

__all__ = ["MATH", "sine_and_cosine", "vector_math"]
