"""The sandbox's API server: Kubernetes to its clients, without etcd."""
