"""Sentences of refusals."""

import pytest
from pydantic import BaseModel, Field, ValidationError

from turnstream.kit.requirements import requirement


class Bounds(BaseModel):
    large: float = Field(default=1, le=1e8)
    whole: int = Field(default=1, ge=-2_000_000)
    small: float = Field(default=0.5, gt=0.001)
    fraction: float = Field(default=0.5, lt=1.5)


@pytest.mark.parametrize(
    ("field", "value", "predicate"),
    [
        ("large", 1e9, "must be at most 100000000"),
        ("whole", -3_000_000, "must be at least -2000000"),
        ("small", 0, "must be greater than 0.001"),
        ("fraction", 2, "must be less than 1.5"),
    ],
)
def test_a_bound_is_written_as_a_client_may_send_it(field: str, value: float, predicate: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Bounds(**{field: value})
    (problem,) = caught.value.errors()
    assert requirement(problem["type"], problem["ctx"]) == predicate
