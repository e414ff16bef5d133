"""One self-contained HTML page about runs. What `runs.report` reads becomes plain values here, and these become HTML.

rendering (one file of all) · pictures · lead · results · dial · training · explained · measured
"""
