"""Shared by the importers of files of NCCL: XML, and logs of nccl-tests."""
