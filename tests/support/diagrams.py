"""The diagrams of docs/diagrams, drawn from tables and constants of the code and from docker-compose.yml. `make
reference` writes them; a test compares them.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

import yaml  # type: ignore[import-untyped]

from turnstream.config import Settings
from turnstream.domain.identity import SCOPES
from turnstream.domain.membership import LOOK, MISSED
from turnstream.domain.plans import KEPT, MEASURES, PERIODS

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs/diagrams"

_LINE: Final = 17
_BLUE, _RED, _GREY = "#2563eb", "#b91c1c", "#64748b"
_ARROW: Final = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0 0L8 4L0 8z" fill="{_GREY}"/></marker></defs>'
)


class Drawing:
    """An SVG with boxes, arrows and lines of text. Its background is white, because the page may be dark."""

    def __init__(self, width: int, height: int) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            "<style>text { font: 13px sans-serif } .b { font-weight: bold } .s { font-size: 11px }</style>",
            _ARROW,
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
        ]

    def text(
        self, x: float, y: float, *lines: str, kind: str = "", anchor: str = "start", color: str = "#0f172a"
    ) -> None:
        for place, line in enumerate(lines):
            self._parts.append(
                f'<text x="{x:g}" y="{y + place * _LINE:g}" class="{kind}" text-anchor="{anchor}" fill="{color}">'
                f"{escape(line)}</text>"
            )

    def box(self, x: float, y: float, width: float, height: float, *lines: str, color: str = _BLUE) -> None:
        """Draws a box whose first line is the title. Without lines, the box is a frame."""
        fill = "#f8fafc" if lines else "none"
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{color}"/>'
        )
        self.text(x + 10, y + 20, *lines[:1], kind="b")
        self.text(x + 10, y + 20 + _LINE, *lines[1:])

    def arrow(self, x: float, y: float, to_x: float, to_y: float, label: str = "", *, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._parts.append(
            f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="{_GREY}" fill="none"{dash} marker-end="url(#a)"/>'
        )
        if label:
            self.text((x + to_x) / 2 + 6, (y + to_y) / 2 - 4, label, kind="s", color=_GREY)

    def bar(self, x: float, y: float, width: float, label: str, color: str) -> None:
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="20" rx="3" fill="{color}"/>')
        self.text(x + 6, y + 15, label, color="#fff")

    def line(self, x: float, y: float, to_x: float, to_y: float) -> None:
        self._parts.append(f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="#cbd5e1" fill="none"/>')

    def mark(self, x: float, y: float, number: int) -> None:
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="10" fill="{_RED}"/>')
        self.text(x, y + 4.5, str(number), kind="b", anchor="middle", color="#fff")

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


def takeover() -> str:
    """Draws the takeover after a replica is killed. The times are the constants of the monitor and the defaults of the
    settings.
    """
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    lease, journal = defaults["lease"], defaults["journal_interval"]
    drawing = Drawing(860, 410)
    lanes = {"client": 70, "replica 1": 130, "Postgres": 190, "replica 2": 250}
    killed, missed, gone, claimed, begins = 250, 370, 530, 610, 680
    for name, y in lanes.items():
        drawing.text(12, y + 15, name, kind="b")
        drawing.line(100, y + 10, 850, y + 10)
    for x, time in (
        (killed, "0 s"),
        (missed, f"at most {LOOK:g} s"),
        (gone, f"at most {LOOK + MISSED:g} to {2 * LOOK + MISSED:g} s"),
    ):
        drawing.text(x, 30, time, kind="b", anchor="middle")
        drawing.line(x, 40, x, 290)
    drawing.bar(100, lanes["client"], killed - 100, "reads the stream", _BLUE)
    drawing.bar(killed, lanes["client"], begins - killed, "reconnects with its cursor: all that is stored", _GREY)
    drawing.bar(begins, lanes["client"], 170, "new text, none twice", _BLUE)
    drawing.bar(100, lanes["replica 1"], killed - 100, "runs the turn", _BLUE)
    drawing.text(killed + 8, lanes["replica 1"] + 5, "kill -9: its database session ends", color=_RED)
    drawing.bar(100, lanes["Postgres"], killed - 100, f"journal, each {journal:g} s", _BLUE)
    drawing.text(killed + 8, lanes["Postgres"] + 5, "rows, journal, started calls")
    drawing.bar(gone, lanes["Postgres"], claimed - gone, "queued", _RED)
    drawing.bar(claimed, lanes["Postgres"], 240, "running, a greater attempt", _BLUE)
    drawing.text(missed - 6, lanes["replica 2"] + 42, "sees no session", anchor="end", kind="s")
    drawing.text(gone - 6, lanes["replica 2"] + 42, f"still none {MISSED:g} s later: gone", anchor="end", kind="s")
    drawing.bar(100, lanes["replica 2"], gone - 100, f"looks at its peers each {LOOK:g} s", _GREY)
    drawing.bar(gone, lanes["replica 2"], claimed - gone, "takes over", _RED)
    drawing.bar(claimed, lanes["replica 2"], 240, "loads rows, calls the model again", _BLUE)
    drawing.box(
        12,
        310,
        836,
        88,
        "The session does not end if the machine or the network is gone",
        f"Then the lease decides: it expires TURNSTREAM_LEASE ({lease:g} s) after its last renewal; the same follows.",
        "If Postgres or all replicas stood still, nobody is judged until a lease later.",
        "A replica that was only slow has lost its attempt: its writes change nothing.",
    )
    return drawing.svg()


# The life of one message with one tool call. The page has the rows and events of each step.
_LIFE: Final = (
    ("client", "API", "POST /api/turns"),
    ("API", "Postgres", "user turn, assistant turn"),
    ("API", "client", "201, stream_url"),
    ("worker", "Postgres", "claim: attempt, replica"),
    ("worker", "model", "round 1"),
    ("model", "worker", "text, a call"),
    ("worker", "client", "block_start, block_delta …"),
    ("worker", "Postgres", "round, blocks, seal"),
    ("worker", "Postgres", "call started, result"),
    ("worker", "model", "round 2"),
    ("model", "worker", "text"),
    ("worker", "Postgres", "block, seal, end"),
    ("worker", "client", "turn_complete"),
)


def life() -> str:
    """Draws the life of a turn as a sequence."""
    lanes = {name: 80 + 165 * place for place, name in enumerate(("client", "API", "Postgres", "worker", "model"))}
    step, top = 27, 70
    drawing = Drawing(830, top + step * len(_LIFE) + 10)
    for name, x in lanes.items():
        drawing.box(x - 60, 10, 120, 30, name)
        drawing.line(x, 40, x, top + step * len(_LIFE))
    for place, (begin, end, label) in enumerate(_LIFE):
        y = top + place * step
        drawing.arrow(lanes[begin], y, lanes[end], y)
        drawing.text((lanes[begin] + lanes[end]) / 2, y - 5, label, kind="s", anchor="middle")
    return drawing.svg()


class Stage(NamedTuple):
    """A place at which a credential or a plan has an effect. `measures` are rates, or stored amounts."""

    title: str
    text: str
    measures: Sequence[str] = ()


STAGES: Final = (
    Stage("connection", "limits of size and time hold before a credential is known"),
    Stage("credential", "token, issuer, proxy, login or your own way: gives owner, scopes, roles, plan; else 401"),
    Stage("scope of the call", f"{', '.join(SCOPES)}; else 403, which names the missing one"),
    Stage("bounds of the credential", "one chat, one turn or one folder, and options that it fixes; else 403"),
    Stage("membership", "a member of a shared chat acts for its owner, as far as the role allows; else 404"),
    Stage("plan, at the request", "beyond it 429 with Retry-After", ("requests", "writes", "queued_turns", "streams")),
    Stage("plan, at a file", "beyond it 429", ("uploads", "upload_bytes", "documents", "document_bytes")),
    Stage("rows of the owner", "each statement names the owner, and row-level security checks it again; else 404"),
    Stage("plan, in the queue", "beyond it the turn waits", ("running_turns",)),
    Stage("plan, at a model call", "reserved before, charged after; beyond it the turn ends", ("tokens", "cost")),
    Stage("approval of a tool call", "the owner, or a role that the policy names, with the scope approve"),
    Stage("plan, at a tool call", "counted before it runs; beyond it the turn ends", ("calls",)),
)


def admission() -> str:
    """Draws the way of a request, and the place of each limit."""
    step = 50
    drawing = Drawing(860, 40 + step * len(STAGES))
    for place, stage in enumerate(STAGES):
        y = 14 + place * step
        drawing.box(12, y, 210, 34, stage.title, color=_RED if stage.measures else _BLUE)
        if place:
            drawing.arrow(117, y - step + 34, 117, y)
        rates = [each for each in stage.measures if each in MEASURES]
        kept = [each for each in stage.measures if each in KEPT]
        names = [*(f"{each} per {', '.join(PERIODS)}" for each in rates), *kept]
        lines = ["; ".join(names), stage.text] if names else [stage.text]
        drawing.text(240, y + (14 if names else 22), *lines)
    return drawing.svg()


def replicas() -> str:
    """Draws the services of docker-compose.yml with their ports."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    servers = [name for name in services if name.startswith("server")]
    drawing = Drawing(860, 320)
    (front,), (metrics,) = services["nginx"]["ports"], services["prometheus"]["ports"]
    drawing.box(12, 110, 120, 60, "browsers", "SDKs, curl", color=_GREY)
    drawing.box(210, 110, 170, 60, "nginx", front.removeprefix("127.0.0.1:"))
    drawing.arrow(132, 140, 210, 140)
    drawing.text(171, 132, "HTTP, SSE", kind="s", anchor="middle")
    database = services["postgres"]["image"]
    drawing.box(690, 100, 158, 80, database, "rows, queue, leases,", "journal, search")
    for place, name in enumerate(servers):
        y = 30 + place * 150
        (port,) = services[name]["expose"]
        drawing.box(470, y, 150, 80, f"{name}:{port}", "API, page,", "engine, streams")
        drawing.arrow(380, 140, 470, y + 40)
        drawing.arrow(620, y + 40, 690, 140)
        drawing.arrow(295, 250, 470, y + 60, dashed=True)
    drawing.arrow(545, 110, 545, 180, "NOTIFY, by Postgres", dashed=True)
    drawing.box(105, 220, 190, 80, "prometheus", metrics.removeprefix("127.0.0.1:"), "reads /metrics", color=_GREY)
    drawing.text(400, 20, "no sticky sessions: any replica serves any turn", kind="s", color=_GREY)
    return drawing.svg()


