"""AVX-512 code on machines without it."""
