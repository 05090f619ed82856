"""Regions as statements over integer sets, their accesses and exact dependences."""
