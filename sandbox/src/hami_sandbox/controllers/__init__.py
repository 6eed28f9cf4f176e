"""The controllers that users of a cluster rely on, as ordinary API clients."""
