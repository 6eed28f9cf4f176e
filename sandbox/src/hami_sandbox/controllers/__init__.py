"""The few controllers that users of a cluster rely on, as ordinary clients of the API server."""
