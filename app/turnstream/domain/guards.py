"""Names that guards use in rows and events: the origin of a checked text, and the reason why a guard ended a turn."""

from typing import Final, Literal

Place = Literal["input", "tool_result", "text", "thinking"]

# The stop reason and error type of a turn that a guard ended; the error type of a turn whose check failed.
GUARDRAIL: Final = "guardrail"
GUARDRAIL_FAILED: Final = "guardrail_failed"
