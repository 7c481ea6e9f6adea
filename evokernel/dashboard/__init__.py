"""A read-only view of the database in a browser: what pages compute is in data/, how they draw it in pages/."""
