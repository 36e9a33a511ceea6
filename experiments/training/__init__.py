"""Questions about private training itself."""
