"""Reads on a standby: a client names the maximum age of the data that it accepts."""

import math

import pytest
from starlette.requests import Request

from turnstream.extensions.standby.copy import accepted_staleness


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("max-stale=5", 5),
        ('No-Transform, Max-Stale = "5"', 5),
        ("max-stale", math.inf),
        (f"max-stale={'9' * 5000}", math.inf),
        ("max-stale=1.5", 0),
        ("max-stale=\u00b2", 0),
        ("max-stale=5, no-cache", 0),
        ("max-age=5", 0),
    ],
)
def test_the_age_that_a_client_accepts_is_read_from_its_header(header: str, seconds: float) -> None:
    request = Request({"type": "http", "headers": [(b"cache-control", header.encode("latin-1"))]})
    assert accepted_staleness(request) == seconds
