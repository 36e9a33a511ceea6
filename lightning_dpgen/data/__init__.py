"""Data: schemas, records, readers and what is found privately."""
