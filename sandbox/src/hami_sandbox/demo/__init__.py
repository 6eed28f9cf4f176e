"""The demo: examples on a small fleet, and a result for each."""
