"""Pictures: from folders and arrays to records."""
