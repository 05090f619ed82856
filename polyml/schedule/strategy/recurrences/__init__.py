"""Recurrences within vectorized loops, and loops that run along with them."""
