"""Errors that end a command of the terminal client with one sentence.

TerminalError
├── StreamError          events are missing, repeated or out of order
├── ConnectionLost       the server cannot be reached now; a retry may help
│   └── ServerUnreachable    nothing listens at the address
└── RequestRejected      the server answered no, and would again
"""

from typing import ClassVar


class TerminalError(Exception):
    pass


class StreamError(TerminalError):
    def __init__(self, problem: str) -> None:
        super().__init__(f"the stream is out of order: {problem}; read the turn again and follow it from its cursor")


class ConnectionLost(TerminalError):
    """`reason` says what happened, without the remedy. `retry_after` is the wait the server asks for, in seconds."""

    remedy: ClassVar = "try again in a moment"

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        self.reason = reason.rstrip(".")
        self.retry_after = retry_after
        super().__init__(f"{self.reason}; {self.remedy}")


class ServerUnreachable(ConnectionLost):
    remedy: ClassVar = "start one with `turnstream serve`, or name another one with --server URL"


class RequestRejected(TerminalError):
    """`status` is the HTTP status, or 0 where no request was sent."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
