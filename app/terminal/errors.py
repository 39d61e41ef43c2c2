"""Errors of the terminal client that a person can act on; the command line prints each as one sentence."""


class TerminalError(Exception):
    pass


class StreamError(TerminalError):
    """The events do not fit together: one is missing, came twice or is out of order."""


class Lost(TerminalError):
    """The connection broke, or the server says that trying again may help; `after` is its word on when, in seconds."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class ServerUnreachable(Lost):
    """Nobody listens there."""


class Refused(TerminalError):
    """The server says no, and will say so again."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
