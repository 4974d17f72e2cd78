"""The one config tree of a node: frozen and strict models.

``sections``    has most sections of the config, with the type, default and description of each key.
``event_sync``  is the section of the connections between nodes.
``http``        is the section of the HTTP interface.
``ingest``      is the section of the gRPC interface for producers.
``execution``   is the section of Spark's master, its executors and their access to the journal.
``server_tls``  is the certificate of the HTTP or gRPC interface.
``access``      is the section of the rights of callers over both interfaces.
``tree``        combines the sections, and checks the relations between their keys.
``receiver``    is the whole tree of a receiver, which has fewer sections.
``observer``    is the whole tree of an observer, which has other sections.
``load``        reads files, HA_ENGINE_* and secrets, and reports all problems at once.
``reload``      reads the config again after SIGHUP, while the node runs.
``group``       lists the settings that must be equal on every node of a group.
``show``        shows the values in use with their origin, and the JSON schema.
``quantities``  parses and formats durations, sizes and addresses.
"""

from ha_engine.config.event_sync import EventSyncConfig
from ha_engine.config.http import HttpConfig
from ha_engine.config.ingest import IngestConfig
from ha_engine.config.sections import LogConfig, ReceiveConfig
from ha_engine.config.tree import Config

__all__ = ["Config", "EventSyncConfig", "HttpConfig", "IngestConfig", "LogConfig", "ReceiveConfig"]
