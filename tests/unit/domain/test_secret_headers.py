"""Headers of HTTP tools as they are shown."""

from typing import Any

import pytest

from turnstream.domain.secret_headers import MASK, masked_settings, masked_tool

SECRET = {"name": "crm", "url": "https://crm.example/", "headers": {"Authorization": "Bearer tok", "x": "y"}}
SHOWN = {**SECRET, "headers": {"Authorization": MASK, "x": MASK}}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("doc_tree", "doc_tree"),
        ({"type": "client", "name": "look"}, {"type": "client", "name": "look"}),
        ({"type": "http", "headers": {}}, {"type": "http", "headers": {}}),
        (SECRET, SHOWN),
        ({"name": "crm", "http": SECRET}, {"name": "crm", "http": SHOWN}),
        (
            {"headers": {"a": "${secret:KEY}", "b": "Bearer ${secret:KEY}", "c": "tok ${secret:KEY} x"}},
            {"headers": {"a": "${secret:KEY}", "b": "Bearer ${secret:KEY}", "c": MASK}},
        ),
    ],
)
def test_the_values_of_headers_are_masked_but_for_names_of_secrets(stored: Any, shown: Any) -> None:
    assert masked_tool(stored) == shown


def test_settings_are_shown_with_masked_tools() -> None:
    assert masked_settings({"model": "m", "tools": ["doc_tree", SECRET]}) == {
        "model": "m",
        "tools": ["doc_tree", SHOWN],
    }
    assert masked_settings({"model": "m"}) == {"model": "m"}
