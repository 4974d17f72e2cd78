"""A source that fails in the way that its option names."""

import threading
from typing import Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from ha_engine.plugins import SourceBatch


class BrokenOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    how: Literal[
        "raises",
        "raises in its construction",
        "exits",
        "hangs",
        "hangs in close",
        "has other columns",
        "has no offset",
        "reads too much",
        "reads no batch",
        "reads no rows",
        "reads text",
        "has strange letters",
        "has no places",
        "has a wild offset",
    ]


class BrokenSource:
    Options = BrokenOptions
    guarantee = "none"

    def __init__(self, options, place):
        self._how = options.how
        if self._how == "raises in its construction":
            raise LookupError("nothing there")

    def open(self, offset):
        pass

    def read(self, rows_max, seconds):
        match self._how:
            case "raises":
                raise RuntimeError("out of luck")
            case "exits":
                raise SystemExit(1)
            case "hangs":
                threading.Event().wait()
            case "has other columns":
                return SourceBatch("1", pa.RecordBatch.from_pydict({"strange": [1, 2]}))
            case "has no offset":
                return SourceBatch(None, [b"{}"])
            case "reads too much":
                return SourceBatch("1", [b"{}"] * (rows_max + 1))
            case "reads no batch":
                return [b"{}"]
            case "reads no rows":
                return SourceBatch("1", 7)
            case "reads text":
                return SourceBatch("1", ["{}"])
            case "has strange letters":
                return SourceBatch("1", (), ["a", "b"])
            case "has no places":
                return SourceBatch("1", [b"?"], (), lambda row: str(1 // 0))
            case "has a wild offset":
                return SourceBatch("\ud800")
        return None

    def close(self):
        if self._how == "hangs in close":
            threading.Event().wait()
