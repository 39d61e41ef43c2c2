"""Names of guards in rows and events: the origins of checked texts, and the ends of turns by a guard."""

from typing import Final, Literal

Place = Literal["input", "tool_result", "text", "thinking"]

# The stop reason and error type of a turn that a guard has ended; the error type after a failed check.
GUARDRAIL: Final = "guardrail"
GUARDRAIL_FAILED: Final = "guardrail_failed"
