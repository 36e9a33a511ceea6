"""What a run is: its stages in a row, its folder, its context."""
