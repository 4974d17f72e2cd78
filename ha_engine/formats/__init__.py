"""Parsers of text files, which several packages share.

``messages``     has the formats of the messages of a broker, and their options.
``avro``, ``protobuf``, ``registry``  read messages in these formats, and their schemas.
``values``       writes values of these formats as JSON.
``json_rows``    splits JSON into its objects.
``lines``        reads the lines of a file with a limit on the memory of each line.
``csv_rows``     turns lines of CSV into JSON objects of a stream's columns.
``strict_yaml``  parses YAML that people write, and refuses a key that is written twice.
"""
