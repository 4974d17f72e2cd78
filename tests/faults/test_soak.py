"""The judgement of a soak finds what grows; ``python -m tests.faults.soak`` does a soak."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.faults.soak import GAP, POINTS_MAX, bytes_of, draw, growing, write_csv

FLAT = [(10.0 * n, 100.0 + n % 7) for n in range(300)]
PEAKS = [(at, value * (5 if n % 12 == 0 else 1)) for n, (at, value) in enumerate(FLAT)]
LEAK = [(at, value + at / 10) for at, value in FLAT]
EARLY = [(at, min(value, 1.0 + at / 5)) for at, value in FLAT]


def test_leak_is_named_and_peaks_of_single_faults_are_not() -> None:
    series = {"peaks, MiB": PEAKS, "leak, MiB": LEAK, "early growth, MiB": EARLY}
    [sentence] = growing(series)
    assert sentence.startswith("leak, MiB grew from 2")


def test_small_growth_of_few_threads_is_no_leak() -> None:
    few = [(at, 2.0 + at / 1000) for at, _ in FLAT]
    assert growing({"threads of x, threads": few}) == []
    assert growing({"memory of x, MiB": [(0.0, 1.0)]}) == []


def test_drawing_keeps_every_peak_of_a_long_run(tmp_path: Path) -> None:
    peak = [(10.0 * n, 1000.0 if n == 777 else 1.0) for n in range(2000)]
    draw({"memory of x, MiB": peak}, tmp_path / "soak.svg")
    drawn = ElementTree.parse(tmp_path / "soak.svg").getroot()
    [line] = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    corners = [point.split(",") for point in line.attrib["points"].split()]
    assert len(corners) <= POINTS_MAX
    assert min(float(height) for _, height in corners) == float(GAP)


def test_figures_are_written_and_drawn(tmp_path: Path) -> None:
    series = {"memory of x, MiB": FLAT, "dead rows of <lease>, rows": LEAK}
    write_csv(series, tmp_path / "soak.csv")
    draw(series, tmp_path / "soak.svg")
    assert len((tmp_path / "soak.csv").read_text().splitlines()) == 2 * len(FLAT) + 1
    drawn = ElementTree.parse(tmp_path / "soak.svg").getroot()
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == 2


def test_directory_that_the_node_deletes_meanwhile_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"123")
    assert bytes_of(tmp_path) == 3
    assert bytes_of(tmp_path / "gone") == 0
