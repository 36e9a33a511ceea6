"""Baskets over a public universe of items."""
