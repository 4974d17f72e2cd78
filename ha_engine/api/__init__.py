"""The HTTP interface of a node for operators, browsers, load balancers and Prometheus.

``http`` has the routes of the status, the health checks, the metrics and the queries.
``lease`` has the routes of the lease's history and of the pause of failover.
``failover`` has the routes of a forced failover.
``snapshot`` has the routes of snapshots.
``applications`` has the routes of deployments.
``shadows`` has the routes that compare a shadow with its query, promote it or discard it.
``aggregations`` has the route that reads an aggregation.
``output`` has the route that gives observers the published batches of a query.
``server`` runs the HTTP server in the node's event loop.
``connection`` limits the connections, and what each of them may use.
``handshakes`` accepts connections with TLS, and limits the handshakes.
``requests`` reads request bodies up to a size limit, and checks them.
``bodies`` has the types of response bodies, against which mypy checks the code.
``turns`` lets requests with events begin before others.
``openapi`` builds GET /openapi.json from the routes and the types of their bodies.
``shared`` shares one encoded answer between requests that arrive at about the same time.
``page`` serves the web page at ``/``.

``status`` makes the status of this node, and ``status_body`` has the type of the status.
``cluster`` makes the state of the group as this node sees it, and ``cluster_body`` has its type.
``rollout`` puts the progress of a deployment into words, for the state of the group.
``history`` makes the lease's history for the HTTP interface and the command line. ``prometheus``
makes the metrics from the node's status at each scrape.
"""
