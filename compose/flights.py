"""Writes the flights of the demo as a CSV file that ``ha-engine publish`` sends."""

from __future__ import annotations

import sys

from pyarrow import csv

from ha_engine.demo.flights import departures

csv.write_csv(departures(), sys.argv[1])
