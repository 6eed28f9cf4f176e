"""A stand-in for kube-scheduler that calls extenders as kube-scheduler does.

One loop takes pods from a queue, the most important first, judges every node, asks the extenders
and binds in the background. It keeps nothing but what the API server has: a killed one begins
anew. It never evicts a pod for a more important one (no preemption), knows no volumes and no
topology spread, and scores by free cpu and memory only.
"""
