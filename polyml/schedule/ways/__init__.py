"""The ways to schedule a region: candidates, of which the first that is proved is taken."""
