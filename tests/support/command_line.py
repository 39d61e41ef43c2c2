"""Runs the command line in this process, because the imports in another process cost more than most commands."""

from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from turnstream.cli import main


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def turnstream(*arguments: str) -> Ended:
    """Runs a command. The output excludes the log lines of a server in this process."""
    out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with capture_logs(), redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return Ended(ended.value.code, *(stream.buffer.getvalue().decode() for stream in (out, err)))
