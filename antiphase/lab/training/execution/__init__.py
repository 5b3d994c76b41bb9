"""Where the processes of jobs run: on this machine, or on the nodes of a Ray cluster."""
