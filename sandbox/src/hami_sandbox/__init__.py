"""A whole cluster on a machine without Kubernetes, root or GPU: for tests, the demo, trying hami.

The product runs in it as it is; Kubernetes around it and the GPUs below it are stand-ins.
`hami_sandbox.cluster` puts it together. Product code never imports this package.
"""
