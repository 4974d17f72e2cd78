"""Code that the HTTP and gRPC servers of a node share.

``route``  describes one operation, and checks the right that its caller needs.
``hosts``  refuses requests for a host name that is not the node's.
``tls``    checks a server's certificates, and reads them again when their files change.
"""
