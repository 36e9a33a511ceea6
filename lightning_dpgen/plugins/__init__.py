"""Thin Lightning adapters: modules, the private split's datamodule, the moments accountant, progress and previews."""
