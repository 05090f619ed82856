"""Sums and recurrences written in other forms: in parts, in chains, with common terms, as scans."""
