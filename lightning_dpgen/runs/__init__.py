"""A run: its stages in a row, its folder, its context."""
