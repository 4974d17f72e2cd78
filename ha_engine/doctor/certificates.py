"""Check a certificate of the config, as ``ha-engine config check`` does, and when it expires."""

from __future__ import annotations

from datetime import UTC, datetime

from ha_engine.config import Config
from ha_engine.doctor.finding import Finding, failed, ok, warning
from ha_engine.node.check import require_loadable
from ha_engine.web.certificates import Presented, inspect


def certificate(config: Config, one: Presented) -> Finding:
    """Whether peers and clients will accept the certificate. Raises ConfigError."""
    require_loadable(config, one)
    inspected = inspect(one, datetime.now(UTC))
    problems = sorted(inspected.problems, key=lambda problem: not problem.is_error)
    if problems:
        finding = failed if problems[0].is_error else warning
        texts, remedies = [p.text for p in problems], [p.remedy for p in problems]
        return finding("; ".join(texts), "; ".join(remedies))
    ends = f"{inspected.ends:%Y-%m-%d}"
    return ok(f"{one.certificate} for {', '.join(inspected.names)}, valid until {ends}")
