"""Settings: one declaration each, with its range, its default and its meaning."""
