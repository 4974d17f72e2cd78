"""What every HTTP and gRPC server of a node shares.

route  one documented operation, and who may call it
tls    certificates that are read again when their files change
"""
