"""The table of the recordings for which the tests expect another result than the SDK's."""

import pytest

from tests.integration.recordings import needs_recordings
from tests.support import triage

pytestmark = [needs_recordings, pytest.mark.full, pytest.mark.extensions("openai")]


def test_the_table_of_recordings_that_differ_is_that_of_the_tests() -> None:
    assert triage.PAGE.read_text(encoding="utf-8") == triage.page(), "python -m tests.support.triage writes it"
