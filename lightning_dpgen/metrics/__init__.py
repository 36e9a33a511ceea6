"""How close synthetic records are to real ones, as torchmetrics. Every value is computed from real records: private."""
