"""Tables: columns, their schema, and reading them from files and frames."""
