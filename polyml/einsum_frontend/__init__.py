"""The surface language: parsing, names and the summation convention, types, index ranges."""
