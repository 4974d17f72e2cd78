"""Parsers of text files, which several packages share.

``lines``        reads the lines of a file with a limit on the memory of each line.
``csv_rows``     turns lines of CSV into JSON objects of a stream's columns.
``strict_yaml``  parses YAML that people write, and refuses a key that is written twice.
"""
