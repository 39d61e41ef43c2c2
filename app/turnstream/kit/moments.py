"""Converts moments to whole microseconds and back, without rounding."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds_of(moment: datetime) -> int:
    """Returns the microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def from_microseconds(count: int) -> datetime:
    return _EPOCH + count * _MICROSECOND
