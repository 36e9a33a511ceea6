"""Files of text and of arrays, read a block at a time."""
