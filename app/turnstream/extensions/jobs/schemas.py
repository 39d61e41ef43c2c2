"""The bodies of the calls about jobs."""

from typing import Any, Literal

from pydantic import BaseModel, field_validator

from turnstream.api.schemas.fields import Body, storable_value


class JobResultIn(Body):
    """The result of a call that continues elsewhere. An `output` other than a string is sent to the model as JSON.
    `data` is stored for clients, and not sent to the model.
    """

    output: Any = None
    is_error: bool = False
    data: Any = None

    @field_validator("output", "data")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        return storable_value(value)


class JobResultOut(BaseModel):
    """The effect of a posted result. A result that is not `applied` has a `reason`: the job was over, or the turn has
    ended.
    """

    applied: bool
    reason: Literal["settled", "turn_ended"] | None = None
