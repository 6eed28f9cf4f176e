"""A stand-in for kubelet: pods of one node become containers of the sandbox."""
