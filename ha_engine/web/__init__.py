"""Code that the HTTP and gRPC servers of a node share.

route  one documented operation, and the right that its caller needs
tls    certificates that are read again when their files change
"""
