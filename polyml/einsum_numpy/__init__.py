"""numpy.einsum's own form: `polyml.einsum("ik,kj->ij", a, b)`."""
