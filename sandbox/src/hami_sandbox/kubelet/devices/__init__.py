"""The device manager of the kubelet stand-in: plugins, ids, checkpoint, pod resources."""
