"""``ha-engine demo``: a real year of flights through two real nodes, compared with a reference.

show        the story that the user sees
steps       a line for each of its steps, and the table of their times
scoreboard  what a terminal shows meanwhile
watch       how it waits
movement    whether anything moves, and what a node does
nodes       the two nodes
processes   whatever they started, so that nothing is left
interrupts  signals, obeyed where nothing is half started
traffic     the producer
flights     the data
reference   what pandas makes of it
comparison  whether the sink's tables are right
host        what is free on this machine
"""
