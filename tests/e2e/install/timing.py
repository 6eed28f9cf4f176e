"""Intervals and timeouts of a replica's programs, the same as the chart's.

They belong together with the lease (8 s, 6 s, 1 s; see `hami.scheduler.settings`). A program that
hangs is killed after at most PROBE_PERIOD_S * PROBE_FAILURES + PROBE_TIMEOUT_S = 7 s and started
again after FIRST_RESTART_S; a leader that is gone is followed after at most 8 + 2.2 s
(kube-scheduler waits 1 to 2.2 times its retry period between two tries). Both leave room within the
15 s after which somebody must bind again.
"""

from __future__ import annotations

# Liveness, as kubelet probes: periodSeconds, timeoutSeconds, failureThreshold.
PROBE_PERIOD_S = 2.0
PROBE_TIMEOUT_S = 1.0
PROBE_FAILURES = 3

# A program that ended is started again after 1, 2, 4, 8, 10, 10 ... s; one that lived for
# STEADY_S begins at 1 s again.
FIRST_RESTART_S = 1.0
LONGEST_RESTART_S = 10.0
STEADY_S = 30.0
