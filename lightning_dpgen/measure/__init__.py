"""The other engine: bounded statistics of records measured once with noise, and generators fitted to them."""
