"""``ha-engine demo``: send a real year of flights through two real nodes, and check the result.

show        the acts of the demo, in order
steps       prints a line for each step, and the table of their times
scoreboard  shows nodes and traffic on a terminal meanwhile
watch       polls the nodes, and waits for conditions
movement    detects progress, and describes a node's present work
nodes       the two nodes
ports       chooses their ports
processes   finds and kills every process that the nodes started
interrupts  notes signals, and ends the demo only where no process is half started
traffic     the producer
flights     the data
reference   the expected result, computed by pandas
comparison  compares the sink's tables with it
host        the free resources of this machine
"""
