"""Opacus-compatible optimizers: a DPOptimizer around any torch optimizer."""
