"""hami: GPU sharing for Kubernetes. The map of the packages is docs/architecture.md."""
