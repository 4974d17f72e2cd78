"""The one config tree of a node: frozen and strict models.

sections    every key with its type, default and description
event_sync  the section of the stream between nodes
http        the section of the HTTP interface
ingest      the section of the gRPC interface for producers
server_tls  the certificate of the HTTP or gRPC interface
access      the section of the rights over both interfaces
tree        the sections together, and the relations between their keys
load        reads files, HA_ENGINE_* and secrets, and reports every problem at once
reload      reads the config again while the node runs, after SIGHUP
group       the settings that must be equal on every node of a group
show        the values in use, with their origin, and the JSON schema
quantities  durations, sizes and addresses
"""

from ha_engine.config.event_sync import EventSyncConfig
from ha_engine.config.http import HttpConfig
from ha_engine.config.ingest import IngestConfig
from ha_engine.config.sections import LogConfig, ReceiveConfig
from ha_engine.config.tree import Config

__all__ = ["Config", "EventSyncConfig", "HttpConfig", "IngestConfig", "LogConfig", "ReceiveConfig"]
