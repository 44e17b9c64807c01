"""What classic Spark and Spark Connect do differently, behind one interface."""
