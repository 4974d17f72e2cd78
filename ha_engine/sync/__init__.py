"""The stream between nodes: the cores' messages both ways, and the journal's records.

    event_sync.py   EventSync, the stage's public face: links, streams, refusals
    dialling.py     how a link opens: the greeting, and the endless attempts of who dials
    hello.py        who a node says it is, and why two nodes may not work together
    report.py       what a node tells its peers of itself for people
    refusals.py     whom this node refuses, for the log and for status
    link.py         one open stream to one peer
    stream.py       sends one peer the records behind a position, then each as it is appended
    tail.py         where those records come from: memory or the journal's files
    codec.py        messages to frames of proto/ha_engine/v1/sync.proto, and back
    wire.py         one gRPC stream, seen from either end
    credentials.py  certificates

The node with the smaller id dials. The stage moves bytes and decides nothing; a fault of a peer
ends its link and never the node.
"""

from ha_engine.sync.event_sync import EventSync, Owner
from ha_engine.sync.hello import Hello
from ha_engine.sync.link import Traffic
from ha_engine.sync.report import QueryReport, Report

__all__ = ["EventSync", "Hello", "Owner", "QueryReport", "Report", "Traffic"]
