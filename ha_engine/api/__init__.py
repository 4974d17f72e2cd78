"""The HTTP interface of a node for operators, browsers, load balancers and Prometheus.

The server:
http         the routes for status, health, metrics and queries
lease, failover, snapshot
             the routes that show or change the lease, force a failover, take a snapshot
server       the HTTP server in the node's event loop
connection   limits of one connection
requests     request bodies, read within a limit and checked
bodies       response bodies as types; mypy checks the code against them
openapi      GET /openapi.json, built from the routes and the types
shared       one encoded answer for all requests that arrive at about the same time
page         the page at ``/``

The answers:
status, status_body     the node: the value, and its type
cluster, cluster_body   the group as this node sees it: the value, and its type
history      the lease's history, for HTTP and for the command line
prometheus   the metrics, read from the status at each scrape
"""
