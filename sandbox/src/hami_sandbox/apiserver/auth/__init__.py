"""Users, roles, reviews and admission webhooks of the API server."""
