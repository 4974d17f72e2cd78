"""The one config tree: models here, frozen and strict.

sections    every key with its type, default and description
tree        the sections together, and the relations between their keys
load        files, HA_ENGINE_* and secrets; every problem in one go
show        what holds and where it came from, and the JSON schema
quantities  durations, sizes and addresses
"""

from ha_engine.config.sections import HttpConfig, LogConfig, ReceiveConfig
from ha_engine.config.tree import Config

__all__ = ["Config", "HttpConfig", "LogConfig", "ReceiveConfig"]
