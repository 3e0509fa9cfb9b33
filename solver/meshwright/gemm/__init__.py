"""One matmul on one GPU, or split over several: does it fit, and how fast can it be."""
