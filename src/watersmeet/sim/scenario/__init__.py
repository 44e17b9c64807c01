"""What `watersmeet simulate` runs: the file, the run, the outcome."""
