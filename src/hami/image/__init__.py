"""OCI images without a daemon: Debian packages and files in, one archive out."""
