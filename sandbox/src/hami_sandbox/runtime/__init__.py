"""Containers of the sandbox: local processes with mounts and CDI edits."""
