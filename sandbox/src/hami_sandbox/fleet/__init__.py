"""Simulated nodes by the thousand: rows in one process, to the scheduler nodes."""
