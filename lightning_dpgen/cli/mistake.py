"""What is shown as one line: a mistake of the user's."""


class Mistake(Exception):
    """The user's mistake: its text is the one line that is shown."""
