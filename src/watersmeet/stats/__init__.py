"""What is known of streams: given, sampled, or observed by a run."""
