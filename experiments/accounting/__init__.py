"""Privacy formulas of the papers beside the truth, and accountants beside each other."""
