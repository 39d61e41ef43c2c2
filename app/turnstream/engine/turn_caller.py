"""Shows that a model call waits for a rate limit, and excludes the wait from the stall timeout."""

from time import perf_counter

from turnstream.engine.recorder import Recorder
from turnstream.engine.retries import StallTimeout


class TurnCaller:
    """The caller of a turn's model calls. The stall timeout does not count the time for which a call waits, because the
    provider has no request yet. `waited` is the number of seconds for which the last call has waited.
    """

    def __init__(self, owner: str, recorder: Recorder) -> None:
        self.owner = owner
        self.waited = 0.0
        self._recorder = recorder
        self._stall: StallTimeout | None = None
        self._since: float | None = None

    def called(self, stall: StallTimeout) -> None:
        """Called when a model call begins."""
        self._stall, self._since, self.waited = stall, None, 0.0

    def pause(self) -> None:
        if self._stall is not None and self._since is None:
            self._since = perf_counter()
            self._stall.pause()

    def wait(self, seconds: float) -> None:
        self._recorder.set_stage("waiting")
        self._recorder.notify("status", stage="waiting", seconds=round(seconds, 1))

    def start(self) -> None:
        if self._stall is None or self._since is None:
            return
        self.waited, self._since = self.waited + perf_counter() - self._since, None
        self._stall.wait()
        if self._recorder.stage == "waiting":
            self._recorder.notify_stage("processing")
