"""The demo: examples on a small fleet, cards that fill up, and a verdict on every example."""
