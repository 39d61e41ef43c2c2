"""The measurements of a run: all, or a quick set, optionally filtered by name."""

from collections.abc import Collection
from dataclasses import dataclass

from tests.bench.caching import caching
from tests.bench.chats import chats
from tests.bench.costs import costs
from tests.bench.distant import distant
from tests.bench.hostile import hostile
from tests.bench.journal_cost import journal_cost
from tests.bench.large import large
from tests.bench.overload import SECONDS, overload
from tests.bench.recovery import recovery
from tests.bench.remote import remote
from tests.bench.replicas import replicas
from tests.bench.scenarios import Scenario, full, quick
from tests.bench.sealing_cost import sealing_cost
from tests.bench.start import start
from tests.bench.storage import storage
from tests.bench.tracing_cost import tracing_cost
from tests.bench.trials import Trial
from tests.bench.workers import workers

RECOVERY = ("median", "worst", "target")
REMOTE = ("on the owner", "on the other", "difference", "target")
JOURNAL = ("every 100 ms", "never", "difference", "share, %", "target, %")
START = ("median", "worst", "target")
CACHE = ("read", "written", "neither", "read, %", "target, %")
CHATS = ("cold, ms", "CPU, ms", "warm, ms", "CPU, ms", "longest hold, ms", "target")
TRACES = ("off", "with traces", "more, %", "target, %")
SEALING = ("plain", "encrypted", "ratio", "target")
COSTS = ("on paper", "measured", "ratio")
DISTANT = ("near", "5 ms away", "round trips")
LARGE = ("50,000 turns", "a million", "ratio", "target")
HOSTILE = ("alone", "with all attacks", "target")
OVERLOAD = ("", "target")
STORAGE = ("2 deltas", "1,000 deltas", "for a byte of text")
REPLICAS = ("one server", "two replicas")
WORKERS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Programme:
    scenarios: tuple[Scenario, ...]
    trials: tuple[Trial, ...]

    def names(self) -> list[str]:
        return [*dict.fromkeys(each.name for each in self.scenarios), *(each.name for each in self.trials)]

    def only(self, names: Collection[str]) -> "Programme":
        return Programme(
            tuple(each for each in self.scenarios if each.name in names),
            tuple(each for each in self.trials if each.name in names),
        )


def whole() -> Programme:
    return Programme(
        tuple(full()),
        (
            Trial("recovery", "20 turns, their server killed 5 times", RECOVERY, recovery(5)),
            Trial("start", "the server killed and started again", START, start(5)),
            Trial("remote", "50 turns of 50/s, each with two readers", REMOTE, remote(50, 500)),
            Trial("distant", "lone turns, and a Postgres with a round trip of 5 ms", DISTANT, distant(30, 5.0)),
            Trial("journal", "CPU per running turn and second, ms", JOURNAL, journal_cost(200, 2)),
            Trial("traces", "CPU of the server per turn, ms", TRACES, tracing_cost(200, 2)),
            Trial("sealing", "texts that are encrypted at rest", SEALING, sealing_cost(50, 5000, 20, 5)),
            Trial("costs", "what the server's CPU time consists of", COSTS, costs(400, 50, 6, 50)),
            Trial("cache", "input tokens of a turn of ten rounds", CACHE, caching),
            Trial("chats", "first delta in a long chat", CHATS, chats(10, 100, 1000, 5000, 10_000)),
            Trial("large", "calls in a small database and in one of a million turns", LARGE, large(30)),
            Trial("hostile", "50 calm streams, and all attacks at once", HOSTILE, hostile(50, 40)),
            Trial("overload", f"{SECONDS} seconds of arrivals at twice the capacity", OVERLOAD, overload(SECONDS)),
            Trial("storage", "bytes that a turn leaves in Postgres, and its CPU", STORAGE, storage(200, 1000)),
            Trial("replicas", "500 streams of 50/s", REPLICAS, replicas(500, 150)),
            Trial(
                "workers",
                "CPU for which no turn of the replica is the cause",
                tuple(f"{count} replicas" for count in WORKERS),
                workers(WORKERS, 10),
            ),
        ),
    )


def quick_set() -> Programme:
    return Programme(
        tuple(quick()),
        (
            Trial("recovery", "20 turns, their server killed once", RECOVERY, recovery(1)),
            Trial("start", "the server killed and started again", START, start(2)),
            Trial("remote", "20 turns of 50/s, each with two readers", REMOTE, remote(20, 150)),
            Trial("traces", "CPU of the server per turn, ms", TRACES, tracing_cost(200, 1)),
            Trial("cache", "input tokens of a turn of ten rounds", CACHE, caching),
            Trial("chats", "first delta in a long chat", CHATS, chats(10, 1000, 5000)),
        ),
    )
