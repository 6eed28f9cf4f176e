"""What objects look like: fields, defaults, rules, patches, and the tables that kubectl prints."""
