"""Addresses, loads and stores: by the stride along the lanes, and blocks that are transposed in registers."""
