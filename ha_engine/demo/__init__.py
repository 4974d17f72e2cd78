"""``ha-engine demo``: send a real year of flights through two real nodes, and check the result.

``show``        has the acts of the demo, in order.
``steps``       prints a line for each step, and the table of the durations of all steps.
``scoreboard``  shows nodes and traffic on a terminal while the demo runs.
``watch``       polls the nodes, and waits for conditions.
``movement``    detects progress, and describes a node's present work.
``nodes``       starts, kills and stops the two nodes.
``ports``       chooses free ports for the two nodes.
``processes``   finds and kills every process that the nodes started.
``interrupts``  notes signals, and ends the demo only while it starts no process.
``traffic``     is the producer of the demo.
``flights``     reads the flights that the producer sends.
``reference``   computes the expected result with pandas.
``comparison``  compares the sink's tables with the expected result.
``host``        measures the free resources of this machine.
"""
