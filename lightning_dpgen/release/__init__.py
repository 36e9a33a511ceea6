"""Everything that may leave: the bundle, its certificate, verification, sampling, the report."""
