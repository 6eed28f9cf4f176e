"""Containers of the sandbox: local processes that see what their mounts and CDI specs give them."""
