"""hami: GPU sharing for Kubernetes. docs/architecture.md is the map."""
