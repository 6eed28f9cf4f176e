"""Fields, defaults, rules, patches and tables of the kinds."""
