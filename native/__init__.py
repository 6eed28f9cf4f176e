"""C sources of the product and its test tools, and how they are compiled (build.py)."""
