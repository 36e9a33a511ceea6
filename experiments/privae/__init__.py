"""Figures of PriVAE."""
