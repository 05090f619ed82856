"""Loops as C99 with OpenMP pragmas."""
