"""From schedules to loops, and from loops to code."""
