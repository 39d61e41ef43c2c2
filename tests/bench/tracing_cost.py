"""The cost of traces: two servers side by side, of which one records spans and metrics."""

from collections.abc import Callable
from timeit import timeit

from tests.bench.side_by_side import Cpu, Start, both_sides, cpu_of
from tests.bench.trials import Rows, Site
from turnstream.tracing import TRACING

STARTED: dict[bool, Start] = {
    True: lambda site: site.served({"TURNSTREAM_TRACES": "true"}, module="tests.bench.traced_server"),
    False: lambda site: site.served(),
}
RATE = 10  # the load is low: near its limit a server saves CPU elsewhere, and the difference would not show
SECONDS = 32
RAMP_SECONDS = 8.0
SPANS = 5  # spans of a turn without tools: the request, the run, its wait in the queue, the model call, the webhook
TARGET = 3.0  # per cent of the server's CPU


def tracing_cost(turns: int, rounds: int) -> Callable[[Site], Rows]:
    def run(site: Site) -> Rows:
        traced, plain = Cpu(), Cpu()
        for number in range(rounds):
            with both_sides(site, STARTED, number % 2 == 0) as sides:
                used = cpu_of(sides, turns, RATE, SECONDS, RAMP_SECONDS)
                traced, plain = traced + used[True], plain + used[False]
        per_turn = 1000 / (turns * rounds)
        on, off, skipped = traced.server * per_turn, plain.server * per_turn, _skipped_span() * SPANS * 1000
        return {
            f"{turns} turns of {RATE}/s: on": (off, on, (on / off - 1) * 100, TARGET),
            f"{turns} turns of {RATE}/s: the spans that are off": (off, skipped, skipped / off * 100, None),
        }

    return run


def _skipped_span() -> float:
    """Returns how many seconds a span takes while tracing is off."""

    def skip() -> None:
        with TRACING.span("chat", "CLIENT", gen_ai__operation__name="chat", turnstream__round=1) as span:
            span.set(gen_ai__response__id="a")

    return timeit(skip, number=20_000) / 20_000
