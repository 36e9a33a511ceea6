"""The `dpgen` program: one small file a subcommand."""
