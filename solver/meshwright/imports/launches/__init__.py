"""Files that start a training framework, with a plan and parts of the job."""
