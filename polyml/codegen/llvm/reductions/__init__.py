"""Combining: targets with values, lanes with each other, and recurrences in lanes."""
