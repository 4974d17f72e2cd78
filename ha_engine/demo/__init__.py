"""``ha-engine demo``: a real year of flights through a real node, compared with a reference.

flights     the data
reference   what pandas makes of it
comparison  whether the sink's tables are right
show        the story that the user sees
"""
