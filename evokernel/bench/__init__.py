"""How candidates are judged: what may run, what is right, and what they are compared with."""
