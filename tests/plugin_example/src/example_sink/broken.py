"""A sink that fails in the way that its option names."""

import threading
import time
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ha_engine.errors import Fenced


class BrokenOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    how: Literal["raises", "fences", "hangs", "hangs in close", "is slow", "refuses the schema"]


class BrokenSink:
    Options = BrokenOptions
    guarantee = "none"

    def __init__(self, options, place):
        self._how = options.how
        self.delivered = []

    def prepare(self, schema):
        if self._how == "refuses the schema":
            raise KeyError("no such column")

    def deliver(self, batch):
        match self._how:
            case "hangs":
                threading.Event().wait()
            case "raises":
                raise RuntimeError("out of luck")
            case "fences":
                raise Fenced(99, "itself")
            case "is slow":
                time.sleep(1.5)
        self.delivered.append(batch.number)

    def close(self):
        if self._how == "hangs in close":
            threading.Event().wait()
