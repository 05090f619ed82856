"""Factorizations, triangular systems and triangular products in blocks."""
