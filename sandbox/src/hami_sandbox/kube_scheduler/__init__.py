"""A stand-in for kube-scheduler that calls extenders as kube-scheduler does.

One loop takes pods from a queue, the highest priority first, checks every node, asks the extenders
and binds in the background. It keeps nothing that the API server does not have: after a kill the
next one starts from a list. It never evicts a pod for one of higher priority (no preemption), has
no volumes and no topology spread, and scores by free cpu and memory only.
"""
