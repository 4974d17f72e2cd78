"""Replicate the journal: carry records and the cores' messages between nodes, in both directions.

    event_sync.py   EventSync, the public class of the stage: links, streams, refusals
    dialling.py     opens links: the exchange of Hellos, and the endless attempts to dial a peer
    hello.py        a node's identity, and the reasons why two nodes may not work together
    report.py       the status that a node sends its peers, for people to read
    refusals.py     refusals between nodes, for the log and for status
    link.py         one open stream to one peer
    stream.py       sends one peer the records after a position, then each as it is appended
    tail.py         supplies the records to send, from memory or from the journal's files
    codec.py        messages to frames of proto/ha_engine/v1/sync.proto, and back
    wire.py         one gRPC stream, seen from either end
    transport.py    the network between nodes, as the stage uses it
    grpc_transport.py  the same over gRPC
    channel.py      the gRPC channel to a peer
    peer_calls.py   the other calls of a peer, and who may make them
    forwarding.py   sends the requests of producers to a peer that is the active
    checking.py     asks a peer whether it could run an application
    credentials.py  TLS certificates

The node with the smaller id dials the node with the greater id. The sync stage only moves bytes,
and the core makes all decisions. A fault of a peer ends the link to that peer, and never the node.
"""

from ha_engine.sync.checking import ApplicationChecks
from ha_engine.sync.event_sync import EventSync, Owner
from ha_engine.sync.forwarding import Forwarder
from ha_engine.sync.grpc_transport import GrpcTransport
from ha_engine.sync.hello import Hello
from ha_engine.sync.link import Traffic
from ha_engine.sync.peer_calls import PeerCalls
from ha_engine.sync.report import QueryReport, Report

__all__ = [
    "ApplicationChecks",
    "EventSync",
    "Forwarder",
    "GrpcTransport",
    "Hello",
    "Owner",
    "PeerCalls",
    "QueryReport",
    "Report",
    "Traffic",
]
