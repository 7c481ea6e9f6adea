"""Threads may parse side by side, even while garbage collection runs code in between."""

import gc
import sys
import threading
import time

from evokernel import syntax
from tests.toys import RIGHT


class Garbage:
    """A cycle whose end runs Python code."""

    def __init__(self):
        self.me = self

    def __del__(self):
        sum(range(50))


def test_threads_may_parse_side_by_side():
    errors, interval, thresholds = [], sys.getswitchinterval(), gc.get_threshold()
    end = time.monotonic() + 2

    def parse():
        while time.monotonic() < end and not errors:
            for _ in range(5):
                Garbage()
            try:
                syntax.parse(RIGHT * 5)
            except SystemError as error:
                errors.append(error)

    sys.setswitchinterval(1e-6)
    gc.set_threshold(50, 2, 2)
    try:
        threads = [threading.Thread(target=parse) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
    assert errors == []
