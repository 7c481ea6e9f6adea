"""An evaluator that makes measurements up in real time, for tests that talk to a running campaign."""

import time

from evokernel.evaluators.null import Null


class Paced(Null):
    """One measurement every `pace_s` seconds of the wall clock."""

    def __init__(self, pace_s: float = 0.3) -> None:
        super().__init__(slots=1)
        self.pace_s = pace_s

    def wait(self, timeout_s):
        time.sleep(min(self.pace_s, timeout_s))
        return super().wait(timeout_s)

    def now(self):
        return time.monotonic()
