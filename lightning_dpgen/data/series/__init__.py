"""Series of one length."""
