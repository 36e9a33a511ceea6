"""The drawing of records: stores, Poisson lots, multi-hot records."""
