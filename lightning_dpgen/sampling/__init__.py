"""How records are drawn: stores, Poisson lots, multi-hot records."""
