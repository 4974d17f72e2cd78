"""What operators and load balancers see of a node: status, health, metrics and admin over HTTP."""
