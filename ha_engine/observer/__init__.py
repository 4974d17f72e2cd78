"""The observer, a process on a third machine that shows a pair and the newest output of its
queries.

An observer asks the nodes over HTTP, as a browser does. It has no lease, no journal, no database
and no Spark, and no node knows it. It therefore changes nothing on the pair, and the pair never
waits for it. docs/adr/0048 has the reasons.

    nodes -> asking -> following -> store -> routes -> whoever watches

process     runs an observer until it gets a signal: starts and stops the other parts
asking      asks one node, and remembers its last answers with their time
next_batch  decides from the answers which batch comes next, or that batches are missed
following   gets the published batches of each query in order, and notes those that it missed
store       keeps the newest batches of each query on disk, within a bound, and the last state
rows        finds the newest rows that a request asks for
routes      has the HTTP routes, and the page
metrics     shows the observer's own view to Prometheus
"""
