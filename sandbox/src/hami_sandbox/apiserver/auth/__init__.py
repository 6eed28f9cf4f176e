"""Who may come in, and what happens at the door: users, roles, reviews, admission webhooks."""
