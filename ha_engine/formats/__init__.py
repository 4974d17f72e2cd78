"""Parsers of text files, which the client of producers and the node's own sources share.

``lines``     reads the lines of a file with a limit on the memory of each line.
``csv_rows``  turns lines of CSV into JSON objects of a stream's columns.
"""
