"""CUDA C as text: names, types, expressions, statements, kernels."""