class Part(NamedTuple):
    """A part of the page: an element of index.html, its position, and the modules that draw it."""

    element: str
    place: tuple[int, int, int, int]
    text: str
    modules: str


PAGE: Final = (
    Part("new-chat", (24, 40, 152, 26), "a new chat, stored with its first message", "chats.js"),
    Part("waiting", (24, 72, 152, 26), "the inbox: calls that wait for a person", "waiting.js"),
    Part("search", (24, 104, 152, 26), "the search", "chats.js, marks.js"),
    Part("chats", (24, 136, 152, 180), "the chats, by the owner's feed", "chats.js, subscription.js"),
    Part("open-documents", (24, 330, 152, 26), "documents; schedules, account, colours", "documents.js, schedules.js"),
    Part("open-models", (360, 40, 90, 26), "the model, and the cost so far", "models.js"),
    Part("open-settings", (456, 40, 60, 26), "settings of the chat", "settings.js, parameters.js"),
    Part(
        "turns",
        (200, 76, 316, 170),
        "turns: text, tool calls, jobs, notes",
        "transcript.js, turn.js, blocks.js, cards.js",
    ),
    Part("unsent", (200, 250, 316, 22), "messages that were not sent yet", "outbox.js, unsent.js"),
    Part("composer", (200, 280, 316, 40), "the message, files and prompts", "composer.js, attachments.js"),
    Part("busy", (200, 324, 316, 18), "steer this answer, or ask next", "composer.js"),
    Part("queue", (200, 346, 316, 20), "messages that wait for their turn", "queue.js"),
)


