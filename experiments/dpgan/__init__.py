"""Figures and tables of dp-GAN."""
