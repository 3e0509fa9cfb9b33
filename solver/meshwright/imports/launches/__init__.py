"""Files that start a training framework: each says a plan, and some of the job."""
