"""A stand-in for kube-scheduler that calls extenders as kube-scheduler does."""
