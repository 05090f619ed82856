"""Vector loops: their parts, their ends, where they begin, and sums that lanes share."""
