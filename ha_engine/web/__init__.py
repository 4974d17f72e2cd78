"""Code that the HTTP and gRPC servers share.

``route``         describes one operation, and checks the right that its caller needs.
``hosts``         compares the host name of a request with the server's.
``listening``     opens the socket of an HTTP server.
``connection_limits`` keeps open files for a process, however many connections clients open.
``tls``           loads a server's certificate, and reads it again when its files change.
``answered_stream`` reads the requests of a gRPC stream, and writes its answers.
``grpc_port``     opens the port of a gRPC server, and limits its connections.
``certificates``  checks names, dates, use and authority of the certificates in the config.
``closed``        says why a server closes a connection of a client.
"""
