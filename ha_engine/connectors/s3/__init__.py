"""The connector of object stores: a source that reads objects, and a sink that creates one object
for each batch.

``store``   the options of both, the requests to the store, and their errors.
``ledger``  remembers in bounded space which objects are read, for the source's offset.
``reader``  reads the messages of one object piece by piece.
``source``  reads each object below a URL once.
``sink``    creates an object for each batch, and never replaces one.
"""
