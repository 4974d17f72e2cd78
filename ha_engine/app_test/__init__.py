"""Run an application on the events of a test file, and compare its output with expected rows.

A test needs neither a node nor a database, a broker or a sink. It writes its events into a journal
in a temporary directory, and Spark reads them by the engine's own source. So the types, the refusal
of events, the plans and the batches are those of a node.

``cases``       has the tests of a file as immutable values.
``file``        reads the test file.
``events``      decodes the events of a test, as a node decodes those of a request.
``marks``       answers the source where the batches of a test end.
``run``         runs the queries of a test, and moves the watermark to the end of time.
``comparison``  compares the rows of a query with the expected ones.
``suite``       runs all tests with one Spark session.
``update``      writes the actual rows into the test file.
"""