def page() -> str:
    """Draws the parts of the page with their modules."""
    drawing = Drawing(1060, 390)
    drawing.box(12, 12, 516, 366, color=_GREY)
    drawing.line(188, 12, 188, 378)
    drawing.text(24, 30, "turnstream", kind="b")
    for number, part in enumerate(PAGE, 1):
        x, y, width, height = part.place
        drawing.box(x, y, width, height)
        drawing.mark(x + width, y + height / 2, number)
        line = 26 + (number - 1) * 30
        drawing.mark(560, line, number)
        drawing.text(578, line + 5, part.text)
        drawing.text(578, line + 18, part.modules, kind="s", color=_GREY)
    return drawing.svg()


def terminal(lines: Sequence[str]) -> str:
    """Draws a recording of the terminal. `tests/acceptance/test_terminal_recording.py` types the input, and compares
    the output.
    """
    width, height = 700, 24 + _LINE * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
        "<style>text { font: 13px monospace; white-space: pre }</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#16191b"/>',
    ]
    for number, line in enumerate(lines):
        color = "#7dd3fc" if line.startswith(("> ", "? ", "(a)")) else "#e2e8f0"
        parts.append(f'<text x="14" y="{26 + number * _LINE}" fill="{color}">{escape(line)}</text>')
    return "\n".join([*parts, "</svg>", ""])


DIAGRAMS: Final[Mapping[str, Callable[[], str]]] = {
    "life.svg": life,
    "takeover.svg": takeover,
    "admission.svg": admission,
    "replicas.svg": replicas,
    "page.svg": page,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
