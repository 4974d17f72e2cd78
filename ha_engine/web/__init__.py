"""Code that the HTTP and gRPC servers of a node share.

``route``  describes one operation, and checks the right that its caller needs.
``hosts``  compares the host name of a request with the node's.
``tls``    checks a server's certificates, and reads them again when their files change.
"""
