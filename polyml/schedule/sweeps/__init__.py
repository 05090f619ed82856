"""Several passes over the rows of an array as one."""
