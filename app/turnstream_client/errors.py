"""Errors of the client. The text of each error is a sentence.

ClientError
├── ClientClosed         the client was closed, perhaps by another thread
├── StreamError          events are missing, repeated or out of order
├── ConnectionLost       the server cannot be reached now; a retry may help
│   └── ServerUnreachable    no program listens at the address
└── RequestRejected      the server rejected the request; a retry would fail, too
    └── NotTurnstream        another program answers at the address
"""


class ClientError(Exception):
    pass


class ClientClosed(ClientError):
    def __init__(self) -> None:
        super().__init__("the client is closed")


class StreamError(ClientError):
    def __init__(self, problem: str) -> None:
        super().__init__(f"the stream is out of order: {problem}; read the turn again and follow it from its cursor")


class ConnectionLost(ClientError):
    """`reason` is the cause. `retry_after` is the wait that the server asked for, in seconds. `key` is the idempotency
    key of a call that may have reached the server: a repetition with this key has no second effect.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        self.reason = reason.rstrip(".")
        self.retry_after = retry_after
        self.key: str | None = None
        super().__init__(self.reason)


class ServerUnreachable(ConnectionLost):
    pass


class RequestRejected(ClientError):
    """`status` is the HTTP status, or 0 if no request was sent. If turnstream itself answered,
    `code` is its code for the problem, and `request_id` is its id for the request.
    """

    def __init__(self, status: int, message: str, code: str | None = None, request_id: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.request_id = request_id


class NotTurnstream(RequestRejected):
    pass
