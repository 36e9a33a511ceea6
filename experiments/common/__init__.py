"""Kept results, trainings and simulated records, which experiments share."""
