"""Samplers, one class each, and the strategies and the memory of correlated noise.

Read first: samplers.py, sampler_choice.py, strategy.py.
"""
