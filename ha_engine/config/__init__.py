"""The one config tree: models here, frozen and strict.

sections    every key with its type, default and description
event_sync  the section of the stream between nodes
http        the section of the HTTP interface
ingest      the section of the gRPC interface for producers
server_tls  the certificate of either
access      the section of who may do what over either
tree        the sections together, and the relations between their keys
load        files, HA_ENGINE_* and secrets; every problem in one go
reload      the config again while the node runs, after SIGHUP
group       what must be equal on every node of a group
show        what holds and where it came from, and the JSON schema
quantities  durations, sizes and addresses
"""

from ha_engine.config.event_sync import EventSyncConfig
from ha_engine.config.http import HttpConfig
from ha_engine.config.ingest import IngestConfig
from ha_engine.config.sections import LogConfig, ReceiveConfig
from ha_engine.config.tree import Config

__all__ = ["Config", "EventSyncConfig", "HttpConfig", "IngestConfig", "LogConfig", "ReceiveConfig"]
