"""The report about the checked promises, as text, as JSON or as JUnit XML."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal
from xml.etree.ElementTree import Element, SubElement, tostring

import httpx2

_LONGEST_TEXT = 300  # characters of an observation

Status = Literal["held", "failed", "skipped"]

# Characters that XML cannot contain, not even escaped.
_UNPRINTABLE = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Failed(Exception):
    """A promise was broken. The text describes the observed and the correct behaviour."""


class Skipped(Exception):
    """A promise could not be checked. The text names the missing condition."""


@dataclass(frozen=True, slots=True)
class PromiseResult:
    """`rule` is the number of the promise in docs/protocol.md; `text` is the measured value or the observation;
    `seconds` is the duration of the check.
    """

    promise: str
    rule: str
    status: Status
    text: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Check:
    """A promise, and the function `examine` that checks it. `examine` returns a measurement, or raises Failed or
    Skipped.
    """

    promise: str
    rule: str
    examine: Callable[[], Awaitable[str]]

    async def run(self, limit: float | None = None) -> PromiseResult:
        """Checks the promise, for at most `limit` seconds."""
        start = time.monotonic()
        status: Status = "held"
        try:
            async with asyncio.timeout(limit):
                text = await self.examine()
        except Failed as failure:
            status, text = "failed", str(failure)
        except Skipped as reason:
            status, text = "skipped", str(reason)
        except (httpx2.HTTPError, TimeoutError) as error:
            status, text = "failed", f"The other end did not answer ({type(error).__name__}): {error}"
        except Exception as error:  # noqa: BLE001 - what the other end sends may break the examination in any way
            status, text = "failed", f"What the other end sent does not fit ({type(error).__name__}): {error}"
        text = " ".join(text.split())
        text = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
        return PromiseResult(self.promise, self.rule, status, text, round(time.monotonic() - start, 3))


@dataclass(frozen=True, slots=True)
class Report:
    """`subject` names the object that was checked: `client`, `server`, `proxy` or `agent`, and its name or address."""

    subject: str
    results: Sequence[PromiseResult]

    @property
    def exit_code(self) -> int:
        return int(any(each.status == "failed" for each in self.results))

    def as_text(self) -> str:
        width = max((len(each.promise) for each in self.results), default=0)
        lines = [
            f"{each.status:<8}{each.rule:<4}{each.promise:<{width}}  {each.text}".rstrip() for each in self.results
        ]
        counts = [f"{self._count(status)} {status}" for status in ("held", "failed", "skipped")]
        return "\n".join([self.subject, *lines, ", ".join(counts)]) + "\n"

    def as_json(self) -> str:
        return (
            json.dumps({"subject": self.subject, "results": [asdict(each) for each in self.results]}, indent=2) + "\n"
        )

    def as_junit(self) -> str:
        suite = Element(
            "testsuite",
            name=f"turnstream conformance {self.subject}",
            tests=str(len(self.results)),
            failures=str(self._count("failed")),
            skipped=str(self._count("skipped")),
        )
        for each in self.results:
            case = SubElement(suite, "testcase", classname=each.rule, name=each.promise, time=str(each.seconds))
            text = _UNPRINTABLE.sub("\ufffd", each.text)
            match each.status:
                case "held":
                    SubElement(case, "system-out").text = text
                case "failed":
                    SubElement(case, "failure", message=text)
                case "skipped":
                    SubElement(case, "skipped", message=text)
        return tostring(suite, encoding="unicode", xml_declaration=True) + "\n"

    def _count(self, status: Status) -> int:
        return sum(each.status == status for each in self.results)
