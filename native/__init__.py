"""C sources of the product and its test tools, and their build (build.py)."""
