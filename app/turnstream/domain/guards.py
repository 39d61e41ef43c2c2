"""Names of guards that rows and readers know: the places of checked texts, and the ends of turns by a guard."""

from typing import Final, Literal

Place = Literal["input", "tool_result", "text", "thinking"]

# The stop reason, and the type of the error, of a turn that a guard has ended; the error of one whose check failed.
GUARDRAIL: Final = "guardrail"
GUARDRAIL_FAILED: Final = "guardrail_failed"
