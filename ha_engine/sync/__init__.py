"""Replicate the journal: carry the cores' messages both ways between nodes, and the records.

    event_sync.py   EventSync, the public class of the stage: links, streams, refusals
    dialling.py     opens links: the greeting, and the endless attempts of the side that dials
    hello.py        a node's identity, and the reasons why two nodes may not work together
    report.py       the status that a node sends its peers, for people
    refusals.py     refusals between nodes, for the log and for status
    link.py         one open stream to one peer
    stream.py       sends one peer the records after a position, then each as it is appended
    tail.py         supplies those records from memory or from the journal's files
    codec.py        messages to frames of proto/ha_engine/v1/sync.proto, and back
    wire.py         one gRPC stream, seen from either end
    credentials.py  TLS certificates

The node with the smaller id dials. The stage moves bytes; the core decides. A fault of a peer ends
its link and never the node.
"""

from ha_engine.sync.event_sync import EventSync, Owner
from ha_engine.sync.hello import Hello
from ha_engine.sync.link import Traffic
from ha_engine.sync.report import QueryReport, Report

__all__ = ["EventSync", "Hello", "Owner", "QueryReport", "Report", "Traffic"]
