"""Recurrences and loops over time: which of them run, how often, and in how many places they keep their levels."""
