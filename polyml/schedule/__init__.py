"""From scops to schedule trees: candidates, their cost, their proof (docs/architecture.md explains short words)."""
