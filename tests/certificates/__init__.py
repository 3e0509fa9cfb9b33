"""Tests of certificates: what is written, what is verified, and what is refused."""
