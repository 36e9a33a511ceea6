"""Verification: a release is held against its own certificate, and this against the settings that it declares."""
