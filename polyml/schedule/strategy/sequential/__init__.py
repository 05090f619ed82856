"""Tiles around sequential loops, so that what they go over again and again stays in cache."""
