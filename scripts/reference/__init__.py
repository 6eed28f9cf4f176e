"""Pages of docs/reference, generated from the code, the chart and pyproject.toml."""
