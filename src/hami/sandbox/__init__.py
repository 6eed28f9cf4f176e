"""Nodes with GPUs on a machine that has none: for tests, the demo and whoever wants to try hami.

The stand-in driver (native/fakegpu) reads all that it shows from one folder per node; this package
makes such folders. Product code never imports it.
"""
