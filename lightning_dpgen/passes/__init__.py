"""Full passes over records: blocks, exact partial sums of each, and where these are computed."""
