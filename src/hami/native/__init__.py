"""The compiled libraries of this package and where they lie."""
