"""Narrow types: arithmetic of 8 and 16 bits where a vector has more lanes, and sums over pairs and fours."""
