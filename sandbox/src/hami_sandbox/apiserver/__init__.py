"""The API server of the sandbox: Kubernetes to its clients, without etcd, for one machine."""
