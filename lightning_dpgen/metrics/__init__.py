"""Distances of synthetic records from real ones, as torchmetrics. Every value is computed from real records: private."""
