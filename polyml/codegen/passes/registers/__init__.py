"""Array elements in registers, and stores and scratch memory that nothing needs any more."""
