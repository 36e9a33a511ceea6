"""What may be read: schema, records, sources, Poisson lots."""
