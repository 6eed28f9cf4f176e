"""The kubelet stand-in's device manager: plugins, ids, checkpoint."""
