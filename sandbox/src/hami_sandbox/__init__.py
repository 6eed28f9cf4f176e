"""A whole cluster on a machine without Kubernetes, root or GPU.

For tests, the demo and trying hami. The product runs in it as it is; Kubernetes around it and the
GPUs below it are stand-ins. `hami_sandbox.cluster` builds it. The product never imports this
package.
"""
