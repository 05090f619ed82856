"""Blocks that are transposed in registers: rows of recurrences, and copies."""
