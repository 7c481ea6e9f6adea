"""What the pages compute: plain data from the database, without a word about drawing."""
