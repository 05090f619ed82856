"""Packed panels, and what register tiles write past the caches."""
