"""Raise the limit of open files, which many systems set to 1024 by default."""

from __future__ import annotations

import resource
import sys


def allow_open_files(wanted: int) -> int:
    """Let this process open ``wanted`` files, or as many as it may, and return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    limit = max(soft, min(wanted, most))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit
