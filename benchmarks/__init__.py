"""Repeatable measurements: `python -m benchmarks.<name>`."""
