"""Formats of files and messages, which several packages share.

``messages``         has the keys of an application file that describe messages, and the readers.
``message_writers``  writes rows as the values of messages.
``text_messages``    reads messages of JSON, NDJSON and CSV.
``avro``             reads messages of Avro.
``avro_schema``      parses schemas of Avro, which ``avro_reader`` and ``avro_writer`` compile.
``protobuf``         reads messages of Protobuf.
``protobuf_columns`` compares columns with the fields of a Protobuf type.
``varint``           reads the varints of Protobuf.
``registry``         finds schemas in a schema registry.
``arrow_types``      has the conversions between types of Arrow that lose nothing.
``json_lines``       writes rows as JSON, one object a line.
``values``           writes values as JSON in one form.
``json_rows``        splits JSON into its objects.
``lines``            reads the lines of a file with a limit on the memory of each line.
``csv_rows``         turns lines of CSV into JSON objects of a stream's columns.
``strict_yaml``      parses YAML that people write, and refuses a key that is written twice.
"""
