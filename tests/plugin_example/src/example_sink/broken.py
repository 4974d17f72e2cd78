"""A sink that does everything wrong, as its option says."""

import threading
from typing import Literal

from pydantic import BaseModel, ConfigDict


class BrokenOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    how: Literal["raises", "hangs", "refuses the schema"]


class BrokenSink:
    Options = BrokenOptions
    guarantee = "none"

    def __init__(self, options, place):
        self._how = options.how

    def prepare(self, schema):
        if self._how == "refuses the schema":
            raise KeyError("no such column")

    def deliver(self, batch):
        if self._how == "hangs":
            threading.Event().wait()
        raise RuntimeError("out of luck")

    def close(self):
        pass
