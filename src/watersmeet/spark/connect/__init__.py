"""Sites whose Spark is a server of Spark Connect."""
