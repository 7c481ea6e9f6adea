"""One page a file: PATH, TITLE, LIVE (redrawn while a run goes on) and draw(view)."""
