"""Contractions in blocks for caches and register tiles, as GotoBLAS and BLIS do them."""
