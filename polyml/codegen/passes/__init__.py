"""Passes from loops to loops, in the order that lower.py gives them."""
