"""Passes that ask for cache lines before they are read or written."""
